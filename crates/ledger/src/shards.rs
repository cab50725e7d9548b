//! Owners and fences, where one process has the ledger to itself.
//! Invariant: a shard has one token at a time and counts the groups that were applied to it; a group whose number was
//! applied already is known again.
//! Never: is durable; with the process every owner is gone, too.

use std::collections::HashMap;

use crate::group::{Applied, EntryId, Fence, Verdict};
use crate::{Beats, Owning, Shard, Token};

#[derive(Clone, Debug, Default)]
struct Ownership {
    token: Option<Token>,
    epoch: u64,
    beat: u64,
    seq: u64,
    /// What became of the units of the last group, for whoever did not hear it.
    last: Vec<Verdict>,
}

/// Whether a group may be applied.
pub(crate) enum Pass {
    /// It is the next.
    Next,
    /// It is not; this is what to answer.
    Answer(Applied),
}

/// All shards.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shards {
    by_shard: HashMap<Shard, Ownership>,
    /// Entries that were ever appended to an inbox.
    appended: u64,
}

impl Shards {
    /// After a start with entries up to this one.
    pub(crate) fn after(last: Option<EntryId>) -> Shards {
        Shards { appended: last.map_or(0, |last| last.1), ..Shards::default() }
    }

    /// The same, and no entry gets a name that one had in another state.
    pub(crate) fn not_before(self, other: &Shards) -> Shards {
        Shards { appended: self.appended.max(other.appended), ..self }
    }

    /// Who owns a shard, and the number of its last group.
    pub(crate) fn owner(&self, shard: &Shard) -> (Option<Token>, u64) {
        self.by_shard.get(shard).map_or((None, 0), |ownership| (ownership.token, ownership.seq))
    }

    pub(crate) fn own(&mut self, shard: &Shard, node: u64, seen: Option<(Token, u64)>) -> Owning {
        let ownership = self.by_shard.entry(shard.clone()).or_default();
        if let Some(token) = ownership.token.filter(|token| seen != Some((*token, ownership.beat))) {
            return Owning::Held { token, beat: ownership.beat };
        }
        ownership.epoch += 1;
        ownership.beat = 0;
        let token = Token { epoch: ownership.epoch, node };
        ownership.token = Some(token);
        Owning::Owned { token, seq: ownership.seq }
    }

    pub(crate) fn beat(&mut self, held: &[(Shard, Token)]) -> Beats {
        let mut beat = |(shard, token): &(Shard, Token)| {
            let ownership = self.by_shard.get_mut(shard).filter(|ownership| ownership.token == Some(*token));
            ownership.map(|ownership| ownership.beat += 1).is_some()
        };
        Beats { time_us: None, standing: held.iter().map(&mut beat).collect() }
    }

    pub(crate) fn release(&mut self, shard: &Shard, token: Token) {
        if let Some(ownership) = self.by_shard.get_mut(shard)
            && ownership.token == Some(token)
        {
            ownership.token = None;
        }
    }

    /// Whether a group with these fences is the next of all its shards.
    pub(crate) fn check(&self, fences: &[Fence]) -> Pass {
        let mut repeats = 0;
        for Fence { shard, token, seq } in fences {
            let Some(ownership) = self.by_shard.get(shard).filter(|ownership| ownership.token == Some(*token)) else {
                return Pass::Answer(Applied::Fenced(shard.clone()));
            };
            match ownership.seq {
                at if at == *seq => repeats += 1,
                at if at + 1 == *seq => {}
                at => return Pass::Answer(Applied::Rewound(shard.clone(), at)),
            }
        }
        let first = fences.first().and_then(|fence| self.by_shard.get(&fence.shard).map(|at| (fence, at)));
        match first {
            Some((_, at)) if repeats == fences.len() => Pass::Answer(Applied::Applied(at.last.clone())),
            Some((fence, at)) if repeats > 0 => Pass::Answer(Applied::Rewound(fence.shard.clone(), at.seq)),
            _ => Pass::Next,
        }
    }

    /// A group was applied, with this result.
    pub(crate) fn advance(&mut self, fences: &[Fence], verdicts: &[Verdict]) {
        for Fence { shard, seq, .. } in fences {
            if let Some(ownership) = self.by_shard.get_mut(shard) {
                ownership.seq = *seq;
                ownership.last = verdicts.to_vec();
            }
        }
    }

    /// The name of the next entry of an inbox.
    pub(crate) fn next_entry(&mut self) -> EntryId {
        self.appended += 1;
        EntryId(0, self.appended)
    }
}
