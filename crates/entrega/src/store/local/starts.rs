//! The last starts of throttled and paced lanes, over an orderly stop.
//! Invariant: they are in the ledger only while nothing is started: written when the store is released, gone before the next
//! claim. So a crash leaves none, and every throttle and tick then counts as used up.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use entrega_core::lane::Starts;
use entrega_ledger::{Key, Unit};

use super::reading::{From, PAGE_ROWS, ReadError, visit};
use super::tables::REGISTRY;
use super::writer::Writer;
use super::{Shared, records};
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
        let mut change = Unit::default();
        for (name, lane) in &self.lanes {
            let key = Key::Text(format!("{STARTS}{name}"));
            match lane.machine.lock().starts(now) {
                Some(starts) => change.put(REGISTRY, key, records::encode(&starts)),
                None => change.remove(REGISTRY, key),
            }
        }
        self.change(None, change, Vec::new()).await
    }

    /// Jobs are claimed after a release: what was written down is about to be wrong.
    pub(super) async fn forget_starts(&self) -> Result<(), StoreError> {
        let _one_at_a_time = self.changes.lock().await;
        if self.is_released.load(Ordering::SeqCst) {
            let mut change = Unit::default();
            for name in self.lanes.keys() {
                change.remove(REGISTRY, Key::Text(format!("{STARTS}{name}")));
            }
            self.change(None, change, Vec::new()).await?;
            self.is_released.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Lets every gate go on where it stopped, or count as used up where nobody knows.
    pub(super) async fn recover_starts(&self, writer: &mut Writer) -> Result<(), ReadError> {
        let mut found: BTreeMap<String, Starts> = BTreeMap::new();
        let mut change = Unit::default();
        visit(&*self.ledger, REGISTRY, From::Up(STARTS.into()), PAGE_ROWS, |key, value| {
            let key = String::from_utf8_lossy(key);
            let Some(name) = key.strip_prefix(STARTS) else { return ControlFlow::Break(()) };
            change.remove(REGISTRY, Key::Text(key.to_string()));
            match records::decode(REGISTRY, value) {
                Ok(starts) => drop(found.insert(name.to_owned(), starts)),
                Err(error) => self.note_unreadable(&key, &error),
            }
            ControlFlow::Continue(())
        })
        .await?;
        if !change.ops.is_empty() {
            writer.commit(vec![change], [].into_iter()).await?;
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
