//! Rewinds: the ledger loses what it took in a while, under nodes that live, as a server does that had not written it down.
//! Invariant: a state that comes back is one that there was, owners and numbers included.

use std::collections::BTreeSet;

use entrega::store::local::tables::REGISTRY;
use entrega_core::name::LaneName;
use entrega_core::time::Time;
use entrega_ledger::{Group, HeapLedger, HeapState, Key, Rows, Scan, Shard, Unit};

use crate::disk::Disk;
use crate::life::World;
use crate::plan::Span;
use crate::witness::Memory;

/// What the keys of endpoints begin with.
const ENDPOINTS: &[u8] = b"endpoint/";

/// A state that may come back, and what was known then.
struct Kept {
    state: HeapState,
    disk: Disk,
    memory: Memory,
}

/// Sees to all rewinds of a run.
pub struct Rewinder {
    spans: Vec<Span>,
    kept: Option<Kept>,
}

impl Rewinder {
    /// Of a run.
    pub fn new(world: &World) -> Rewinder {
        let mut spans = world.plan.nodes.as_ref().map_or_else(Vec::new, |nodes| nodes.rewinds.clone());
        spans.reverse();
        Rewinder { spans, kept: None }
    }

    /// Between two steps of all nodes.
    pub fn go_on(&mut self, world: &World, now: Time) {
        let Some(&(from, at)) = self.spans.last() else { return };
        if now >= at {
            self.spans.pop();
            self.kept.take().into_iter().for_each(|kept| rewind(world, now, kept));
        } else if now >= from && self.kept.is_none() {
            let state = world.heap.lock().state();
            let (disk, memory) = (world.disk.lock().clone(), world.witness.lock().memory(now));
            self.kept = Some(Kept { state, disk, memory });
        }
    }
}

/// Whoever listens finds that its endpoint is gone, and sets it up again at once.
fn set_up_again(world: &World, heap: &HeapLedger, endpoints: &Rows) {
    let mut unit = Unit::default();
    for (key, value) in endpoints.iter().take_while(|(key, _)| key.starts_with(ENDPOINTS)) {
        unit.put(REGISTRY, Key::Text(String::from_utf8_lossy(key).into_owned()), value.to_vec());
    }
    unit.put(REGISTRY, Key::Text("version".into()), format!("set up again {}", world.next_ticket()).into_bytes());
    let applied = heap.apply(&[Group { fences: Vec::new(), units: vec![unit] }]);
    applied.expect("a group without fences is applied");
}

fn rewind(world: &World, now: Time, kept: Kept) {
    let heap = world.heap.lock().clone();
    let before = heap.state();
    let (mut written, mut disowned) = (BTreeSet::<LaneName>::new(), BTreeSet::new());
    for lane in world.plan.lanes.keys() {
        let shard = Shard::new(&format!("lane/{lane}"));
        let ((then, wrote), (owner, writes)) = (kept.state.owner(&shard), before.owner(&shard));
        if owner != then {
            disowned.insert(lane.clone());
        } else if wrote != writes {
            written.insert(lane.clone());
        }
    }
    let endpoints = heap.rows(REGISTRY, Scan::UpFrom(ENDPOINTS), usize::MAX, usize::MAX);
    heap.rewind(&kept.state);
    set_up_again(world, &heap, &endpoints);
    let mut disk = world.disk.lock();
    let handed_in = std::mem::take(&mut disk.handed_in);
    *disk = Disk { handed_in, ..kept.disk };
    world.witness.lock().rewound(now, kept.memory, &disk, written, disowned);
}
