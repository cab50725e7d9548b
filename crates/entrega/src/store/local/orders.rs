//! Orders: what one node asks the owner of a lane to do.
//! Invariant: what an order does, that it was taken and its answer are one group. One whose time is over is never carried
//! out; whoever gave it then knows that nothing happened, and nothing will.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use entrega_core::id::JobId;
use entrega_core::time::Time;
use entrega_ledger::{Key, Op, Unit};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Shared;
use super::cluster::Cluster;
use super::command::{Change, Command};
use super::hold::Hold;
use super::lanes::{LaneEntry, OwnedLane};
use super::order::{Answered, Entry, Order, OrderId, Receipt};
use super::reading::{self, patiently};
use super::records::{self, Live};
use super::tables::ORDERS;
use crate::store::{ChangeError, StoreError};

/// How long its answer is waited for beyond the time of an order.
const LAST_ANSWER: Duration = Duration::from_millis(500);
/// Answers that nobody fetched are kept for so long.
const ANSWERS_KEPT: Duration = Duration::from_mins(1);
/// An answer is looked for this often even if nobody says that it is there.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Where the answer to an order is found; sorts by when it is out of date.
fn answer_key(until: Time, id: &OrderId) -> String {
    format!("{:015}/{:032x}", until.as_millis(), u128::from_be_bytes(*id))
}

/// Answers whose time is over begin with less than this.
pub(super) fn stale_before(now: Time) -> String {
    format!("{:015}", (now - ANSWERS_KEPT).as_millis())
}

impl Receipt {
    /// Adds to a unit that the order is taken, and its answer; it takes effect only if nobody has given the order up.
    pub(super) fn sign(&self, lane: &OwnedLane, unit: &mut Unit, answered: &Answered) {
        unit.when_absent(ORDERS, Key::Text(answer_key(self.until, &self.id)));
        unit.ops.push(Op::Take(lane.hold.shard.clone(), self.entry));
        unit.put(ORDERS, Key::Text(answer_key(self.until, &self.id)), records::encode(answered));
    }
}

/// Orders of this node that others carry out.
#[derive(Default)]
pub(super) struct Asked {
    bells: Mutex<HashMap<String, Arc<Notify>>>,
    count: AtomicU64,
}

impl Asked {
    /// The name of the next order: no other node has this node's number, and none of its orders this count.
    fn name(&self, node: u64) -> OrderId {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        ((u128::from(node) << u64::BITS) | u128::from(count)).to_be_bytes()
    }

    fn wait(&self, key: &str) -> Arc<Notify> {
        self.bells.lock().entry(key.to_owned()).or_default().clone()
    }

    fn forget(&self, key: &str) {
        self.bells.lock().remove(key);
    }

    /// An answer is there.
    pub(super) fn answered(&self, key: &str) {
        let waiting = self.bells.lock().get(key).cloned();
        waiting.into_iter().for_each(|waiting| waiting.notify_one());
    }
}

impl Shared {
    /// Has the owner of a lane do something.
    pub(super) async fn order(&self, lane: &Arc<LaneEntry>, order: Order) -> Result<Answered, StoreError> {
        let lasts = self.cluster.as_ref().map_or(Duration::ZERO, Cluster::orders_last);
        let (id, until) = (self.asked.name(self.options.node), self.clock.now() + lasts);
        let key = answer_key(until, &id);
        let bell = self.asked.wait(&key);
        let answered = self.ask(lane, order, id, until, &key, &bell).await;
        self.asked.forget(&key);
        answered
    }

    async fn ask(
        &self,
        lane: &Arc<LaneEntry>,
        order: Order,
        id: OrderId,
        until: Time,
        key: &str,
        bell: &Notify,
    ) -> Result<Answered, StoreError> {
        let mut unit = Unit::default();
        unit.ops.push(Op::Append(lane.shard.clone(), records::encode(&Entry::Order { id, until, order })));
        let node = self.node.read().clone();
        self.write_under(node.clone(), vec![unit]).await?;
        self.poke(lane);
        loop {
            let is_over = self.clock.now() >= until + LAST_ANSWER;
            let found = reading::load(&*self.ledger, ORDERS, Key::Text(key.to_owned()), records::decode).await;
            match found {
                Ok(Some(answered)) => {
                    let mut unit = Unit::default();
                    unit.remove(ORDERS, Key::Text(key.to_owned()));
                    let change = Change { hold: node, lane: None, units: vec![unit], ended: Vec::new(), then: None };
                    self.send(Command::Change { change, reply: None })?;
                    return Ok(answered);
                }
                Ok(None) if is_over => {
                    if !self.give_up(&node, key).await? {
                        // Its answer came in this very moment.
                        continue;
                    }
                    let reason = format!(
                        "no node that owns lane '{}' took the order in time; it was not carried out and will not be",
                        lane.name
                    );
                    return Err(StoreError::Unreachable { reason });
                }
                Err(error) if is_over => return Err(error.into()),
                Ok(None) | Err(_) => drop(tokio::time::timeout(LOOK_EVERY, bell.notified()).await),
            }
        }
    }

