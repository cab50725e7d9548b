//! Crashes at any moment: every accepted job is in exactly one place afterwards, and runs again if it had not ended.
//! A crash here is a copy of the disk, made while the store writes, under a new store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use entrega::store::local::tables::{DEAD, JOBS, LIVE};
use entrega::store::{ChangeError, ClaimedJob, Submitted};
use entrega_core::dead_letter::{DeadLetter, DeadLetterStatus};
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState, Priority};
use proptest::prelude::*;

use super::fixture::{Fixture, HOUR, Setup, failure, lane};
use super::ledger::TestLedger;

const LANES: [&str; 3] = ["http", "urgent", "shared"];

/// Something that happens to a store. Numbers choose among what there is at that moment.
#[derive(Clone, Debug)]
enum Step {
    Submit { lane: usize, priority: Priority, delay_ms: u64, ttl_ms: Option<u64>, count: usize },
    Claim { lane: usize, max: usize },
    Settle { which: usize, how: How },
    Ask { which: usize, change: Change },
    Pause { lane: usize, paused: bool },
    Pass(u64),
    Sweep,
    Crash,
}

#[derive(Clone, Copy, Debug)]
enum How {
    Done,
    Retry(u64),
    Dead,
    Blocked,
}

/// What an operator asks for.
#[derive(Clone, Copy, Debug)]
enum Change {
    Cancel,
    Unblock,
    Replay,
    Discard,
}

fn submission() -> impl Strategy<Value = Step> {
    let priority = prop_oneof![Just(Priority::High), Just(Priority::Normal), Just(Priority::Low)];
    let delay = prop_oneof![3 => Just(0), 1 => 1u64..5_000];
    let ttl = prop_oneof![3 => Just(None), 1 => (1u64..10_000).prop_map(Some)];
    let parts = (0..LANES.len(), priority, delay, ttl, 1..5usize);
    parts.prop_map(|(lane, priority, delay_ms, ttl_ms, count)| Step::Submit { lane, priority, delay_ms, ttl_ms, count })
}

fn step() -> impl Strategy<Value = Step> {
    let how = prop_oneof![Just(How::Done), (0u64..3_000).prop_map(How::Retry), Just(How::Dead), Just(How::Blocked)];
    let change = prop_oneof![Just(Change::Cancel), Just(Change::Unblock), Just(Change::Replay), Just(Change::Discard)];
    prop_oneof![
        6 => submission(),
        6 => (0..LANES.len(), 1..6usize).prop_map(|(lane, max)| Step::Claim { lane, max }),
        8 => (any::<usize>(), how).prop_map(|(which, how)| Step::Settle { which, how }),
        6 => (any::<usize>(), change).prop_map(|(which, change)| Step::Ask { which, change }),
        1 => (0..LANES.len(), any::<bool>()).prop_map(|(lane, paused)| Step::Pause { lane, paused }),
        3 => (1u64..4_000).prop_map(Step::Pass),
        1 => Just(Step::Sweep),
        1 => Just(Step::Crash),
    ]
}

/// A store and what its user knows of it.
struct Machine {
    disk: TestLedger,
    f: Fixture,
    accepted: Vec<JobId>,
    running: Vec<ClaimedJob>,
}

impl Machine {
    async fn new(disk: TestLedger, setup: Setup, accepted: Vec<JobId>) -> Machine {
        let store = disk.open(&setup).await;
        Machine { disk, f: Fixture::over(store, setup), accepted, running: Vec::new() }
    }

    async fn run(&mut self, step: Step) {
        match step {
            Step::Submit { lane, priority, delay_ms, ttl_ms, count } => {
                let now = self.f.now();
                let due_at = now + Duration::from_millis(delay_ms);
                let expires_at = ttl_ms.map(|ms| now + Duration::from_millis(ms));
                let job = || Job { due_at, expires_at, ..self.f.urgent_job(LANES[lane], priority) };
                self.submit((0..count).map(|_| job()).collect()).await;
            }
            Step::Claim { lane, max } => self.claim(LANES[lane], max).await,
            Step::Settle { .. } if self.running.is_empty() => {}
            Step::Settle { which, how } => {
                let claimed = self.running.swap_remove(which % self.running.len());
                self.settle(claimed, how).await;
            }
            Step::Ask { .. } if self.accepted.is_empty() => {}
            Step::Ask { which, change } => self.ask(self.accepted[which % self.accepted.len()], change).await,
            Step::Pause { lane: number, paused } => {
                self.f.store.set_paused(&lane(LANES[number]), paused).await.unwrap();
            }
            Step::Pass(ms) => self.f.advance(Duration::from_millis(ms)),
            Step::Sweep => {
                let swept = self.f.store.sweep().await.unwrap();
                assert!(swept.jobs == 0 && swept.dead_letters.is_empty(), "nothing is that old");
            }
            Step::Crash => *self = self.crash().await,
        }
    }

