//! The pulse of a life: counts how often the scheduler polls, so that a life can end after any poll of any task.
//! Invariant: while it counts, it is asked after every single poll of a task; time goes on as if it were not there.
//! Never: touches what the tasks do.
//!
//! The runtime has to poll its main future after every task (an event interval of one) for this, and to tell when it
//! wakes up. A main future that always wants to be polled again would keep simulated time from going on, so it must know
//! when there is nothing to do: a task of its own stands in the queue behind all others, and if nobody was before it,
//! everybody waits.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

/// Counts polls in one runtime.
#[derive(Default)]
pub struct Pulse {
    beats: AtomicU64,
    /// At which beat the task at the end of the queue was put there; zero if it is not.
    queued_at: AtomicU64,
    bell: Notify,
    is_idle: AtomicBool,
    /// Wakes the main future when the runtime has slept.
    sleeper: Mutex<Option<Waker>>,
}

impl Pulse {
    /// A runtime on simulated time with a pulse that can be counted.
    pub fn runtime() -> (Runtime, Arc<Pulse>) {
        let pulse = Arc::new(Pulse::default());
        let awoken = pulse.clone();
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .event_interval(1)
            .on_thread_unpark(move || awoken.wake())
            .build()
            .expect("a runtime without I/O needs nothing of the system");
        (runtime, pulse)
    }

    fn wake(&self) {
        let sleeper = self.sleeper.lock().take();
        sleeper.into_iter().for_each(Waker::wake);
    }

    /// Resolves after so many polls; awaited by the runtime's main future, and by nobody else.
    pub async fn stop(self: Arc<Self>, polls: u64) {
        tokio::spawn(self.clone().stand_last());
        poll_fn(|context| {
            let beat = self.beats.fetch_add(1, Ordering::Relaxed) + 1;
            if beat >= polls {
                return Poll::Ready(());
            }
            if self.is_idle.swap(false, Ordering::Relaxed) {
                *self.sleeper.lock() = Some(context.waker().clone());
                return Poll::Pending;
            }
            if self.queued_at.load(Ordering::Relaxed) == 0 {
                self.queued_at.store(beat, Ordering::Relaxed);
                self.bell.notify_one();
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Has the task stand in the queue that tells when everybody waits; before [`Pulse::rest`], once, within the runtime.
    pub fn begin(self: &Arc<Self>) {
        tokio::spawn(self.clone().stand_last());
    }

    /// Lets the runtime go on until everybody waits, without time going on; `false` if it was stopped before, which is asked
    /// after every poll. Awaited by the runtime's main future, and by nobody else.
    pub async fn rest(&self, mut is_over: impl FnMut() -> bool) -> bool {
        poll_fn(|context| {
            if is_over() {
                return Poll::Ready(false);
            }
            if self.is_idle.swap(false, Ordering::Relaxed) {
                return Poll::Ready(true);
            }
            let beat = self.beats.fetch_add(1, Ordering::Relaxed) + 1;
            if self.queued_at.load(Ordering::Relaxed) == 0 {
                self.queued_at.store(beat, Ordering::Relaxed);
                self.bell.notify_one();
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    /// Whoever stands last and is served first was alone.
    async fn stand_last(self: Arc<Self>) {
        loop {
            self.bell.notified().await;
            let queued_at = self.queued_at.swap(0, Ordering::Relaxed);
            self.is_idle.store(queued_at == self.beats.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// How many steps of a task that waits and yields by turns were made before the runtime was stopped.
    fn steps(polls: u64) -> u64 {
        let (runtime, pulse) = Pulse::runtime();
        let steps = Arc::new(AtomicU64::new(0));
        let counted = steps.clone();
        runtime.block_on(async {
            tokio::spawn(async move {
                loop {
                    counted.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    counted.fetch_add(1, Ordering::Relaxed);
                    // reason: time is simulated, and that it goes on is what is tested
                    tokio::time::sleep(Duration::from_hours(1)).await;
                }
            });
            pulse.stop(polls).await;
        });
        steps.load(Ordering::Relaxed)
    }

    #[test]
    fn a_runtime_rests_without_time_going_on() {
        let (runtime, pulse) = Pulse::runtime();
        let steps = Arc::new(AtomicU64::new(0));
        let counted = steps.clone();
        runtime.spawn(async move {
            loop {
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                // reason: time is simulated, and that it stands still is what is tested
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        runtime.block_on(async { pulse.begin() });
        while steps.load(Ordering::Relaxed) == 0 {
            assert!(runtime.block_on(pulse.rest(|| false)));
        }
        for tick in 0..100 {
            assert!(runtime.block_on(pulse.rest(|| false)));
            assert_eq!(steps.load(Ordering::Relaxed), 1 + tick / 10);
            runtime.block_on(tokio::time::advance(Duration::from_millis(1)));
        }
        assert!(!runtime.block_on(pulse.rest(|| true)), "it was stopped at once");
    }

    #[test]
    fn a_life_can_end_between_any_two_awaits_and_time_goes_on() {
        let seen: Vec<u64> = (1..200).map(steps).collect();
        assert!(seen.is_sorted());
        let last = *seen.last().unwrap();
        assert!(last > 20, "an hour was slept often: {last}");
        assert!((0..=last).all(|step| seen.contains(&step)), "some await was never the last: {seen:?}");
        assert_eq!(seen, (1..200).map(steps).collect::<Vec<_>>());
    }
}
