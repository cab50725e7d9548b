//! The cluster as one node knows it: its lease, what it owns, what it saw of other owners.
//! Invariant: a lease counts from before the node showed that it lives; another owner is taken for gone only after nothing new
//! was seen of it for longer than that, over several answered looks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use entrega_core::time::Time;
use entrega_ledger::{Shard, Token};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::ClusterOptions;
use super::hold::Hold;
use super::placement::Nodes;

/// Signs of life, and looks at others, in one lease.
pub(super) const BEATS_IN_A_LEASE: u32 = 6;
/// Looks that must have been answered before a shard is taken from an owner.
pub(super) const LOOKS_MIN: u32 = 3;
/// In this part of a lease a write must be answered, or nothing more is started.
pub(super) const UNSURE_AFTER: u32 = 3;
/// With less than this part of a lease left nothing more is started; beats that are answered leave far more.
pub(super) const ENDS_SOON: u32 = 4;
/// Whoever gave an order waits no longer.
pub(super) const ORDERS_LAST_MAX: Duration = Duration::from_secs(10);
/// Signals that wait to be sent; more are lost, which costs a delay.
pub(super) const SIGNALS_MAX: usize = 10_000;

/// What a node needs to share its ledger with others.
pub(super) struct Cluster {
    pub(super) lease: Duration,
    pub(super) name: String,
    pub(super) started_at: AtomicU64,
    pub(super) nodes: Nodes,
    /// Until when what this node owns is its own, in microseconds.
    pub(super) until: Arc<AtomicU64>,
    /// Since when a write has not been answered, in microseconds; zero if none.
    unanswered: AtomicU64,
    /// Everything this node owns, loaded or not.
    pub(super) holds: Mutex<BTreeMap<Shard, Arc<Hold>>>,
    /// When the ledger last answered a look, in microseconds.
    pub(super) answered_at: AtomicU64,
    /// When it last had not for so long that nobody could show that it lives.
    pub(super) unanswered_at: AtomicU64,
    /// What was seen of other owners.
    pub(super) seen: Mutex<BTreeMap<Shard, Seen>>,
    /// Each ownership has a number of its own, also if the ledger forgot an earlier one.
    pub(super) numbers: AtomicU64,
    /// So that no two marks of this process are the same.
    marks: AtomicU64,
    /// Shards that this node took from owners that were gone.
    pub(super) take_overs: AtomicU64,
    /// A shard may be free.
    pub(super) look: Notify,
    pub(super) signals: Mutex<BTreeSet<String>>,
    pub(super) has_signals: Notify,
}

/// What was seen of another owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    token: Token,
    beat: u64,
    since: Time,
    looks: u32,
}

/// How long an owner is waited for that shows no sign of life.
fn patience(lease: Duration) -> Duration {
    lease + lease / 20
}

impl Cluster {
    pub(super) fn new(options: &ClusterOptions, now: Time) -> Cluster {
        Cluster {
            lease: options.lease,
            name: options.name.clone(),
            started_at: AtomicU64::new(now.as_micros()),
            nodes: Nodes::new(options.lease, patience(options.lease)),
            until: Arc::new(AtomicU64::new(now.as_micros())),
            unanswered: AtomicU64::new(0),
            holds: Mutex::default(),
            answered_at: AtomicU64::new(now.as_micros()),
            unanswered_at: AtomicU64::new(0),
            seen: Mutex::default(),
            numbers: AtomicU64::new(0),
            marks: AtomicU64::new(0),
            take_overs: AtomicU64::new(0),
            look: Notify::new(),
            signals: Mutex::default(),
            has_signals: Notify::new(),
        }
    }

    pub(super) fn lease(&self) -> Duration {
        self.lease
    }

    /// When this node joined, by the clock that nodes share.
    pub(super) fn started_at(&self) -> Time {
        Time::from_micros(self.started_at.load(Ordering::Relaxed))
    }

