//! Answers as a caller judges them: true, young enough, and got with no more calls than needed.
//! Invariant: knows what the upstream was asked and answered, and what is kept of it; the cache is not asked.

use std::collections::BTreeMap;
use std::time::Duration;

use entrega::store::{CachedAnswer, KeptAnswer};
use entrega_core::time::Time;

use super::hands::Claimed;
use crate::route::Keeping;
use crate::witness::Broken;

/// One call of the upstream.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is asked.
    pub question: String,
    /// For a job that was claimed so.
    pub claimed: Claimed,
}

/// What became of a call.
#[derive(Clone, Debug)]
struct Made {
    call: Call,
    /// Whether somebody still waits for it.
    is_under_way: bool,
    /// When it was answered.
    answered_at: Time,
    /// When its answer was kept.
    kept_at: Option<Time>,
    body: Vec<u8>,
}

/// All calls, and what is kept of them.
pub struct Answers {
    keeping: Keeping,
    /// How long a call may take.
    timeout: Duration,
    calls: Vec<Made>,
    /// When a node last asked the ledger about a question in vain.
    unanswered: BTreeMap<(usize, String), Time>,
}

impl Answers {
    /// Of an upstream whose answers are kept so.
    pub fn new(keeping: Keeping, timeout: Duration) -> Answers {
        Answers { keeping, timeout, calls: Vec::new(), unanswered: BTreeMap::new() }
    }

    /// The store forgot what it kept, and who calls.
    pub fn forgotten(&mut self) {
        self.calls.iter_mut().for_each(|made| (made.is_under_way, made.kept_at) = (false, None));
    }

    /// A node asked the ledger in vain what is kept for a question, or who asks it.
    pub fn unanswered(&mut self, now: Time, node: usize, question: &str) {
        self.unanswered.insert((node, question.to_owned()), now);
    }

    /// The upstream is asked; gives the number of the call. Whoever could not look, since it got its job, calls.
    pub fn asked(&mut self, now: Time, call: Call) -> (usize, Result<(), Broken>) {
        let since = call.claimed.at;
        let same = || self.calls.iter().filter(|made| made.call.question == call.question);
        let was_kept = |made: &Made| made.kept_at.is_some_and(|at| at < since);
        let is_kept = same().any(|made| was_kept(made) && now < made.answered_at + self.keeping.fresh);
        // By then whoever stands still over a call is past its deadline.
        let is_made = same().any(|made| made.is_under_way && now < made.call.claimed.at + self.timeout);
        let asker = (call.claimed.node, call.question.clone());
        let is_blind = self.unanswered.get(&asker).is_some_and(|at| *at >= since);
        let checked = match () {
            _ if call.claimed.is_past_breaker => Err(("breaker_holds", "calls past an open breaker")),
            _ if is_blind => Ok(()),
            _ if is_kept => Err(("calls_spared", "calls although a fresh answer is kept")),
            _ if is_made => Err(("calls_spared", "calls while the same call is under way")),
            _ => Ok(()),
        };
        self.calls.push(Made { call, is_under_way: true, answered_at: now, kept_at: None, body: Vec::new() });
        (self.calls.len() - 1, checked.map_err(|(checker, why)| (checker, why.to_owned())))
    }

    /// The upstream answers.
    pub fn answered(&mut self, now: Time, number: usize, body: &[u8]) {
        let made = &mut self.calls[number];
        (made.answered_at, made.body) = (now, body.to_vec());
    }

    /// Nobody waits for a call any more.
    pub fn ended(&mut self, number: usize) {
        self.calls[number].is_under_way = false;
    }

    /// The store keeps an answer.
    pub fn kept(&mut self, now: Time, question: &str, stored: &CachedAnswer) -> Result<(), Broken> {
        let answer = &stored.answer;
        let body = &answer.body.0;
        let known = self.calls.iter_mut().find(|made| made.call.question == question && made.body == *body);
        let is_good = (200..300).contains(&answer.status);
        match known.filter(|_| is_good) {
            Some(made) => {
                made.kept_at = Some(now);
                Ok(())
            }
            None => Err(("answers_true", format!("status {} is kept for {question}", answer.status))),
        }
    }

    /// Somebody is given an answer from what is kept, having asked at `since`; or the answer of a call.
    pub fn given(&self, since: Time, question: &str, answer: &KeptAnswer) -> Result<(), Broken> {
        let body = &answer.body.0;
        let Some(made) = self.calls.iter().find(|made| made.call.question == question && made.body == *body) else {
            return Err(("answers_true", format!("nobody answered {question} so")));
        };
        let Some((at, cache)) = made.kept_at.zip(answer.cache.as_ref()) else { return Ok(()) };
        let until = match cache.stale {
            true => at + self.keeping.stale.max(self.keeping.fresh),
            false => made.answered_at + self.keeping.fresh,
        };
        match until < since {
            true => Err(("answers_true", format!("an answer to {question} is given that is too old"))),
            false => Ok(()),
        }
    }
}
