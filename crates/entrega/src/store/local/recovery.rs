//! Start-up: from the records of the ledger to the machines in memory.
//! Invariant: every job that had not ended is waiting again; one that was running starts over with the same number.
//! Never: reads payloads; the index is enough, and a million jobs must start within seconds.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use entrega_core::lane::Lane;
use entrega_core::name::LaneName;
use entrega_ledger::{Key, Unit};

use super::reading::{self, From, PAGE_ROWS, ReadError, job_of, visit};
use super::records::{self, Live};
use super::tables::{LIVE, REGISTRY};
use super::writer::Writer;
use super::{LaneCell, Shared};

/// The format of all that is in the ledger; a program that knows only others must not touch it.
const FORMAT: u32 = 4;
const FORMAT_KEY: &str = "format";

impl Shared {
    pub(super) async fn recover(&self, writer: &mut Writer) -> Result<(), ReadError> {
        let is_new = self.check_format(writer).await?;
        self.recover_registry().await?;
        self.recover_dead().await?;
        self.remember_lanes(writer).await?;
        for lane in self.lanes.values() {
            self.recover_lane(lane).await?;
        }
        self.warn_of_other_lanes().await?;
        self.look_at_space();
        match is_new {
            true => Ok(()),
            false => self.recover_starts(writer).await,
        }
    }

    /// Whether the ledger is new. Refuses one that another version wrote.
    async fn check_format(&self, writer: &mut Writer) -> Result<bool, ReadError> {
        let key = Key::Text(FORMAT_KEY.into());
        match reading::load(&*self.ledger, REGISTRY, key.clone(), records::decode_json::<u32>).await? {
            Some(FORMAT) => Ok(false),
            Some(other) => Err(ReadError::Record {
                table: REGISTRY.name,
                reason: format!(
                    "the data has format {other}, this program knows {FORMAT}; use the program that wrote it"
                ),
            }),
            None => {
                let mut change = Unit::default();
                change.put(REGISTRY, key, records::encode_json(&FORMAT));
                writer.commit(vec![change], [].into_iter()).await?;
                Ok(true)
            }
        }
    }

    /// Writes down which lanes there are: whoever starts with others looks for the jobs of these.
    async fn remember_lanes(&self, writer: &mut Writer) -> Result<(), ReadError> {
        let mut change = Unit::default();
        for lane in self.lanes.values() {
            if !self.scopes.read().contains(&lane.scope) {
                self.scopes.write().push(lane.scope.clone());
                change.put(REGISTRY, Key::Text(format!("lane/{}", lane.name)), &b"true"[..]);
            }
        }
        if !change.ops.is_empty() {
            writer.commit(vec![change], [].into_iter()).await?;
        }
        Ok(())
    }

    async fn recover_lane(&self, lane: &LaneCell) -> Result<(), ReadError> {
        let now = self.clock.now();
        let mut machine = std::mem::replace(&mut *lane.machine.lock(), Lane::new(lane.policy.clone()));
        self.visit_live(&lane.scope, |key, value| match (job_of(key), records::decode::<Live>(LIVE, value)) {
            (Some(_), Ok(live)) if live.blocked.is_some() => {
                lane.blocked.fetch_add(1, Ordering::Relaxed);
            }
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
        let visited = visit(&*self.ledger, LIVE, From::Up(prefix.clone()), PAGE_ROWS, |key, value| {
            let Some(key) = key.strip_prefix(&*prefix) else { return ControlFlow::Break(()) };
            see(key, value);
            ControlFlow::Continue(())
        });
        Ok(visited.await?)
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
