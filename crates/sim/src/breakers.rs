//! Breakers as somebody judges them who counts failures: what has failed too often in a row is left alone for a while.
//! Invariant: judges the first time that each breaker opens in a life of the store; how one comes back gently is for the
//! breaker's own tests.

use std::collections::BTreeMap;

use entrega_core::name::LaneName;
use entrega_core::outcome::Lesson;
use entrega_core::policy::{LanePolicy, Scope};
use entrega_core::time::Time;

use crate::witness::Broken;

/// What was learned of a lane's destination.
#[derive(Clone, Copy, Debug, Default)]
struct Health {
    failures: u32,
    /// Since when, and until when.
    open: Option<(Time, Time)>,
}

/// The lanes whose breaker stands before all of them.
#[derive(Debug, Default)]
pub struct Breakers {
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

    /// An attempt told something, which its gate heard between two moments.
    pub fn learned(&mut self, now: Time, asked_at: Time, lane: &LaneName, policy: &LanePolicy, lesson: Lesson) {
        let Some((breaker, Scope::Lane)) = &policy.breaker else { return };
        let health = self.by_lane.entry(lane.clone()).or_default();
        match lesson {
            Lesson::Down => health.failures += 1,
            Lesson::Up | Lesson::Slower(_) => health.failures = 0,
            Lesson::Nothing | Lesson::Apart | Lesson::Unused => {}
        }
        if health.open.is_none() && health.failures >= breaker.failures {
            health.open = Some((now, asked_at + breaker.open));
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
        let health = self.by_lane.get(lane).copied().unwrap_or_default();
        match health.open {
            Some((since, until)) if since <= asked_at && now < until => {
                Err(("breaker_holds", format!("goes while the breaker of {lane} is open")))
            }
            _ => Ok(()),
        }
    }
}
