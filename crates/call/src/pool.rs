//! The pool: connections that wait for their next call.
//! Invariant: at most `per_origin_max` wait for one origin and `total_max` in all; where one is too many, the one that has
//! waited longest is closed. None waits longer than `timeout`, whether anybody calls or not.
//! Never: opens a connection; holds its lock while one is closed; keeps a task while nothing waits.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use entrega_core::time::Time;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::clock::Clock;
use crate::origin::Origin;

/// So many origins may be listed without a connection before any is forgotten.
const ORIGINS_MIN: usize = 64;

/// How many connections may wait, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolLimits {
    pub(crate) per_origin_max: usize,
    pub(crate) total_max: usize,
    pub(crate) timeout: Duration,
}

/// Waiting connections of type `C`; dropping one closes it.
#[derive(Debug)]
pub(crate) struct Pool<C> {
    limits: PoolLimits,
    clock: Clock,
    waiting: Mutex<Waiting<C>>,
}

#[derive(Debug)]
struct Waiting<C> {
    /// By the number of their arrival, so the first has waited longest.
    all: BTreeMap<u64, Idle<C>>,
    /// The numbers of each origin, in order. An origin without any stays for its next connection, for a while.
    by_origin: HashMap<Origin, VecDeque<u64>>,
    arrivals: u64,
    /// The task that closes what has waited too long, while something waits.
    reaper: Option<AbortHandle>,
}

#[derive(Debug)]
struct Idle<C> {
    origin: Origin,
    since: Time,
    connection: C,
}

impl<C: Send + 'static> Pool<C> {
    pub(crate) fn new(limits: PoolLimits, clock: Clock) -> Arc<Pool<C>> {
        let waiting = Waiting { all: BTreeMap::new(), by_origin: HashMap::new(), arrivals: 0, reaper: None };
        Arc::new(Pool { limits, clock, waiting: Mutex::new(waiting) })
    }

    /// Takes out the connection to `origin` that came last: of many, the fewest stay in use.
    pub(crate) fn check_out(&self, origin: &Origin) -> Option<C> {
        Some(self.waiting().remove_newest(origin)?.connection)
    }

    /// Lets a connection wait, and closes another where that is one too many.
    pub(crate) fn check_in(self: &Arc<Self>, origin: Origin, connection: C) {
        let idle = Idle { origin, since: self.clock.now(), connection };
        // Closed after the lock is free again.
        let _too_many = self.put(idle);
    }

    /// Closes the connection that has waited longest, if any waits.
    pub(crate) fn close_oldest(&self) {
        // Closed after the lock is free again.
        let _oldest = self.waiting().remove_oldest();
    }

    fn put(self: &Arc<Self>, idle: Idle<C>) -> Option<Idle<C>> {
        let PoolLimits { per_origin_max, total_max, .. } = self.limits;
        if per_origin_max == 0 || total_max == 0 {
            return Some(idle);
        }
        let mut waiting = self.waiting();
        let too_many = if waiting.count_of(&idle.origin) >= per_origin_max {
            waiting.remove_oldest_of(&idle.origin)
        } else if waiting.all.len() >= total_max {
            waiting.remove_oldest()
        } else {
            None
        };
        waiting.insert(idle);
        // One that was stopped from outside, with its runtime, counts as none.
        if waiting.reaper.as_ref().is_none_or(AbortHandle::is_finished) {
            waiting.reaper = Some(tokio::spawn(reap(Arc::downgrade(self))).abort_handle());
        }
        too_many
    }

    /// Closes what has waited too long and says when the next will have; `None` when nothing waits any more.
    fn close_expired(&self) -> Option<Instant> {
        let mut expired = Vec::new();
        let mut waiting = self.waiting();
        let now = self.clock.now();
        while waiting.all.first_key_value().is_some_and(|(_, idle)| self.is_expired(idle, now)) {
            expired.extend(waiting.remove_oldest());
        }
        let next = waiting.all.first_key_value().map(|(_, idle)| idle.since + self.limits.timeout);
        waiting.forget_empty_origins();
        if next.is_none() {
            waiting.reaper = None;
        }
        drop(waiting);
        drop(expired);
        next.map(|next| self.clock.instant(next))
    }

    fn is_expired(&self, idle: &Idle<C>, now: Time) -> bool {
        now >= idle.since + self.limits.timeout
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<C>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes what has waited too long, until nothing waits or the pool is gone.
async fn reap<C: Send + 'static>(pool: Weak<Pool<C>>) {
    while let Some(next) = pool.upgrade().and_then(|pool| pool.close_expired()) {
        sleep_until(next).await;
    }
}

