//! Start-up: from the records on disk to the machines in memory.
//! Invariant: every job that had not ended is waiting again; one that was running starts over with the same number.
//! Never: reads payloads; the index is enough, and a million jobs must start within seconds.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use entrega_core::id::JobId;
use entrega_core::name::LaneName;

use super::Shared;
use super::disk::{Batch, DiskError, Key, Order, Table};
use super::records::{self, Live};

/// The format of the whole directory; a program that knows only older ones must not touch it.
const FORMAT: u32 = 3;
const FORMAT_KEY: &str = "format";

impl Shared {
    pub(super) fn recover(&self) -> Result<(), DiskError> {
        let is_new = self.check_format()?;
        self.recover_registry()?;
        self.recover_dead()?;
        self.recover_live()?;
        self.look_at_space();
        match is_new {
            true => Ok(()),
            false => self.recover_starts(),
        }
    }

    /// Whether the directory is new. Refuses one that a later version wrote.
    fn check_format(&self) -> Result<bool, DiskError> {
        let found = records::load(&*self.disk, Table::Registry, FORMAT_KEY.as_bytes(), records::decode_json::<u32>)?;
        match found {
            Some(FORMAT) => Ok(false),
            Some(other) => Err(DiskError::Record {
                table: Table::Registry.name(),
                reason: format!(
                    "the data has format {other}, this program knows {FORMAT}; use the program that wrote it"
                ),
            }),
            None => {
                let mut batch = Batch::default();
                batch.put(Table::Registry, Key::Text(FORMAT_KEY.into()), records::encode_json(&FORMAT));
                self.disk.commit(batch)?;
                Ok(true)
            }
        }
    }

    fn recover_live(&self) -> Result<(), DiskError> {
        let now = self.clock.now();
        let mut without_lane: BTreeMap<LaneName, u64> = BTreeMap::new();
        self.disk.scan(Table::Live, Order::UpFrom(&[]), &mut |key, value| {
            let read = <[u8; 16]>::try_from(key).ok().map(JobId::from_bytes);
            match (read, records::decode::<Live>(Table::Live, value)) {
                (Some(id), Ok(live)) => match self.lanes.get(&live.lane) {
                    Some(lane) if live.blocked.is_some() => {
                        lane.blocked.fetch_add(1, Ordering::Relaxed);
                    }
                    Some(lane) => {
                        lane.has_unblocked.fetch_or(live.unblocked, Ordering::Relaxed);
                        lane.machine.lock().restore(now, &live.waiting(id));
                    }
                    None => *without_lane.entry(live.lane).or_default() += 1,
                },
                (_, Err(error)) => self.note_unreadable("live", &error),
                (None, Ok(_)) => {
                    self.note_unreadable("live", &DiskError::Record { table: "live", reason: "bad key".into() })
                }
            }
            ControlFlow::Continue(())
        })?;
        for (lane, jobs) in without_lane {
            tracing::warn!(%lane, jobs, "Jobs wait for a lane that is not configured; add it to the configuration to run them");
        }
        Ok(())
    }
}
