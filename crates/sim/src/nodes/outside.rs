//! Outside of all nodes: callers and operators, each of whom comes to a node by chance, and to another when that is gone.
//! Invariant: an errand is at one node at a time; it is over when somebody answered it.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::time::Time;
use parking_lot::Mutex;

use super::Node;
use crate::life::World;
use crate::node::House;
use crate::{caller, operator};

/// Whoever finds nobody, or whose node is gone, comes back after this.
const RETURN_AFTER: Duration = Duration::from_millis(300);

/// What somebody wants.
#[derive(Clone, Copy, Debug)]
enum What {
    PlannedRequest(usize),
    Order(usize),
    EarlyReplay,
    /// To see that everything ends.
    SettleDown,
}

/// What came of a visit: when it comes back, if it does.
type Came = Arc<Mutex<Option<Option<Duration>>>>;

/// Where an errand is.
enum Stage {
    Comes(Time),
    /// At a node, in one life of it.
    At(usize, usize, Came),
    Over,
}

/// All errands.
pub struct Outside {
    errands: Vec<(What, Stage)>,
}

impl Outside {
    /// Everybody who comes in a run.
    pub fn new(world: &World) -> Outside {
        let plan = &world.plan;
        let requests =
            plan.requests.iter().enumerate().map(|(number, request)| (What::PlannedRequest(number), request.at));
        let orders = plan.orders.iter().enumerate().map(|(number, (at, _))| (What::Order(number), *at));
        let early = plan.early_replay.map(|at| (What::EarlyReplay, at));
        let settle = (What::SettleDown, plan.heal_at);
        let all = requests.chain(orders).chain(early).chain([settle]);
        Outside { errands: all.map(|(what, at)| (what, Stage::Comes(at))).collect() }
    }

    /// Whether nobody has anything more to see to.
    pub fn is_over(&self) -> bool {
        self.errands.iter().any(|(what, stage)| matches!((what, stage), (What::SettleDown, Stage::Over)))
    }

    /// Sends those to nodes who come now, and looks after those who are there.
    pub fn send(&mut self, world: &Arc<World>, nodes: &[Node], now: Time) {
        for (what, stage) in &mut self.errands {
            match stage {
                Stage::Comes(at) if *at <= now => {
                    let is_last = matches!(what, What::SettleDown);
                    let open: Vec<usize> = (0..nodes.len()).filter(|node| nodes[*node].open().is_some()).collect();
                    let may_go = !is_last || nodes.iter().all(|node| node.stays(world, now) && node.open().is_some());
                    let chosen = if may_go { world.rng.lock().choice(&open).copied() } else { None };
                    let Some((number, (runtime, house))) =
                        chosen.and_then(|number| Some(number).zip(nodes[number].open()))
                    else {
                        *stage = Stage::Comes(now + RETURN_AFTER);
                        continue;
                    };
                    let came = Came::default();
                    runtime.spawn(visit(*what, house.clone(), came.clone()));
                    *stage = Stage::At(number, nodes[number].life(), came);
                }
                Stage::At(number, life, came) => {
                    let came = came.lock().take();
                    match came {
                        Some(None) => *stage = Stage::Over,
                        Some(Some(after)) => *stage = Stage::Comes(now + after),
                        None if nodes[*number].life() != *life => *stage = Stage::Comes(now + RETURN_AFTER),
                        None => {}
                    }
                }
                Stage::Comes(_) | Stage::Over => {}
            }
        }
    }
}

async fn visit(what: What, house: Arc<House>, came: Came) {
    let (life, store) = (house.life.clone(), house.store.clone());
    let again = match what {
        What::PlannedRequest(number) => caller::visit(&house, number).await,
        What::Order(number) => {
            operator::operate(life, store, number).await;
            None
        }
        What::EarlyReplay => {
            operator::help_early(life, store).await;
            None
        }
        What::SettleDown => {
            operator::settle_down(&life, &store).await;
            None
        }
    };
    *came.lock() = Some(again);
}
