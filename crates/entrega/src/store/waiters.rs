//! Callers who wait until a job rests: it has ended or is blocked.
//! Invariant: whoever waits is told once; whoever goes away is forgotten at once.
//! Never: knows why a job rests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use entrega_core::id::JobId;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Who waits for which job.
#[derive(Default)]
pub(super) struct Waiters {
    /// How many jobs are waited for, so that nobody locks to learn that there is none.
    waiting: AtomicU32,
    by_job: Mutex<HashMap<JobId, watch::Sender<()>>>,
}

/// One of them; leaves when dropped.
pub(super) struct Waiter<'a> {
    waiters: &'a Waiters,
    id: JobId,
    /// Taken out first when it leaves, so that it is not counted any more.
    bell: Option<watch::Receiver<()>>,
}

impl Waiter<'_> {
    pub(super) async fn notified(mut self) {
        if let Some(bell) = &mut self.bell {
            // Nothing is ever sent: the sender is dropped when the job rests, and when the store has stopped.
            drop(bell.changed().await);
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        drop(self.bell.take());
        let mut by_job = self.waiters.by_job.lock();
        if by_job.get(&self.id).is_some_and(|bell| bell.receiver_count() == 0) {
            by_job.remove(&self.id);
            self.waiters.waiting.store(by_job.len() as u32, Ordering::Release);
        }
    }
}

impl Waiters {
    pub(super) fn wait(&self, id: JobId) -> Waiter<'_> {
        let mut by_job = self.by_job.lock();
        let bell = by_job.entry(id).or_insert_with(|| watch::Sender::new(())).subscribe();
        self.waiting.store(by_job.len() as u32, Ordering::Release);
        Waiter { waiters: self, id, bell: Some(bell) }
    }

    /// Everybody looks again: the store has stopped, or it cannot be known what was missed.
    pub(super) fn notify_all(&self) {
        let mut by_job = self.by_job.lock();
        by_job.clear();
        self.waiting.store(0, Ordering::Release);
    }

    pub(super) fn notify(&self, ended: &[JobId]) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut by_job = self.by_job.lock();
        // Dropping a sender tells its receiver.
        ended.iter().for_each(|id| drop(by_job.remove(id)));
        self.waiting.store(by_job.len() as u32, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> JobId {
        JobId::from_parts(entrega_core::time::Time::ZERO, number)
    }

    /// Every long poll walked over all others to find those that had gone away.
    #[test]
    fn whoever_goes_away_is_forgotten_at_once() {
        let waiters = Waiters::default();
        let (one, other, elsewhere) = (waiters.wait(id(1)), waiters.wait(id(1)), waiters.wait(id(2)));
        assert_eq!(waiters.waiting.load(Ordering::Acquire), 2);
        drop(one);
        assert_eq!(waiters.by_job.lock()[&id(1)].receiver_count(), 1);
        drop(other);
        assert!(!waiters.by_job.lock().contains_key(&id(1)));
        assert_eq!(waiters.waiting.load(Ordering::Acquire), 1);
        drop(elsewhere);
        assert_eq!(waiters.waiting.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn everybody_who_waits_for_a_job_is_told_and_nobody_else() {
        let waiters = Waiters::default();
        let told = [waiters.wait(id(1)), waiters.wait(id(1))];
        let other = waiters.wait(id(2));
        waiters.notify(&[id(1)]);
        let later = waiters.wait(id(1));
        for waiter in told {
            waiter.notified().await;
        }
        assert_eq!(waiters.waiting.load(Ordering::Acquire), 2, "one that was told takes no later one along");
        for waiter in [other, later] {
            assert!(futures_util::FutureExt::now_or_never(waiter.notified()).is_none());
        }
    }
}
