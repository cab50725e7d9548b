//! Progress: what is known of a mail while it is handed over.
//! Invariant: it outlives the conversation, so that one cut short still says what it learned; only a mail whose end was
//! sent and not answered is ambiguous.
//! Never: judges.

use entrega_core::mail::MailRefusal;

use super::super::transport::Sent;
use super::lost::Lost;

/// How far it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No server took part yet.
    Opening,
    /// Commands go back and forth.
    Talking,
    /// The server has all of it and has not answered.
    HandedOver,
    /// Every recipient has a result.
    Settled,
}

/// What is known so far.
#[derive(Debug)]
pub(super) struct Progress {
    refusals: Vec<Option<MailRefusal>>,
    stage: Stage,
}

impl Progress {
    pub(super) fn new(recipients: usize) -> Progress {
        Progress { refusals: vec![None; recipients], stage: Stage::Opening }
    }

    /// A server is spoken with.
    pub(super) fn talk(&mut self) {
        self.stage = Stage::Talking;
    }

    /// That connection was none; nothing it led to counts.
    pub(super) fn start_over(&mut self) {
        self.stage = Stage::Opening;
        self.refusals.fill(None);
    }

    /// The last byte left.
    pub(super) fn hand_over(&mut self) {
        self.stage = Stage::HandedOver;
    }

    /// One recipient is not taken.
    pub(super) fn refuse(&mut self, recipient: usize, refusal: MailRefusal) {
        self.refusals[recipient] = Some(refusal);
    }

    /// Nobody else is taken either.
    pub(super) fn refuse_the_rest(&mut self, refusal: &MailRefusal) {
        for open in self.refusals.iter_mut().filter(|refusal| refusal.is_none()) {
            *open = Some(refusal.clone());
        }
        self.stage = Stage::Settled;
    }

    /// Everybody else is taken.
    pub(super) fn accept_the_rest(&mut self) {
        self.stage = Stage::Settled;
    }

    /// Whether the server still has a reason to take it.
    pub(super) fn is_anybody_left(&self) -> bool {
        self.refusals.iter().any(Option::is_none)
    }

    /// What came of it, however the conversation ended.
    pub(super) fn sent(mut self, ended: Result<(), Lost>) -> Sent {
        let ambiguous = match (self.stage, ended) {
            (Stage::Opening, Err(lost)) => return Sent::Unreached(lost.refusal()),
            (Stage::Talking, Err(lost)) => {
                self.refuse_the_rest(&lost.refusal());
                false
            }
            (Stage::HandedOver, Err(lost)) => {
                self.refuse_the_rest(&lost.refusal_after_the_end());
                true
            }
            // A connection that breaks once all is said changes nothing.
            (Stage::Settled, _) => false,
            (stage, Ok(())) => unreachable!("a conversation ended well at {stage:?}"),
        };
        Sent::Answered { refusals: self.refusals, message_id: None, ambiguous }
    }
}