    async fn submit(&mut self, jobs: Vec<Job>) {
        let ids: Vec<_> = jobs.iter().map(|job| job.id).collect();
        let submitted = self.f.submit_all(jobs).await;
        let accepted = ids.into_iter().zip(submitted).filter(|(_, submitted)| *submitted != Submitted::Full);
        self.accepted.extend(accepted.map(|(id, _)| id));
    }

    async fn claim(&mut self, lane_name: &str, max: usize) {
        for claimed in self.f.claim(lane_name, max).await.jobs {
            let id = claimed.job.id;
            assert!(self.accepted.contains(&id), "{id} was never accepted");
            assert!(self.running.iter().all(|running| running.job.id != id), "{id} runs already");
            self.running.push(claimed);
        }
    }

    async fn settle(&self, claimed: ClaimedJob, how: How) {
        let failure = failure("http_503");
        let transition = match how {
            How::Done => Transition::Done,
            How::Retry(ms) => Transition::Retry { at: self.f.now() + Duration::from_millis(ms), failure },
            How::Dead => Transition::DeadLetter { failure },
            How::Blocked => Transition::Blocked { failure },
        };
        let lane = claimed.job.lane.clone();
        self.f.store.settle(&lane, vec![self.f.settlement(claimed, transition)]).await.unwrap();
    }

    /// Most of what is asked is refused, as it should be; what counts is what the store looks like afterwards.
    async fn ask(&self, id: JobId, change: Change) {
        let store = &self.f.store;
        let result = match change {
            Change::Cancel => store.cancel(id, "asked for").await.map(drop),
            Change::Unblock => store.unblock(id).await,
            Change::Replay => store.replay(id).await,
            Change::Discard => store.discard(id, "asked for").await,
        };
        if let Err(ChangeError::Store(error)) = result {
            panic!("{change:?} of {id}: {error}");
        }
    }

    /// What is left after a crash at this moment.
    async fn crash(&self) -> Machine {
        let left = Machine::new(self.disk.copy(), self.f.setup.clone(), self.accepted.clone()).await;
        left.check().await;
        left
    }

    fn dead(&self) -> BTreeMap<JobId, DeadLetterStatus> {
        let entries = self.disk.rows(DEAD).into_iter();
        let entries = entries.map(|(_, value)| serde_json::from_slice::<DeadLetter>(&value).unwrap());
        entries.map(|entry| (entry.job_id, entry.status)).collect()
    }

    /// Every accepted job is waiting, ended or dead; none is lost, none in two places.
    async fn check(&self) {
        let ids = |table| self.disk.ids(table).into_iter().collect::<BTreeSet<_>>();
        let (live, jobs, dead) = (ids(LIVE), ids(JOBS), self.dead());
        assert!(live.is_subset(&jobs), "what waits can be sent");
        let ended = &jobs - &live;
        let all = live.iter().chain(&ended).chain(dead.keys());
        assert_eq!(all.copied().collect::<BTreeSet<_>>(), self.accepted.iter().copied().collect());
        for &id in &self.accepted {
            let (is_live, has_ended, status) = (live.contains(&id), ended.contains(&id), dead.get(&id));
            let is_right = match status {
                None => is_live != has_ended,
                Some(DeadLetterStatus::Pending | DeadLetterStatus::Discarded) => !is_live && !has_ended,
                Some(DeadLetterStatus::Replaying) => is_live && !has_ended,
                Some(DeadLetterStatus::Replayed) => !is_live && has_ended,
            };
            assert!(is_right, "{id}: live {is_live}, ended {has_ended}, dead letter {status:?}");
            let state = self.f.state(id).await;
            assert_eq!(state.is_end(), !is_live, "{id} is {state}");
            assert_ne!(state, JobState::Running, "{id}: nothing runs after a crash");
        }
    }

    /// Delivers whatever waits; which jobs left their lanes.
    async fn drain(&mut self) -> Vec<JobId> {
        self.f.advance(HOUR);
        let mut left = Vec::new();
        for name in LANES {
            self.f.store.set_paused(&lane(name), false).await.unwrap();
            loop {
                let batch = self.f.claim(name, 100).await;
                if batch.jobs.is_empty() && batch.expired.is_empty() {
                    break;
                }
                left.extend(batch.expired.iter().map(|expired| expired.id));
                for claimed in batch.jobs {
                    left.push(claimed.job.id);
                    self.settle(claimed, How::Done).await;
                }
            }
        }
        self.f.store.flush().await.unwrap();
        left
    }
}

async fn survive(steps: Vec<Step>) {
    let mut machine = Machine::new(TestLedger::default(), Setup::new(), Vec::new()).await;
    for step in steps {
        machine.run(step).await;
    }
    let mut machine = machine.crash().await;
    let mut waiting = Vec::new();
    for id in machine.disk.ids(LIVE) {
        if machine.f.state(id).await != JobState::Blocked {
            waiting.push(id);
        }
    }
    let mut left = machine.drain().await;
    left.sort();
    assert_eq!(left, waiting, "whatever waits goes out, each once");
    machine.crash().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_crash_loses_no_job_and_doubles_none(steps in proptest::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(survive(steps));
    }
}
