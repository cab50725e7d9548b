//! Nodes: two or three share the ledger, and each has troubles of its own.
//! Invariant: drawn from a chance of its own, so that runs of one node are what they were.

use std::time::Duration;

use entrega_core::time::Time;

use super::{End, START, Span, TROUBLE_MS, is_in, ms};

/// Who is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// One node, which has the ledger to itself.
    Alone,
    /// Two or three that share it.
    Several,
    /// The same over a ledger that loses what it had acknowledged.
    Rewound,
}

const NODES_MAX: usize = 3;
const LIVES_MAX: usize = 4;
/// What a seed's chance of nodes begins with beside the seed.
const SALT: u64 = 0x6e6f_6465_735f_6f66;
/// The same for what the ledger loses.
const SALT_OF_REWINDS: u64 = 0x7265_7769_6e64_735f;
const LOST_MS_MAX: u64 = 700;

/// What several nodes do.
#[derive(Clone, Debug)]
pub struct NodesPlan {
    /// How long an owner is waited for.
    pub lease: Duration,
    /// Each of them.
    pub each: Vec<NodePlan>,
    /// One signal in so many is lost.
    pub signals_lost_in: u32,
    /// The ledger loses all that it took from the first moment on, at the second. No two overlap.
    pub rewinds: Vec<Span>,
}

/// What one node does.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// How each life but the last ends, and for how long nobody is there after it.
    pub lives: Vec<(End, Duration)>,
    /// It stands still: none of its tasks is polled, and then they go on where they were.
    pub stalls: Vec<Span>,
    /// The ledger does not answer it, and answers others.
    pub partitions: Vec<Span>,
}

impl NodesPlan {
    /// What a seed says.
    pub fn draw(seed: u64, cast: Cast) -> NodesPlan {
        let rng = &mut fastrand::Rng::with_seed(seed ^ SALT);
        let lease = ms(rng.u64(600..2_000));
        let count = rng.usize(2..=NODES_MAX);
        let each = (0..count).map(|_| NodePlan::draw(rng, lease)).collect();
        let signals_lost_in = if rng.bool() { 10 } else { 1_000 };
        NodesPlan { lease, each, signals_lost_in, rewinds: rewinds(seed, cast) }
    }
}

/// The server loses its last writes, once or twice.
fn rewinds(seed: u64, cast: Cast) -> Vec<Span> {
    let rng = &mut fastrand::Rng::with_seed(seed ^ SALT_OF_REWINDS);
    let count = if cast == Cast::Rewound { rng.u64(1..=2) } else { 0 };
    let share = TROUBLE_MS / 2 - 500;
    let one = |number: u64| {
        let from = START + ms(number * share + rng.u64(0..share - LOST_MS_MAX));
        (from, from + ms(rng.u64(5..LOST_MS_MAX)))
    };
    (0..count).map(one).collect()
}

impl NodePlan {
    fn draw(rng: &mut fastrand::Rng, lease: Duration) -> NodePlan {
        let end = |rng: &mut fastrand::Rng| match rng.u32(0..11) {
            0..4 => End::Stop { after: ms(rng.u64(100..4_000)) },
            4 => End::CutStop { after: ms(rng.u64(100..4_000)), polls: rng.u64(1..300) },
            5..7 => End::Cut { polls: rng.u64(300..20_000) },
            _ => End::Crash { points: rng.u64(60..2_500) },
        };
        let life = |rng: &mut fastrand::Rng| (end(rng), ms(rng.u64(20..4_000)));
        let lease_ms = lease.as_millis() as u64;
        let span = |rng: &mut fastrand::Rng| {
            let from = START + ms(rng.u64(0..TROUBLE_MS - 3_000));
            // Some are over before anybody notices, some take longer than the lease.
            (from, from + ms(rng.u64(lease_ms / 4..lease_ms * 5 / 2)))
        };
        NodePlan {
            lives: (0..rng.usize(0..LIVES_MAX)).map(|_| life(rng)).collect(),
            stalls: (0..rng.usize(0..3)).map(|_| span(rng)).collect(),
            partitions: (0..rng.usize(0..3)).map(|_| span(rng)).collect(),
        }
    }

    /// When the stall ends in which it is now.
    pub fn stalled_until(&self, now: Time) -> Option<Time> {
        self.stalls.iter().filter(|span| is_in(span, now)).map(|span| span.1).max()
    }

    /// When the ledger answers it again.
    pub fn partitioned_until(&self, now: Time) -> Option<Time> {
        self.partitions.iter().filter(|span| is_in(span, now)).map(|span| span.1).max()
    }
}
