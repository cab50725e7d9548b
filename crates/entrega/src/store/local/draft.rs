//! Drafts: groups as they are put together, and what is done once they are durable.
//! Invariant: what must take effect together is in one group, and lanes that have nothing to do with one another are in
//! groups of their own: that somebody else owns one of them does not hold up the others.

use std::collections::HashMap;
use std::sync::Arc;

use entrega_core::id::JobId;
use entrega_core::lane::Left;
use entrega_ledger::{Group, Op, Room, Shard, Table, Unit, Verdict};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::command::{NotWritten, Retried, Taken, Then};
use super::hold::Hold;
use super::lanes::OwnedLane;
use super::records::id_key;

/// One group to be.
pub(super) struct Part {
    pub(super) room: Room,
    pub(super) holds: Vec<Arc<Hold>>,
    pub(super) units: Vec<Unit>,
    /// Lanes that get new jobs by it.
    pub(super) gets_jobs: Vec<Arc<OwnedLane>>,
    /// Units that take effect only under conditions, and what they are about.
    pub(super) guarded: Vec<Guarded>,
    /// New jobs, which leave again if they are refused.
    pub(super) staged: Vec<(Arc<OwnedLane>, JobId)>,
    /// Jobs that had to leave for new ones, which come back if those are refused.
    pub(super) pushed_out: Vec<(Arc<OwnedLane>, JobId)>,
    /// Jobs that rest, and whose they are.
    pub(super) ended: Vec<JobId>,
    pub(super) lanes: Vec<Arc<OwnedLane>>,
    pub(super) retried: Vec<Retried>,
    pub(super) answers: Vec<Answer>,
}

/// A job that is there only if its unit took effect.
pub(super) struct Guarded {
    pub(super) unit: usize,
    pub(super) lane: Arc<OwnedLane>,
    pub(super) id: JobId,
    /// Which answer is about it, and which part of that.
    pub(super) answer: Option<(usize, usize)>,
}

/// What callers are told once a group is durable, or is not going to be.
pub(super) enum Answer {
    /// New jobs.
    Taken(oneshot::Sender<Vec<Taken>>, Vec<Taken>, OwnedSemaphorePermit),
    /// New jobs of other nodes' lanes: the unit of each.
    Handed(oneshot::Sender<Result<Vec<bool>, NotWritten>>, Vec<Option<usize>>, OwnedSemaphorePermit),
    /// Attempts that ended.
    Settled(OwnedSemaphorePermit),
    /// Anything else: its units that had conditions, and what happens in memory if the first took effect.
    Changed(Option<oneshot::Sender<Result<Vec<bool>, NotWritten>>>, Vec<Option<usize>>, Option<Then>),
    /// Jobs that came by the inbox of a lane, and those that had to leave for them.
    Arrived(oneshot::Sender<()>, Arc<OwnedLane>, Vec<Left>),
}

impl Part {
    fn new(room: Room, hold: Arc<Hold>) -> Part {
        Part {
            room,
            holds: vec![hold],
            units: Vec::new(),
            gets_jobs: Vec::new(),
            guarded: Vec::new(),
            staged: Vec::new(),
            pushed_out: Vec::new(),
            ended: Vec::new(),
            lanes: Vec::new(),
            retried: Vec::new(),
            answers: Vec::new(),
        }
    }

    /// The unit that whatever has no conditions goes into.
    pub(super) fn plain(&mut self) -> &mut Unit {
        if self.units.last().is_none_or(|unit| !unit.when.is_empty()) {
            self.units.push(Unit::default());
        }
        self.units.last_mut().expect("there is one now")
    }

    /// Adds a unit; its place, if it has conditions.
    pub(super) fn add(&mut self, unit: Unit) -> Option<usize> {
        if !unit.when.is_empty() {
            self.units.push(unit);
            return Some(self.units.len() - 1);
        }
        let plain = self.plain();
        match plain.ops.is_empty() {
            true => plain.ops = unit.ops,
            false => plain.ops.extend(unit.ops),
        }
        None
    }

    /// Adds a unit that decides whether a job is there.
    pub(super) fn guard(&mut self, unit: Unit, lane: &Arc<OwnedLane>, id: JobId, answer: Option<(usize, usize)>) {
        if let Some(unit) = self.add(unit) {
            self.guarded.push(Guarded { unit, lane: lane.clone(), id, answer });
        }
    }

    pub(super) fn gets_jobs(&mut self, lane: &Arc<OwnedLane>) {
        add_once(&mut self.gets_jobs, lane);
    }

    /// Jobs of a lane rest.
    pub(super) fn rest(&mut self, lane: &Arc<OwnedLane>, ended: impl IntoIterator<Item = JobId>) {
        add_once(&mut self.lanes, lane);
        self.ended.extend(ended);
    }

