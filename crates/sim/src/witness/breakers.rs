//! Breakers as somebody judges them who counts failures: what has failed too often in a row is left alone for a while.
//! Invariant: judges the first time that each breaker opens in a life of the store; how one comes back gently is for the
//! breaker's own tests.

use std::collections::BTreeMap;

use entrega_core::breaker::BreakerPolicy;
use entrega_core::name::LaneName;
use entrega_core::outcome::Lesson;
use entrega_core::policy::{LanePolicy, Scope};
use entrega_core::time::Time;

use crate::witness::Broken;

/// What was learned of a lane's destination.
#[derive(Clone, Debug, Default)]
struct Health {
    failures: u32,
    /// When something better than a failure was last heard.
    up_at: Time,
    /// When each failure was heard that may have come after that.
    possible: Vec<Time>,
    /// The first moment at which there may have been enough of them in a row.
    may_open_at: Option<Time>,
    /// Since when, and until when.
    open: Option<(Time, Time)>,
}

impl Health {
    /// One more failure that is heard between two moments.
    fn may_fail(&mut self, heard_by: Time, asked_at: Time, breaker: &BreakerPolicy) {
        self.possible.push(heard_by);
        if self.possible.len() >= breaker.failures as usize {
            self.may_open_at.get_or_insert(asked_at);
        }
    }
}

/// The lanes whose breaker stands before all of them.
#[derive(Debug, Default)]
pub struct Breakers {
    /// Whether the ledger lost what gates had learned that nodes share.
    pub are_gates_vague: bool,
    by_lane: BTreeMap<LaneName, Health>,
}

impl Breakers {
    /// The store was opened again: nothing is known.
    pub fn clear(&mut self) {
        self.by_lane.clear();
    }

    /// Somebody else owns a lane now, and knows nothing.
    pub fn forget(&mut self, lane: &LaneName) {
        self.by_lane.remove(lane);
    }

    /// An attempt tells something, and its gate may hear it from now on.
    pub fn learning(&mut self, now: Time, lane: &LaneName, policy: &LanePolicy, lesson: Lesson) {
        if let (Some((breaker, Scope::Lane)), Lesson::Down) = (&policy.breaker, lesson) {
            self.by_lane.entry(lane.clone()).or_default().may_fail(Time::NEVER, now, breaker);
        }
    }

    /// An attempt told something, and whoever told it was gone before it was answered: the gate hears it until a moment, or
    /// never.
    pub fn may_learn(&mut self, until: Time, asked_at: Time, lane: &LaneName, policy: &LanePolicy, lesson: Lesson) {
        let failures = self.by_lane.get(lane).map_or(0, |health| health.failures);
        self.learned(until, asked_at, lane, policy, lesson);
        if let Some(health) = self.by_lane.get_mut(lane) {
            health.failures = health.failures.min(failures);
            health.open.take_if(|open| open.0 == until);
        }
    }

    /// An attempt told something, which its gate heard between two moments.
    pub fn learned(&mut self, now: Time, asked_at: Time, lane: &LaneName, policy: &LanePolicy, lesson: Lesson) {
        let Some((breaker, Scope::Lane)) = &policy.breaker else { return };
        let health = self.by_lane.entry(lane.clone()).or_default();
        // Of two that are told at once, nobody knows which the gate hears first.
        match lesson {
            Lesson::Down => {
                health.failures += u32::from(asked_at >= health.up_at);
                if let Some(told) = health.possible.iter().position(|heard_at| *heard_at == Time::NEVER) {
                    health.possible.remove(told);
                }
                health.may_fail(now, asked_at, breaker);
            }
            Lesson::Up | Lesson::Slower(_) => {
                (health.failures, health.up_at) = (0, now);
                health.possible.retain(|heard_at| *heard_at > asked_at);
            }
            Lesson::Nothing | Lesson::Apart | Lesson::Unused => {}
        }
        if health.open.is_none() && health.failures >= breaker.failures {
            health.open = Some((now, health.may_open_at.unwrap_or(asked_at) + breaker.open));
        }
    }

    /// What lanes were told at a moment they hear a little later.
    pub fn hold_up(&mut self, now: Time, is_meant: impl Fn(&LaneName) -> bool) {
        self.move_opened(now, Time::NEVER, is_meant);
    }

    /// They hear it now.
    pub fn let_go(&mut self, now: Time, is_meant: impl Fn(&LaneName) -> bool) {
        self.move_opened(Time::NEVER, now, is_meant);
    }

    fn move_opened(&mut self, from: Time, to: Time, is_meant: impl Fn(&LaneName) -> bool) {
        for (_, health) in self.by_lane.iter_mut().filter(|(lane, _)| is_meant(lane)) {
            health.open.iter_mut().filter(|open| open.0 == from).for_each(|open| open.0 = to);
        }
    }

    /// Whether a job that was asked for at a moment may leave its lane now to call.
    pub fn check_claim(&self, now: Time, asked_at: Time, lane: &LaneName) -> Result<(), Broken> {
        let is_vague = self.are_gates_vague && lane.as_str().starts_with("gate:");
        match self.by_lane.get(lane).filter(|_| !is_vague).and_then(|health| health.open) {
            Some((since, until)) if since <= asked_at && now < until => {
                Err(("breaker_holds", format!("goes while the breaker of {lane} is open")))
            }
            _ => Ok(()),
        }
    }
}
