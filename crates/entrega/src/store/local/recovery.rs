//! From the records of the ledger to memory: what operators set up, and lanes.
//! Invariant: every job of a lane that had not ended is waiting again; one that was running starts over with the same
//! number.
//! Never: reads payloads; the index is enough, and a million jobs must be loaded within seconds.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use entrega_core::lane::Lane;
use entrega_core::name::LaneName;
use entrega_ledger::Key;

use super::Shared;
use super::changes::Decided;
use super::hold::Hold;
use super::lanes::{LaneEntry, OwnedLane};
use super::reading::{From, ReadError, job_of, patiently, visit_whole};
use super::records::{self, Live};
use super::tables::{LIVE, REGISTRY};
use crate::store::StoreError;

/// The format of all that is in the ledger; a program that knows only others must not touch it.
const FORMAT: u32 = 7;
const FORMAT_KEY: &str = "format";

impl Shared {
    /// Reads what belongs to no lane.
    pub(super) async fn recover(&self) -> Result<(), ReadError> {
        self.check_format().await?;
        patiently(|| self.refresh_registry()).await?;
        self.remember_lanes().await?;
        self.warn_of_other_lanes().await?;
        self.look_at_space();
        Ok(())
    }

    /// Refuses what another version wrote.
    async fn check_format(&self) -> Result<(), ReadError> {
        let decided = self.decide(REGISTRY, FORMAT_KEY, |found| {
            let format = found.map(|bytes| records::decode_json::<u32>(REGISTRY, bytes)).transpose()?;
            match format {
                Some(FORMAT) => Ok(Decided::Leave(false)),
                Some(other) => Err(StoreError::Read(ReadError::Record {
                    table: REGISTRY.name,
                    reason: format!(
                        "the data has format {other}, this program knows {FORMAT}; use the program that wrote it"
                    ),
                })),
                None => Ok(Decided::put(REGISTRY, FORMAT_KEY, records::encode_json(&FORMAT), true)),
            }
        });
        let is_new = decided.await.map_err(read_error)?;
        self.was_empty.store(is_new, Ordering::Relaxed);
        Ok(())
    }

    /// Writes down which lanes there are: whoever starts with others looks for the jobs of these.
    async fn remember_lanes(&self) -> Result<(), ReadError> {
        for lane in self.lanes.values() {
            if self.scopes.read().contains(&lane.scope) {
                continue;
            }
            self.scopes.write().push(lane.scope.clone());
            let key = format!("lane/{}", lane.name);
            let decided = self.decide(REGISTRY, &key, |found| {
                Ok(match found {
                    Some(_) => Decided::Leave(()),
                    None => Decided::put(REGISTRY, &key, b"true".to_vec(), ()),
                })
            });
            decided.await.map_err(read_error)?;
        }
        Ok(())
    }

    /// Loads a lane into a memory of its own. Nothing is claimed from it before it is opened.
    pub(super) async fn load_lane(&self, entry: &Arc<LaneEntry>, hold: Arc<Hold>) -> Result<Arc<OwnedLane>, ReadError> {
        let lane = Arc::new(entry.begin(hold, &self.written_room));
        self.load_index(&lane).await?;
        self.load_dead(&lane).await?;
        self.set_up(&lane);
        self.resume_starts(&lane).await?;
        if self.cluster.is_some() {
            self.empty_inbox(&lane).await?;
        }
        Ok(lane)
    }

    async fn load_index(&self, lane: &OwnedLane) -> Result<(), ReadError> {
        let now = self.clock.now();
        let mut machine = Lane::new(lane.policy.clone());
        self.visit_live(&lane.scope, |key, value| match (job_of(key), records::decode::<Live>(LIVE, value)) {
            (Some(_), Ok(live)) if live.blocked.is_some() => lane.block(1),
            (Some(id), Ok(live)) => {
                lane.has_unblocked.fetch_or(live.unblocked, Ordering::Relaxed);
                machine.restore(now, &live.waiting(id));
            }
            (_, Err(error)) => self.note_unreadable("live", &error),
            (None, Ok(_)) => {
                self.note_unreadable("live", &ReadError::Record { table: LIVE.name, reason: "bad key".into() })
            }
        })
        .await?;
        *lane.machine.lock() = machine;
        Ok(())
    }

    /// Visits the index entries of a lane, with what follows its name in their keys.
    async fn visit_live(&self, scope: &str, mut see: impl FnMut(&[u8], &[u8]) + Send) -> Result<(), ReadError> {
        let prefix = Key::prefix(scope);
        visit_whole(&*self.ledger, LIVE, From::Up(prefix.clone()), |key, value| {
            let Some(key) = key.strip_prefix(&*prefix) else { return ControlFlow::Break(()) };
            see(key, value);
            ControlFlow::Continue(())
        })
        .await
    }

    async fn warn_of_other_lanes(&self) -> Result<(), ReadError> {
        let is_other = |scope: &Arc<str>| LaneName::new(scope).is_ok_and(|lane| !self.lanes.contains_key(&lane));
        let others: Vec<_> = self.scopes.read().iter().filter(|scope| is_other(scope)).cloned().collect();
        for lane in others {
            let mut jobs = 0u64;
            self.visit_live(&lane, |_, _| jobs += 1).await?;
            if jobs > 0 {
                tracing::warn!(%lane, jobs, "Jobs wait for a lane that is not configured; add it to the configuration to run them");
            }
        }
        Ok(())
    }
}

/// What could not be read or written while the store is opened.
pub(super) fn read_error(error: StoreError) -> ReadError {
    match error {
        StoreError::Read(error) => error,
        StoreError::Unreachable { reason } => {
            entrega_ledger::LedgerError::Unclear { doing: "reading the store", reason }.into()
        }
        other => entrega_ledger::LedgerError::Broken { doing: "opening the store", reason: other.to_string() }.into(),
    }
}