impl<C> Drop for Pool<C> {
    fn drop(&mut self) {
        let waiting = self.waiting.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(reaper) = &waiting.reaper {
            reaper.abort();
        }
    }
}

impl<C> Waiting<C> {
    fn count_of(&self, origin: &Origin) -> usize {
        self.by_origin.get(origin).map_or(0, VecDeque::len)
    }

    fn insert(&mut self, idle: Idle<C>) {
        self.arrivals += 1;
        match self.by_origin.get_mut(&idle.origin) {
            Some(numbers) => numbers.push_back(self.arrivals),
            None => {
                // Twice as many as there are connections: so it is seldom done, and few are forgotten too soon.
                if self.by_origin.len() >= 2 * self.all.len() + ORIGINS_MIN {
                    self.forget_empty_origins();
                }
                self.by_origin.insert(idle.origin.clone(), VecDeque::from([self.arrivals]));
            }
        }
        self.all.insert(self.arrivals, idle);
    }

    fn forget_empty_origins(&mut self) {
        self.by_origin.retain(|_, numbers| !numbers.is_empty());
    }

    fn remove_newest(&mut self, origin: &Origin) -> Option<Idle<C>> {
        let number = self.by_origin.get_mut(origin)?.pop_back()?;
        self.all.remove(&number)
    }

    fn remove_oldest_of(&mut self, origin: &Origin) -> Option<Idle<C>> {
        let number = self.by_origin.get_mut(origin)?.pop_front()?;
        self.all.remove(&number)
    }