    /// How often this node took a shard from an owner that was gone.
    pub(super) fn take_overs(&self) -> u64 {
        self.take_overs.load(Ordering::Relaxed)
    }

    /// Everything that this node owns.
    pub(super) fn holds(&self) -> Vec<Arc<Hold>> {
        self.holds.lock().values().cloned().collect()
    }

    /// How long others wait, a little longer than the lease: clocks do not run alike.
    pub(super) fn patience(&self) -> Duration {
        patience(self.lease)
    }

    /// How long an order may be carried out: an owner that is gone is replaced by then, if its lease is not a long one.
    pub(super) fn orders_last(&self) -> Duration {
        (self.lease * 5 / 3).min(ORDERS_LAST_MAX)
    }

    /// A write is under way until this is dropped.
    pub(super) fn asking(&self, now: Time) -> Asking<'_> {
        self.unanswered.store(now.as_micros(), Ordering::Release);
        Asking(&self.unanswered)
    }

    /// Whether nothing more may be started: a write has not been answered for too long, or the lease is about to end. After
    /// an outage a beat may be answered so late that what began now would be cut off at once, and made again.
    pub(super) fn is_unsure(&self, now: Time) -> bool {
        let since = self.unanswered.load(Ordering::Acquire);
        let is_unanswered = since != 0 && now.since(Time::from_micros(since)) > self.lease / UNSURE_AFTER;
        is_unanswered || self.lease_end() < now + self.lease / ENDS_SOON
    }

    /// What this node owns is its own until then.
    pub(super) fn lease_until(&self, end: Time) {
        self.until.fetch_max(end.as_micros(), Ordering::AcqRel);
    }

    /// Until when what this node owns is its own.
    pub(super) fn lease_end(&self) -> Time {
        Time::from_micros(self.until.load(Ordering::Acquire))
    }

    /// What no other mark of this process has.
    pub(super) fn next_mark(&self) -> u64 {
        self.marks.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn number(&self, node: u64) -> u64 {
        node.wrapping_add(self.numbers.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Whether an ownership was one of this process's.
    pub(super) fn is_mine(&self, node: u64, token: Token) -> bool {
        token.node.wrapping_sub(node) <= self.numbers.load(Ordering::Relaxed)
    }

    /// What may be told the ledger of a shard that others own: that its owner stood still for long enough.
    pub(super) fn may_take(&self, now: Time, shard: &Shard, node: u64) -> Option<(Token, u64)> {
        let seen = *self.seen.lock().get(shard)?;
        // Whoever should have it is given a moment more.
        let turn = if self.nodes.is_anothers(now, shard, node) { self.lease / 10 } else { Duration::ZERO };
        // After an outage an owner has to find the ledger again before it can show that it lives.
        let outage = Time::from_micros(self.unanswered_at.load(Ordering::Relaxed));
        if now.since(outage) < self.patience() + self.lease / 2 {
            return None;
        }
        let is_silent = seen.looks >= LOOKS_MIN && now.since(seen.since) >= self.patience() + turn;
        is_silent.then_some((seen.token, seen.beat))
    }

    /// A look was not answered. What was seen before an outage says nothing: its owner could not show that it lives.
    pub(super) fn note_silence(&self, now: Time) {
        let answered_at = Time::from_micros(self.answered_at.load(Ordering::Relaxed));
        if now.since(answered_at) >= self.lease / UNSURE_AFTER {
            self.seen.lock().clear();
            self.unanswered_at.store(now.as_micros(), Ordering::Relaxed);
        }
    }

    /// Another node owns a shard.
    pub(super) fn note(&self, now: Time, shard: &Shard, token: Token, beat: u64) {
        let mut all = self.seen.lock();
        let seen = all.entry(shard.clone()).or_insert(Seen { token, beat, since: now, looks: 0 });
        if (seen.token, seen.beat) != (token, beat) {
            *seen = Seen { token, beat, since: now, looks: 0 };
        }
        seen.looks += 1;
    }
}

/// A write is under way.
pub(super) struct Asking<'a>(&'a AtomicU64);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
