//! Replays of many dead letters, at a pace.
//! Invariant: a run meets each entry once, oldest first, and none that died after the run was asked for: it cannot
//! loop. Its progress is durable, so it goes on after a restart.

use std::collections::HashMap;
use std::time::Duration;

use entrega_core::dead_letter::DeadLetterStatus;
use entrega_core::time::Time;

use crate::engine::Engine;
use crate::store::{ChangeError, DeadLetterFilter, Page, ReplayRun, ReplayStatus, StoreError};

/// How much of its pace a run may catch up after it was held up.
const CATCH_UP_MAX: Duration = Duration::from_secs(1);

/// When each run last went on.
#[derive(Default)]
pub(super) struct Replayer {
    last: HashMap<String, Time>,
}

impl Replayer {
    /// Lets every run go on by as much as its pace allows.
    pub(super) async fn turn(&mut self, engine: &Engine) -> Result<(), StoreError> {
        let runs = engine.store.replay_runs().await?;
        for run in runs.into_iter().filter(|run| run.status == ReplayStatus::Running) {
            self.go_on(engine, run).await?;
        }
        Ok(())
    }

    async fn go_on(&mut self, engine: &Engine, mut run: ReplayRun) -> Result<(), StoreError> {
        let now = engine.clock.now();
        let last = *self.last.entry(run.id.clone()).or_insert(now);
        let (count, paid_until) = allowance(run.rate_per_sec, last, now);
        if count == 0 {
            return Ok(());
        }
        self.last.insert(run.id.clone(), paid_until);
        let filter = DeadLetterFilter {
            status: Some(DeadLetterStatus::Pending),
            before: Some(run.created_at),
            oldest_first: true,
            ..run.filter.clone()
        };
        let page = engine.store.dead_letters(&filter, Page { after: run.cursor, limit: count }).await?;
        for dead in &page.items {
            match engine.store.replay(dead.job_id).await {
                Ok(()) => run.replayed += 1,
                Err(ChangeError::Store(error)) => return Err(error),
                Err(other) => {
                    run.skipped += 1;
                    tracing::warn!(dlqId = %dead.job_id, lane = %dead.lane, errorReason = %other, "Dead letter not replayed");
                }
            }
            run.cursor = Some((dead.moved_to_dlq_at, dead.job_id));
        }
        if page.next.is_none() {
            run.status = ReplayStatus::Finished;
            self.last.remove(&run.id);
            tracing::info!(target: "audit", replayId = run.id, replayed = run.replayed, skipped = run.skipped, "Replay finished");
        } else if page.items.is_empty() {
            run.cursor = page.next;
        }
        engine.store.put_replay(run).await
    }
}

/// How many may go at `now` if all up to `last` were paid for, and up to when that pays.
fn allowance(rate_per_sec: u32, last: Time, now: Time) -> (usize, Time) {
    let last = last.max(now - CATCH_UP_MAX);
    let micros = now.since(last).as_micros() as u64;
    let count = micros * u64::from(rate_per_sec) / 1_000_000;
    let paid = Duration::from_micros(count * 1_000_000 / u64::from(rate_per_sec.max(1)));
    (count as usize, last + paid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_pace_is_kept_whatever_the_ticks(rate in 1u32..1000, ticks in prop::collection::vec(1u64..400, 1..200)) {
            let ticks_len = ticks.len();
            let start = Time::from_millis(1_000_000);
            let (mut now, mut last, mut sent) = (start, start, 0);
            for ms in ticks {
                now = now + Duration::from_millis(ms);
                let (count, paid) = allowance(rate, last, now);
                last = paid;
                sent += count;
                let most = now.since(start).as_secs_f64() * f64::from(rate);
                prop_assert!(sent as f64 <= most + 1.0, "{sent} sent, {most} allowed");
            }
            let least = now.since(start).as_secs_f64() * f64::from(rate) - 1.0;
            prop_assert!(sent as f64 + 0.001 * ticks_len as f64 >= least.floor() - 1.0, "{sent} sent, {least} due");
        }
    }

    #[test]
    fn a_slow_pace_waits_for_its_first() {
        let start = Time::from_millis(1_000_000);
        assert_eq!(allowance(2, start, start + Duration::from_millis(499)).0, 0);
        assert_eq!(allowance(2, start, start + Duration::from_millis(500)), (1, start + Duration::from_millis(500)));
        assert_eq!(allowance(10, start, start + Duration::from_secs(3600)).0, 10, "it does not catch up an hour");
    }
}
