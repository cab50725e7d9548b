//! Planted bugs of a ledger that nodes share: who owns what, what nodes leave for one another, and what they hear.
//! Invariant: without a planted bug everything passes as it is, and where there is one node, too.

use bytes::Bytes;
use entrega::store::local::tables::{LIVE, ORDERS, REGISTRY};
use entrega_core::lane::Lane;
use entrega_core::name::LaneName;
use entrega_ledger::{
    Applied, Beats, Group, InboxEntry, Key, Ledger as _, LedgerError, Op, Owning, Rows, Shard, Table, Token, Verdict,
};

use crate::bug::Bug;
use crate::ledger::SimLedger;

/// One in so many is enough for what is done now and then.
const NOW_AND_THEN: u32 = 4;

impl SimLedger {
    /// The planted bug, where nodes share the ledger.
    fn shared_bug(&self) -> Option<Bug> {
        self.life.world.bug.filter(|_| self.life.is_shared())
    }

    fn now_and_then(&self) -> bool {
        self.life.world.rng.lock().u32(0..NOW_AND_THEN) == 0
    }

    /// Whom the ledger takes for the owner of a shard.
    pub(crate) async fn bent_own(
        &self,
        shard: &Shard,
        node: u64,
        seen: Option<(Token, u64)>,
    ) -> Result<Owning, LedgerError> {
        let owning = self.heap.own(shard, node, None).await?;
        let (Owning::Held { token, beat }, Some(bug)) = (&owning, self.shared_bug()) else {
            return if seen.is_some() { self.heap.own(shard, node, seen).await } else { Ok(owning) };
        };
        let is_mine = token.node >> u32::BITS == node >> u32::BITS;
        match bug {
            Bug::TwoOwners if !is_mine && self.now_and_then() => {
                self.heap.own(shard, node, Some((*token, *beat))).await
            }
            // Whoever it was seems to live for ever.
            Bug::DeadNodesKeep if !is_mine => Ok(Owning::Held { token: *token, beat: self.life.world.next_ticket() }),
            _ if seen.is_some() => self.heap.own(shard, node, seen).await,
            _ => Ok(owning),
        }
    }

    /// What a node that beats is told.
    pub(crate) async fn bent_beat(&self, held: &[(Shard, Token)]) -> Result<Beats, LedgerError> {
        match self.shared_bug() {
            Some(Bug::LeaseNotRenewed) => Ok(Beats { time_us: None, standing: vec![true; held.len()] }),
            _ => self.heap.beat(held).await,
        }
    }

    /// Groups that are applied although another node owns their shards, or although others are missing before them.
    pub(crate) fn bent_answers(&self, groups: &[Group], mut answers: Vec<Applied>) -> Vec<Applied> {
        let is_let_in = |answer: &Applied| match self.shared_bug() {
            Some(Bug::OldTokenApplied) => matches!(answer, Applied::Fenced(_)),
            Some(Bug::RewindUnnoticed) => matches!(answer, Applied::Rewound(..)),
            _ => false,
        };
        for (group, answer) in groups.iter().zip(&mut answers) {
            if is_let_in(answer) {
                let bare = Group { fences: Vec::new(), units: group.units.clone() };
                drop(self.apply(&[bare]));
                *answer = Applied::Applied(vec![Verdict::Done; group.units.len()]);
            }
        }
        answers
    }

    /// Whether one operation of a unit, which may be about a job, reaches the ledger.
    pub(crate) fn keeps(&self, op: &Op, is_job: bool) -> bool {
        match (self.shared_bug(), op) {
            (Some(Bug::InboxTakenTwice), Op::Take(..)) => !self.now_and_then(),
            (Some(Bug::HandedUnsaid), Op::Append(..)) => !is_job,
            (Some(Bug::StartsStale), Op::Put(REGISTRY, Key::Text(key), _)) if key.starts_with("starts/") => {
                self.heap.get(REGISTRY, &Key::Text(key.clone())).is_none()
            }
            _ => true,
        }
    }

    /// An inbox as its owner sees it.
    pub(crate) fn bent_inbox(&self, entries: Vec<InboxEntry>) -> Vec<InboxEntry> {
        match self.shared_bug() {
            // Orders are, so that operators get through.
            Some(Bug::InboxNeverTaken) => {
                let handed = self.life.world.handed.lock();
                entries.into_iter().filter(|entry| !handed.contains_key(&(entry.id.0, entry.id.1))).collect()
            }
            _ => entries,
        }
    }

    /// The rows of a lane as whoever takes it over sees them.
    pub(crate) fn bent_index(&self, table: Table, rows: Rows) -> Rows {
        if self.shared_bug() != Some(Bug::LostInHandOver) || table != LIVE || !self.now_and_then() {
            return rows;
        }
        let mut bent = Rows::default();
        for (key, value) in rows.iter().skip(1) {
            bent.push(key, value, usize::MAX, usize::MAX);
        }
        bent
    }

    /// Records as a node reads them.
    pub(crate) fn bent_read(&self, table: Table, keys: &[Key], mut found: Vec<Option<Bytes>>) -> Vec<Option<Bytes>> {
        for (key, value) in keys.iter().zip(&mut found) {
            let Key::Text(name) = key else { continue };
            match self.life.world.bug {
                Some(Bug::OrderAnswerUnseen) if table == ORDERS => *value = None,
                Some(Bug::RegistryUnheard) if table == REGISTRY && name == "version" => *value = None,
                _ if table == REGISTRY && self.forgets_starts() => {
                    if let Some(lane) = name.strip_prefix("starts/").and_then(|lane| LaneName::new(lane).ok()) {
                        *value = self.no_starts(&lane).or(value.take());
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// What whoever takes a lane reads who is told that nothing was started in it.
    fn no_starts(&self, lane: &LaneName) -> Option<Bytes> {
        let starts = Lane::new(self.life.world.plan.lanes.get(lane)?.clone()).starts(self.life.clock.now())?;
        Some(postcard::to_extend(&starts, vec![1]).expect("plain data encodes").into())
    }

    /// Whether nobody hears a signal.
    pub(crate) fn is_unheard(&self, topic: &str) -> bool {
        self.shared_bug() == Some(Bug::RegistryUnheard) && topic == "registry"
    }
}