    fn remove_oldest(&mut self) -> Option<Idle<C>> {
        let origin = self.all.first_key_value()?.1.origin.clone();
        self.remove_oldest_of(&origin)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// A connection that is remembered as closed when it is dropped.
    #[derive(Debug)]
    struct Numbered {
        number: u32,
        closed: Arc<Mutex<Vec<u32>>>,
    }

    impl Drop for Numbered {
        fn drop(&mut self) {
            self.closed.lock().unwrap().push(self.number);
        }
    }

    struct World {
        pool: Arc<Pool<Numbered>>,
        closed: Arc<Mutex<Vec<u32>>>,
    }

    impl World {
        fn new(per_origin_max: usize, total_max: usize) -> World {
            let limits = PoolLimits { per_origin_max, total_max, timeout: TIMEOUT };
            World { pool: Pool::new(limits, Clock::system()), closed: Arc::default() }
        }

        fn check_in(&self, host: &str, number: u32) {
            self.pool.check_in(origin(host), Numbered { number, closed: Arc::clone(&self.closed) });
        }

        /// Takes a connection out for good; it does not count as closed.
        fn check_out(&self, host: &str) -> Option<u32> {
            let mut taken = self.pool.check_out(&origin(host))?;
            taken.closed = Arc::default();
            Some(taken.number)
        }

        fn closed(&self) -> Vec<u32> {
            self.closed.lock().unwrap().clone()
        }

        fn has_reaper(&self) -> bool {
            self.pool.waiting().reaper.is_some()
        }
    }

    fn origin(host: &str) -> Origin {
        Origin::split(format!("https://{host}/").parse().unwrap()).unwrap().0
    }

    /// Lets the reaper run.
    async fn advance_and_reap(by: Duration) {
        // Its timer is registered before time passes.
        tokio::task::yield_now().await;
        advance(by).await;
        tokio::task::yield_now().await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_came_last_goes_first_and_none_goes_elsewhere() {
        let world = World::new(10, 10);
        for (host, number) in [("a", 1), ("b", 2), ("a", 3), ("a", 4)] {
            world.check_in(host, number);
        }
        assert_eq!(world.check_out("c"), None);
        let taken: Vec<_> = std::iter::from_fn(|| world.check_out("a")).collect();
        assert_eq!((taken, world.check_out("b")), (vec![4, 3, 1], Some(2)));
        assert!(world.closed().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_too_many_for_its_origin_closes_that_origins_oldest() {
        let world = World::new(2, 10);
        for (host, number) in [("b", 1), ("a", 2), ("a", 3), ("a", 4), ("a", 5)] {
            world.check_in(host, number);
        }
        assert_eq!(world.closed(), [2, 3]);
        assert_eq!((world.check_out("a"), world.check_out("b")), (Some(5), Some(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn one_too_many_in_all_closes_the_oldest_of_all() {
        let world = World::new(2, 3);
        for (host, number) in [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("b", 5)] {
            world.check_in(host, number);
        }
        assert_eq!(world.closed(), [1, 2]);
        // Where the origin's own limit is met as well, one leaves and not two.
        world.check_in("b", 6);
        world.check_in("b", 7);
        assert_eq!(world.closed(), [1, 2, 3, 5]);
        assert_eq!((world.check_out("d"), world.check_out("b"), world.check_out("b")), (Some(4), Some(7), Some(6)));
    }

    #[tokio::test(start_paused = true)]
    async fn without_room_none_is_kept_and_no_task_is_started() {
        for (per_origin_max, total_max) in [(0, 10), (10, 0)] {
            let world = World::new(per_origin_max, total_max);
            world.check_in("a", 1);
            assert_eq!((world.check_out("a"), world.closed(), world.has_reaper()), (None, vec![1], false));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_is_closed_when_its_own_time_is_over_though_nobody_calls() {
        let world = World::new(10, 10);
        world.check_in("a", 1);
        advance_and_reap(TIMEOUT / 2).await;
        world.check_in("b", 2);
        advance_and_reap(TIMEOUT / 2 - Duration::from_millis(1)).await;
        assert!(world.closed().is_empty());
        advance_and_reap(Duration::from_millis(2)).await;
        assert_eq!(world.closed(), [1]);
        advance_and_reap(TIMEOUT / 2).await;
        assert_eq!(world.closed(), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_reaper_ends_when_nothing_waits_and_another_begins_with_the_next() {
        let world = World::new(10, 10);
        for number in 1..=3 {
            world.check_in("a", number);
            assert!(world.has_reaper());
            advance_and_reap(TIMEOUT + Duration::from_millis(1)).await;
            assert!(!world.has_reaper());
            assert_eq!(world.closed().len(), number as usize);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn origins_without_a_connection_are_few_and_forgotten_in_time() {
        let world = World::new(10, 3);
        for number in 0..1000 {
            world.check_in(&format!("host-{number}"), number);
            assert!(world.pool.waiting().by_origin.len() <= 2 * 3 + ORIGINS_MIN + 1);
        }
        advance_and_reap(TIMEOUT + Duration::from_millis(1)).await;
        assert!(world.pool.waiting().by_origin.is_empty() && world.pool.waiting().all.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_reaper_ends_with_the_pool_and_keeps_it_for_nobody() {
        let world = World::new(10, 10);
        world.check_in("a", 1);
        tokio::task::yield_now().await;
        let reaper = world.pool.waiting().reaper.clone().unwrap();
        let World { pool, closed } = world;
        drop(pool);
        assert_eq!(*closed.lock().unwrap(), [1]);
        tokio::task::yield_now().await;
        assert!(reaper.is_finished());
    }

    #[test]
    fn a_runtime_that_ends_takes_the_reaper_along_and_the_next_starts_one() {
        let world = World::new(10, 10);
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime().block_on(async { world.check_in("a", 1) });
        runtime().block_on(async {
            world.check_in("a", 2);
            advance_and_reap(TIMEOUT * 2).await;
        });
        assert_eq!(world.closed(), [1, 2]);
    }
}