    /// Takes over all of another part.
    fn absorb(&mut self, other: Part) {
        let (units, answers) = (self.units.len(), self.answers.len());
        let later = |place: &mut Option<usize>| *place = place.map(|place| place + units);
        self.units.extend(other.units);
        self.guarded.extend(other.guarded.into_iter().map(|guarded| Guarded {
            unit: guarded.unit + units,
            answer: guarded.answer.map(|(answer, place)| (answer + answers, place)),
            ..guarded
        }));
        self.answers.extend(other.answers.into_iter().map(|mut answer| {
            if let Answer::Handed(_, places, _) | Answer::Changed(_, places, _) = &mut answer {
                places.iter_mut().for_each(later);
            }
            answer
        }));
        other.gets_jobs.iter().for_each(|lane| self.gets_jobs(lane));
        other.lanes.iter().for_each(|lane| add_once(&mut self.lanes, lane));
        self.holds.extend(other.holds);
        self.staged.extend(other.staged);
        self.pushed_out.extend(other.pushed_out);
        self.ended.extend(other.ended);
        self.retried.extend(other.retried);
    }

    /// The ownership of a shard that it is written under.
    pub(super) fn hold_of(&self, shard: &Shard) -> Option<&Arc<Hold>> {
        self.holds.iter().find(|hold| hold.shard == *shard)
    }

    /// The group that is written.
    pub(super) fn group(&mut self) -> Group {
        Group { fences: self.holds.iter().map(|hold| hold.next()).collect(), units: std::mem::take(&mut self.units) }
    }
}

/// All groups that are written next.
pub(super) struct Draft {
    parts: Vec<Option<Part>>,
    places: HashMap<(Shard, bool), usize>,
    /// The part that was asked for last: most commands in a row are of one lane.
    last: usize,
    /// Whether new work is written apart from what must be written whatever the room.
    is_parted: bool,
}

impl Draft {
    pub(super) fn new(is_parted: bool) -> Draft {
        Draft { parts: Vec::new(), places: HashMap::new(), last: 0, is_parted }
    }

    /// The part that is written under a hold.
    pub(super) fn part(&mut self, hold: &Arc<Hold>, room: Room) -> &mut Part {
        let room = if self.is_parted { room } else { Room::Must };
        let is_it = |part: &Part| part.room == room && Arc::ptr_eq(&part.holds[0], hold);
        if self.parts.get(self.last).and_then(Option::as_ref).is_some_and(is_it) {
            return self.parts[self.last].as_mut().expect("it is there");
        }
        self.last = *self.places.entry((hold.shard.clone(), room == Room::New)).or_insert_with(|| {
            self.parts.push(Some(Part::new(room, hold.clone())));
            self.parts.len() - 1
        });
        self.parts[self.last].as_mut().expect("a place leads to a part")
    }

    /// The part that is written under both holds, whatever the room.
    pub(super) fn joined(&mut self, first: &Arc<Hold>, second: &Arc<Hold>) -> &mut Part {
        self.part(first, Room::Must);
        self.part(second, Room::Must);
        let (to, from) = (self.places[&(first.shard.clone(), false)], self.places[&(second.shard.clone(), false)]);
        if to != from {
            let moved = self.parts[from].take().expect("a place leads to a part");
            self.places.values_mut().filter(|place| **place == from).for_each(|place| *place = to);
            self.parts[to].as_mut().expect("a place leads to a part").absorb(moved);
        }
        self.part(first, Room::Must)
    }

    /// Whether a job of a lane is new, and on its way to the ledger.
    pub(super) fn is_new(&self, lane: &OwnedLane, id: JobId) -> bool {
        let place = self.places.get(&(lane.hold.shard.clone(), true));
        let part = place.and_then(|place| self.parts[*place].as_ref());
        part.is_some_and(|part| part.staged.iter().any(|(_, staged)| *staged == id))
    }

    /// What a job carries that is on its way to the ledger.
    pub(super) fn pending(&self, table: Table, id: JobId) -> Option<&[u8]> {
        let key = id_key(id);
        let units = self.parts.iter().flatten().flat_map(|part| &part.units);
        units.rev().flat_map(|unit| unit.ops.iter().rev()).find_map(|op| match op {
            Op::Put(at, of, bytes) if *at == table && *of == key => Some(&**bytes),
            _ => None,
        })
    }

    /// Its parts, those first that must be written.
    pub(super) fn into_parts(self) -> (Vec<Part>, Vec<Part>) {
        self.parts.into_iter().flatten().partition(|part| part.room == Room::Must)
    }
}

fn add_once(lanes: &mut Vec<Arc<OwnedLane>>, lane: &Arc<OwnedLane>) {
    if !lanes.iter().any(|known| Arc::ptr_eq(known, lane)) {
        lanes.push(lane.clone());
    }
}

/// Whether units took effect; those without conditions did.
pub(super) fn took_effect(places: &[Option<usize>], verdicts: &[Verdict]) -> Vec<bool> {
    places.iter().map(|place| place.is_none_or(|place| verdicts[place] == Verdict::Done)).collect()
}
