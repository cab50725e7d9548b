//! Holds: one ownership of a shard, and the number of the last group that was written under it.
//! Invariant: numbers are given by the writer alone, one after the other.

use std::sync::atomic::{AtomicU64, Ordering};

use entrega_core::time::Time;
use entrega_ledger::{Fence, Ledger, LedgerError, Owning, Shard, Token};

use super::reading::{ReadError, patiently};
use crate::store::Lease;

/// The shard of what belongs to no lane and has one owner: replays and sweeps.
pub(super) const HOUSE: &str = "house";

/// One ownership of a shard.
pub(super) struct Hold {
    pub(super) shard: Shard,
    pub(super) token: Token,
    seq: AtomicU64,
    pub(super) lease: Lease,
    pub(super) since: Time,
}

impl Hold {
    pub(super) fn new(shard: Shard, token: Token, seq: u64, lease: Lease, since: Time) -> Hold {
        Hold { shard, token, seq: AtomicU64::new(seq), lease, since }
    }

    /// What no other ownership of this process has. The epoch is not enough: a ledger that was set back gives it again.
    pub(super) fn number(&self) -> u64 {
        self.token.node
    }

    /// The fence of the next group.
    pub(super) fn next(&self) -> Fence {
        Fence { shard: self.shard.clone(), token: self.token, seq: self.written() + 1 }
    }

    /// The number of the last group.
    pub(super) fn written(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    /// The next group is written.
    pub(super) fn wrote(&self) {
        self.seq.fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes a shard that nobody else can want, whoever had it before.
pub(super) async fn own_alone(ledger: &dyn Ledger, node: u64, shard: Shard, now: Time) -> Result<Hold, ReadError> {
    let mut seen = None;
    for _ in 0..OWN_TRIES {
        let asked = patiently(|| async { Ok(ledger.own(&shard, node, seen).await?) }).await?;
        match asked {
            Owning::Owned { token, seq } => return Ok(Hold::new(shard, token, seq, Lease::forever(), now)),
            // An answer was lost: the first try took it.
            Owning::Held { token, beat } if token.node == node => seen = Some((token, beat)),
            Owning::Held { .. } => break,
        }
    }
    let reason = format!("'{shard}' is owned by another process");
    Err(LedgerError::Bad { doing: "opening the store", reason }.into())
}

/// An own that was not answered, and the one after it.
const OWN_TRIES: usize = 3;
