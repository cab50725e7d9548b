//! Seats: the connections there are, and which one gives way to the next.
//! Invariant: at most `max` connections may call anything, and [`RESERVED`] more only health. Whoever comes when all are taken
//! gets the seat of the one that has been idle longest; where none is idle it gets a reserved one, and of those the last is
//! always free for the next.
//! Never: cuts off a call that is under way, or somebody who has just come and is about to ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use entrega_call::{Clock, Time};
use tokio_util::sync::CancellationToken;

/// Connections beyond the limit, for health.
pub const RESERVED: usize = 16;
/// No moment: a call is under way.
const BUSY: u64 = 0;
/// How long whoever was told to leave may have been idle before it does: what it asks may be on its way.
const GRACE: Duration = Duration::from_millis(500);
/// The same on reserved seats, which are for those who ask at once.
const RESERVED_GRACE: Duration = Duration::from_millis(50);

/// All connections, by number.
pub(super) struct Seats {
    max: usize,
    all: HashMap<u64, Arc<Seat>>,
    /// How many stay: of those for any call, and of the reserved ones.
    staying: [usize; 2],
    clock: Clock,
    last: u64,
}

/// One connection.
pub(super) struct Seat {
    pub(super) number: u64,
    /// Only health is answered here.
    pub(super) is_reserved: bool,
    /// Since when nothing was asked, in microseconds.
    idle_since: AtomicU64,
    was_used: AtomicBool,
    clock: Clock,
    leaving: CancellationToken,
}

/// A call under way; its connection is idle when this is dropped.
pub(super) struct Occupied(Arc<Seat>);

impl Seats {
    pub(super) fn new(max: usize, clock: Clock) -> Seats {
        Seats { max: max.max(1), all: HashMap::new(), staying: [0; 2], clock, last: 0 }
    }

    /// As many connections as may be there at once, those that are about to leave included.
    pub(super) fn limit(&self) -> usize {
        self.max + RESERVED
    }

    /// A seat for one more. Somebody else is told to leave where there are too many.
    pub(super) fn take(&mut self) -> Arc<Seat> {
        let is_reserved = self.staying[0] >= self.max && !self.send_off_idle();
        if is_reserved && self.staying[1] + 1 >= RESERVED {
            self.send_off_reserved();
        }
        self.last += 1;
        self.staying[usize::from(is_reserved)] += 1;
        let seat = Arc::new(Seat {
            number: self.last,
            is_reserved,
            idle_since: AtomicU64::new(self.clock.now().as_micros()),
            was_used: AtomicBool::new(false),
            clock: self.clock.clone(),
            leaving: CancellationToken::new(),
        });
        self.all.insert(seat.number, seat.clone());
        seat
    }

    /// A connection has ended.
    pub(super) fn free(&mut self, number: u64) {
        if let Some(seat) = self.all.remove(&number)
            && !seat.leaving.is_cancelled()
        {
            self.staying[usize::from(seat.is_reserved)] -= 1;
        }
    }

    /// A connection has ended without saying which it was.
    pub(super) fn free_abandoned(&mut self) {
        let abandoned = self.all.values().filter(|seat| Arc::strong_count(seat) == 1).map(|seat| seat.number);
        for number in abandoned.collect::<Vec<u64>>() {
            self.free(number);
        }
    }

    /// Tells the one to leave that has been idle longest; `false` if none is idle.
    fn send_off_idle(&mut self) -> bool {
        let idle_since = |seat: &Arc<Seat>| seat.idle_since.load(Ordering::Acquire);
        self.send_off(false, |seat| Some(idle_since(seat)).filter(|since| *since != BUSY))
    }

    fn send_off_reserved(&mut self) {
        self.send_off(true, |seat| Some(seat.number));
    }

    /// Tells the first of those to leave that have a place in this order.
    fn send_off(&mut self, is_reserved: bool, place: impl Fn(&Arc<Seat>) -> Option<u64>) -> bool {
        let stays = |seat: &&Arc<Seat>| seat.is_reserved == is_reserved && !seat.leaving.is_cancelled();
        let placed = self.all.values().filter(stays).filter_map(|seat| Some((place(seat)?, seat)));
        let Some((_, seat)) = placed.min_by_key(|(place, seat)| (*place, seat.number)) else { return false };
        seat.leaving.cancel();
        self.staying[usize::from(is_reserved)] -= 1;
        true
    }
}

impl Seat {
    /// A call begins.
    pub(super) fn occupy(self: &Arc<Seat>) -> Occupied {
        self.idle_since.store(BUSY, Ordering::Release);
        self.was_used.store(true, Ordering::Release);
        Occupied(self.clone())
    }

    /// Whether anything was ever asked.
    pub(super) fn was_used(&self) -> bool {
        self.was_used.load(Ordering::Acquire)
    }

    /// Whether it leaves after what is under way.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_cancelled()
    }

    /// Waits until it has been told to leave and nothing that it asks can be on its way.
    pub(super) async fn must_leave(&self) {
        self.leaving.cancelled().await;
        let idle_since = self.idle_since.load(Ordering::Acquire);
        if idle_since != BUSY {
            let grace = if self.is_reserved { RESERVED_GRACE } else { GRACE };
            tokio::time::sleep_until(self.clock.instant(Time::from_micros(idle_since) + grace)).await;
        }
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.clock.now().as_micros(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(seat: &Seat) -> bool {
        seat.leaving.is_cancelled()
    }

    #[test]
    fn the_one_that_has_been_idle_longest_gives_way() {
        let clock = Clock::manual(Time::from_millis(1_700_000_000_000));
        let mut seats = Seats::new(3, clock.clone());
        let (one, two, three) = (seats.take(), seats.take(), seats.take());
        clock.advance(GRACE);
        drop(one.occupy());
        let _busy = two.occupy();
        let four = seats.take();
        assert!(leaves(&three) && !four.is_reserved, "it was never used");
        assert!(!three.was_used() && one.was_used());
        seats.free(three.number);
        seats.take();
        assert!(leaves(&one) && !leaves(&two) && !leaves(&four));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_has_just_come_may_still_ask() {
        let clock = Clock::system();
        let mut seats = Seats::new(1, clock.clone());
        let (first, asked_at) = (seats.take(), clock.now());
        let second = seats.take();
        first.must_leave().await;
        assert!(clock.now().since(asked_at) >= GRACE, "it has a moment");
        // reason: paused time
        tokio::time::sleep(GRACE).await;
        let now = clock.now();
        seats.take();
        second.must_leave().await;
        assert!(clock.now().since(now) < GRACE / 2, "and one that was silent for long has none");
    }

    #[test]
    fn where_all_are_busy_the_next_ones_have_health_and_the_last_place_stays_free() {
        let mut seats = Seats::new(2, Clock::system());
        let taken = [seats.take(), seats.take()];
        let busy = taken.each_ref().map(Seat::occupy);
        let reserved: Vec<Arc<Seat>> = (0..RESERVED - 1).map(|_| seats.take()).collect();
        assert!(reserved.iter().all(|seat| seat.is_reserved && !leaves(seat)));
        assert!(seats.take().is_reserved);
        assert!(leaves(&reserved[0]) && !leaves(&reserved[1]), "the first of them makes room");
        assert!(!taken.iter().any(|seat| leaves(seat)));
        drop(busy);
        assert!(!seats.take().is_reserved, "one that became idle gives way again");
        assert!(leaves(&taken[0]) || leaves(&taken[1]));
    }
}
