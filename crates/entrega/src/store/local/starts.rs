//! The last starts of throttled and paced lanes, for whoever owns them next.
//! Invariant: where nodes share the ledger, starts are written down before they are made, so that no owner's end hides one.
//! Where a process has the ledger to itself they are in it only while nothing is started: written when the store is
//! released, gone before the next claim. So a crash leaves none, and every throttle and tick then counts as used up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use entrega_core::lane::Starts;
use entrega_core::time::Time;
use entrega_ledger::{Key, Unit};

use super::Shared;
use super::lanes::OwnedLane;
use super::reading::{self, ReadError};
use super::records;
use super::recovery::read_error;
use super::tables::REGISTRY;
use crate::store::StoreError;

/// Between the decision to start something and its start there is no more time than this.
pub(super) const FRESH: Duration = Duration::from_millis(100);

/// Where the starts of a lane are.
fn key(lane: &OwnedLane) -> Key {
    Key::Text(format!("starts/{}", lane.name))
}

impl Shared {
    /// Writes down what every gate must know to go on.
    pub(super) async fn keep_starts(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.changes.lock().await;
        // Before the machines are asked: whoever claims after them sees it.
        self.is_released.store(true, Ordering::SeqCst);
        let now = self.clock.now();
        for lane in self.all_owned() {
            let starts = lane.machine.lock().starts(now);
            let mut unit = Unit::default();
            match starts {
                Some(starts) => unit.put(REGISTRY, key(&lane), records::encode(&starts)),
                None => unit.remove(REGISTRY, key(&lane)),
            }
            self.change(&lane, unit, Vec::new()).await?;
        }
        Ok(())
    }

    /// Jobs are claimed after a release: what was written down is about to be wrong.
    pub(super) async fn forget_starts(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.changes.lock().await;
        if self.is_released.load(Ordering::SeqCst) {
            for lane in self.all_owned() {
                let mut unit = Unit::default();
                unit.remove(REGISTRY, key(&lane));
                self.change(&lane, unit, Vec::new()).await?;
            }
            self.is_released.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Writes down what was claimed at `now`, as begun at the last moment that it may begin.
    pub(super) async fn write_starts(&self, lane: &Arc<OwnedLane>, now: Time) -> Result<(), StoreError> {
        let starts = lane.machine.lock().starts(now);
        let Some(starts) = starts else { return Ok(()) };
        let mut unit = Unit::default();
        unit.put(REGISTRY, key(lane), records::encode(&starts.later(FRESH)));
        self.change(lane, unit, Vec::new()).await
    }

    /// Writes down what a lane that is handed over has started; nothing is started any more.
    pub(super) async fn write_last_starts(&self, lane: &Arc<OwnedLane>) -> Result<(), StoreError> {
        let starts = lane.machine.lock().starts(self.clock.now());
        let Some(starts) = starts else { return Ok(()) };
        let mut unit = Unit::default();
        unit.put(REGISTRY, key(lane), records::encode(&starts));
        self.change(lane, unit, Vec::new()).await
    }

    /// The ledger has lost writes: what was started is remembered here, whatever it says.
    pub(super) fn keep_known_starts(&self) {
        let now = self.clock.now();
        for (entry, lane) in self.lanes.values().filter_map(|entry| Some((entry, entry.owned()?))) {
            let starts = lane.machine.lock().starts(now);
            // Dated like those that are written down, so that the two can be compared.
            *entry.kept_starts.lock() = starts.map(|starts| starts.later(FRESH));
        }
    }

    /// Lets the gates of a lane go on where its last owner stopped, or count as used up where nobody knows.
    pub(super) async fn resume_starts(&self, lane: &Arc<OwnedLane>) -> Result<(), ReadError> {
        let found = reading::load(&*self.ledger, REGISTRY, key(lane), records::decode::<Starts>).await;
        let mut found = self.readable(&"starts", found)?.flatten();
        if let Some(kept) = self.lane(&lane.name).ok().and_then(|entry| entry.kept_starts.lock().take())
            && found.as_ref().is_none_or(|found| kept.are_later_than(found))
        {
            found = Some(kept);
        }
        let now = self.clock.now();
        let is_shared = self.cluster.is_some();
        // Nobody ever started anything here.
        let is_new = lane.hold.written() == 0 && (is_shared || self.was_empty.load(Ordering::Relaxed));
        {
            let mut machine = lane.machine.lock();
            let is_known = match &found {
                Some(starts) if is_shared => machine.resume_with(now, &starts.clone().by_a_shared_clock(now)),
                Some(starts) => machine.resume_with(now, starts),
                None => is_new,
            };
            if !is_known {
                machine.assume_spent(now);
            }
        }
        if found.is_some() && !is_shared {
            let mut unit = Unit::default();
            unit.remove(REGISTRY, key(lane));
            self.change(lane, unit, Vec::new()).await.map_err(read_error)?;
        }
        Ok(())
    }
}
