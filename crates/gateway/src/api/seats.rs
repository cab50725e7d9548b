//! Seats: the connections there are, and which one gives way to the next.
//! Invariant: at most `max` connections may call anything, and [`RESERVED`] more only health. Whoever comes when all are taken
//! gets the seat of the one that has been idle longest; where none is idle it gets a reserved one, and of those the last is
//! always free for the next.
//! Never: cuts off a call that is under way.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

/// Connections beyond the limit, for health.
pub const RESERVED: usize = 16;
/// No moment: a call is under way.
const BUSY: u64 = 0;

/// All connections, by number.
pub(super) struct Seats {
    max: usize,
    all: HashMap<u64, Arc<Seat>>,
    /// How many stay: of those for any call, and of the reserved ones.
    staying: [usize; 2],
    moments: Arc<AtomicU64>,
    last: u64,
}

/// One connection.
pub(super) struct Seat {
    pub(super) number: u64,
    /// Only health is answered here.
    pub(super) is_reserved: bool,
    /// Since when nothing was asked, in moments of [`Seats`].
    idle_since: AtomicU64,
    /// When it was taken, which is when it has been idle since if nothing was ever asked.
    taken_at: u64,
    moments: Arc<AtomicU64>,
    leaving: CancellationToken,
}

/// A call under way; its connection is idle when this is dropped.
pub(super) struct Occupied(Arc<Seat>);

impl Seats {
    pub(super) fn new(max: usize) -> Seats {
        let moments = Arc::new(AtomicU64::new(BUSY + 1));
        Seats { max: max.max(1), all: HashMap::new(), staying: [0; 2], moments, last: 0 }
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
        let taken_at = self.moments.fetch_add(1, Ordering::Relaxed);
        let seat = Arc::new(Seat {
            number: self.last,
            is_reserved,
            idle_since: AtomicU64::new(taken_at),
            taken_at,
            moments: self.moments.clone(),
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
        let Some((_, seat)) = placed.min_by_key(|(place, _)| *place) else { return false };
        seat.leaving.cancel();
        self.staying[usize::from(is_reserved)] -= 1;
        true
    }
}

impl Seat {
    /// A call begins.
    pub(super) fn occupy(self: &Arc<Seat>) -> Occupied {
        self.idle_since.store(BUSY, Ordering::Release);
        Occupied(self.clone())
    }

    /// Whether anything was ever asked.
    pub(super) fn was_used(&self) -> bool {
        self.idle_since.load(Ordering::Acquire) != self.taken_at
    }

    /// Waits until it is told to leave.
    pub(super) async fn told_to_leave(&self) {
        self.leaving.cancelled().await;
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.0.idle_since.store(self.0.moments.fetch_add(1, Ordering::Relaxed), Ordering::Release);
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
        let mut seats = Seats::new(3);
        let (one, two, three) = (seats.take(), seats.take(), seats.take());
        drop(one.occupy());
        let _busy = two.occupy();
        let four = seats.take();
        assert!(leaves(&three) && !four.is_reserved, "it was never used");
        assert!(!three.was_used() && one.was_used());
        seats.free(three.number);
        seats.take();
        assert!(leaves(&one) && !leaves(&two) && !leaves(&four));
    }

    #[test]
    fn where_all_are_busy_the_next_ones_have_health_and_the_last_place_stays_free() {
        let mut seats = Seats::new(2);
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