    /// Gives an order up: whoever carries it out from now on finds that, and nothing takes effect. `false` if it was carried
    /// out.
    async fn give_up(&self, node: &Arc<Hold>, key: &str) -> Result<bool, StoreError> {
        let mut unit = Unit::default();
        unit.when_absent(ORDERS, Key::Text(key.to_owned()));
        unit.put(ORDERS, Key::Text(key.to_owned()), records::encode(&Answered::GivenUp));
        Ok(self.write_under(node.clone(), vec![unit]).await?[0])
    }

    /// An order was given up while it was carried out: memory is again what the ledger says.
    pub(super) async fn unsay(&self, lane: &Arc<OwnedLane>, id: JobId) -> Result<(), StoreError> {
        let live = patiently(|| records::load_live(&*self.ledger, lane.live_key(id))).await?;
        let is_waiting = |live: &Live| live.blocked.is_none() && lane.machine.lock().explain(live.due, id).is_none();
        if let Some(live) = live.filter(is_waiting) {
            lane.put_back(self, id, &live);
        }
        let dead = patiently(|| records::load_dead(&*self.ledger, id)).await?;
        lane.know_dead(id, dead.as_ref());
        Ok(())
    }

    /// What was refused because of what is remembered holds only while the lane is certainly this node's.
    pub(super) fn vouched<T>(lane: &OwnedLane, done: Result<T, ChangeError>) -> Result<T, ChangeError> {
        match done {
            Err(ChangeError::Store(error)) => Err(ChangeError::Store(error)),
            Err(_) if lane.hold.lease.is_over() => {
                let reason = "it may have moved to another node".to_owned();
                Err(StoreError::Unreachable { reason }.into())
            }
            done => done,
        }
    }

    /// Does what another node asked for, unless that node has given up by now.
    pub(super) async fn carry_out(
        &self,
        lane: &Arc<OwnedLane>,
        order: Order,
        until: Time,
        receipt: Receipt,
    ) -> Result<(), StoreError> {
        let mut unit = Unit::default();
        if self.clock.now() >= until {
            unit.ops.push(Op::Take(lane.hold.shard.clone(), receipt.entry));
            return self.change(lane, unit, Vec::new()).await;
        }
        let now = self.clock.now();
        let done = match order {
            Order::Cancel { id, reason } => self.cancel_here(lane, id, &reason, Some(&receipt)).await,
            Order::Unblock { id } => self.unblock_here(lane, id, Some(&receipt)).await,
            Order::Replay { id } => self.replay_here(lane, id, Some(&receipt)).await,
            Order::Discard { id, reason } => self.discard_here(lane, id, &reason, Some(&receipt)).await,
            Order::Explain { id } => {
                let explained = Answered::Explained(lane.machine.lock().explain(now, id));
                return self.answer(lane, &receipt, &explained).await;
            }
            Order::Tenants => {
                let figures = Answered::Tenants(lane.machine.lock().tenants().collect());
                return self.answer(lane, &receipt, &figures).await;
            }
        };
        match Shared::vouched(lane, done) {
            Ok(()) => self.tell_answered(&receipt),
            // It is not ours any more; whoever owns the lane finds the order in the inbox.
            Err(ChangeError::Store(error @ (StoreError::Stopped { .. } | StoreError::Unreachable { .. }))) => {
                return Err(error);
            }
            Err(refused) => self.answer(lane, &receipt, &Answered::Refused(refused.into())).await?,
        }
        Ok(())
    }

    async fn answer(&self, lane: &Arc<OwnedLane>, receipt: &Receipt, answered: &Answered) -> Result<(), StoreError> {
        let mut unit = Unit::default();
        receipt.sign(lane, &mut unit, answered);
        self.change(lane, unit, Vec::new()).await?;
        self.tell_answered(receipt);
        Ok(())
    }

    fn tell_answered(&self, receipt: &Receipt) {
        self.signal(format!("answer {}", answer_key(receipt.until, &receipt.id)));
    }
}
