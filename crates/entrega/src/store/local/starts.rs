//! The last starts of throttled and paced lanes, over an orderly stop.
//! Invariant: they are on disk only while nothing is started: written when the store is released, gone before the next
//! claim. So a crash leaves none, and every throttle and tick then counts as used up.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use entrega_core::lane::Starts;

use super::Shared;
use super::disk::{Batch, DiskError, Key, Order, Table};
use super::records;
use crate::store::StoreError;

/// What the rows begin with; the lane's name follows.
const STARTS: &str = "starts/";

impl Shared {
    /// Writes down what every gate must know to go on.
    pub(super) async fn keep_starts(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.changes.lock().await;
        // Before the machines are asked: whoever claims after them sees it.
        self.is_released.store(true, Ordering::SeqCst);
        let now = self.clock.now();
        let mut batch = Batch::default();
        for (name, lane) in &self.lanes {
            let key = Key::Text(format!("{STARTS}{name}"));
            match lane.machine.lock().starts(now) {
                Some(starts) => batch.put(Table::Registry, key, records::encode(&starts)),
                None => batch.remove(Table::Registry, key),
            }
        }
        self.change(batch, Vec::new()).await
    }

    /// Jobs are claimed after a release: what was written down is about to be wrong.
    pub(super) async fn forget_starts(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.changes.lock().await;
        if self.is_released.load(Ordering::SeqCst) {
            let mut batch = Batch::default();
            for name in self.lanes.keys() {
                batch.remove(Table::Registry, Key::Text(format!("{STARTS}{name}")));
            }
            self.change(batch, Vec::new()).await?;
            self.is_released.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Lets every gate go on where it stopped, or count as used up where nobody knows.
    pub(super) fn recover_starts(&self) -> Result<(), DiskError> {
        let mut found: BTreeMap<String, Starts> = BTreeMap::new();
        let mut batch = Batch::default();
        self.disk.scan(Table::Registry, Order::UpFrom(STARTS.as_bytes()), &mut |key, value| {
            let key = String::from_utf8_lossy(key);
            let Some(name) = key.strip_prefix(STARTS) else { return ControlFlow::Break(()) };
            batch.remove(Table::Registry, Key::Text(key.to_string()));
            match records::decode(Table::Registry, value) {
                Ok(starts) => drop(found.insert(name.to_owned(), starts)),
                Err(error) => self.note_unreadable(&key, &error),
            }
            ControlFlow::Continue(())
        })?;
        if !batch.ops.is_empty() {
            self.disk.commit(batch)?;
        }
        let now = self.clock.now();
        for (name, lane) in &self.lanes {
            let mut machine = lane.machine.lock();
            if !found.get(name.as_str()).is_some_and(|starts| machine.resume_with(now, starts)) {
                machine.assume_spent(now);
            }
        }
        Ok(())
    }
}
