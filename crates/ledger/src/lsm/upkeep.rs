//! The thread that keeps tables in order: merges, and looks for damage.
//! Invariant: ends before the store does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::compaction::{Compaction, LOOKS_A_SECOND};
use super::scrub::Scrub;
use super::tables::Tables;
use crate::LedgerError;

const LOOK_EVERY: Duration = Duration::from_millis(1000 / LOOKS_A_SECOND as u64);

/// The thread.
pub(super) struct Upkeep {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Upkeep {
    pub(super) fn start(tables: Tables, store: PathBuf) -> Result<Upkeep, LedgerError> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("store-tables".into()).spawn(move || {
            let (mut compaction, mut scrub) = (Compaction::of(&tables), Scrub::default());
            for look in 0u32.. {
                let (is_stopped, bell) = &*stopped;
                let mut is_stopped = is_stopped.lock();
                if !*is_stopped {
                    bell.wait_for(&mut is_stopped, LOOK_EVERY);
                }
                if *is_stopped {
                    return;
                }
                drop(is_stopped);
                compaction.merge_new(&tables);
                if look % LOOKS_A_SECOND == 0 {
                    compaction.merge_whole(&tables, &store);
                    scrub.turn(&tables);
                }
            }
        });
        let failed =
            |error: std::io::Error| LedgerError::Broken { doing: "starting upkeep", reason: error.to_string() };
        Ok(Upkeep { stop, thread: Some(thread.map_err(failed)?) })
    }

    /// Ends it, after the merge that is under way.
    pub(super) fn stop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // It may have panicked over damage; then there is nobody left to stop.
            drop(thread.join());
        }
    }
}
