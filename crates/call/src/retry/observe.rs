//! Observers: where metrics of calls come from.
//! Invariant: every attempt, wait and end is told once, as it happens.
//! Never: changes what happens.

use std::time::Duration;

use super::classifier::Description;
use super::end::Stopped;

/// An attempt that ended.
#[derive(Clone, Copy, Debug)]
pub struct AttemptEnded<'a> {
    /// The operation's name.
    pub operation: &'a str,
    /// The attempt's number, from 1.
    pub attempt: u32,
    /// How long it took.
    pub took: Duration,
    /// Whether it is worth another attempt.
    pub is_retryable: bool,
    /// Whether it worked.
    pub is_success: bool,
    /// Status and code, as far as they are known.
    pub description: &'a Description,
}

/// A wait that begins.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    /// The operation's name.
    pub operation: &'a str,
    /// The number of the attempt that failed.
    pub attempt: u32,
    /// The wait without jitter.
    pub base_delay: Duration,
    /// The wait with jitter and what the destination asked for.
    pub final_delay: Duration,
}

/// An operation that was given up although its last result was worth another attempt, or that was never begun.
#[derive(Clone, Copy, Debug)]
pub struct GivenUp<'a> {
    /// The operation's name.
    pub operation: &'a str,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why there was no further one.
    pub stopped: Stopped,
}

/// A turn that was waited for.
#[derive(Clone, Copy, Debug)]
pub struct ThrottleWaited<'a> {
    /// The operation's name.
    pub operation: &'a str,
    /// For how long.
    pub took: Duration,
    /// Whether that was too long.
    pub timed_out: bool,
}

/// Is told what happens to calls. Every method does nothing unless it is written.
pub trait Observer: Send + Sync {
    /// An attempt ended.
    fn attempt_ended(&self, _ended: AttemptEnded<'_>) {}
    /// A wait before the next attempt begins.
    fn waiting(&self, _waiting: Waiting<'_>) {}
    /// No further attempt will be made.
    fn gave_up(&self, _given_up: GivenUp<'_>) {}
    /// A throttle was waited for, perhaps for no time at all.
    fn throttle_waited(&self, _waited: ThrottleWaited<'_>) {}
}
