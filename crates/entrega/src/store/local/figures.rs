//! What an owner shows of its lanes, and what others make of it.
//! Invariant: about a second old; nothing is decided by it but whether new work is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use entrega_core::breaker::BreakerFigures;
use entrega_core::cadence::CadenceFigures;
use entrega_core::lane::{Hold, LaneSizes};
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use entrega_ledger::{Key, Unit};
use serde::{Deserialize, Serialize};

use super::Shared;
use super::cluster::Cluster;
use super::command::{Change, Command};
use super::lanes::{LaneEntry, OwnedLane};
use super::reading::{self, ReadError};
use super::records;
use super::tables::FIGURES;
use crate::store::{LaneView, StoreError};

/// How often owners show how their lanes stand.
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// The most tenants without a place that are shown to others.
const WITHOUT_PLACES_MAX: usize = 256;

/// How a lane stands.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct LaneFigures {
    sizes: LaneSizes,
    blocked: u32,
    dead_letters: u32,
    hold: Option<Hold>,
    breaker: Option<BreakerFigures>,
    cadence: Option<CadenceFigures>,
    oldest: Option<Time>,
    /// Tenants that have all the places they may have, as far as they are shown.
    without_places: Vec<TenantName>,
}

impl OwnedLane {
    pub(super) fn figures(&self, now: Time) -> LaneFigures {
        let dead_letters = self.dead.lock().open();
        let machine = self.machine.lock();
        LaneFigures {
            sizes: machine.sizes(),
            blocked: self.blocked.load(Ordering::Relaxed),
            dead_letters,
            hold: machine.held_by(now),
            breaker: machine.breaker(now),
            cadence: machine.cadence(),
            oldest: machine.oldest(),
            without_places: machine.tenants_without_places(WITHOUT_PLACES_MAX),
        }
    }
}

impl Shared {
    fn lane_view(&self, lane: &LaneEntry, figures: LaneFigures, is_owned: bool) -> LaneView {
        let LaneFigures { sizes, blocked, dead_letters, hold, breaker, cadence, oldest, without_places: _ } = figures;
        let paused = self.registered.read().is_paused(&lane.name);
        let (name, policy) = (lane.name.clone(), lane.policy.clone());
        LaneView { name, policy, sizes, blocked, dead_letters, paused, hold, breaker, cadence, oldest, is_owned }
    }

    async fn shown(&self, lane: &LaneEntry) -> Result<LaneFigures, ReadError> {
        let key = Key::Text(lane.name.to_string());
        Ok(reading::load(&*self.ledger, FIGURES, key, records::decode).await?.unwrap_or_default())
    }

    pub(super) async fn lane_views(&self) -> Result<Vec<LaneView>, StoreError> {
        let now = self.clock.now();
        let mut views = Vec::with_capacity(self.lanes.len());
        for lane in self.lanes.values() {
            let (figures, is_owned) = match lane.owned() {
                Some(owned) => (owned.figures(now), true),
                None => (self.shown(lane).await?, false),
            };
            views.push(self.lane_view(lane, figures, is_owned));
        }
        Ok(views)
    }

    /// Shows others this node and how its lanes stand, looks at theirs, and gives up what another should own. What a lane shows
    /// is written under its own token: so an owner that has nothing else to write finds out, too, that the ledger lost
    /// something of it.
    async fn show_and_look(&self, cluster: &Cluster) -> Result<(), StoreError> {
        let now = self.clock.now();
        for lane in self.lanes.values() {
            match lane.owned() {
                Some(owned) => {
                    let figures = owned.figures(now);
                    lane.published.lock().show(figures.sizes.waiting(), figures.without_places.clone());
                    let mut unit = Unit::default();
                    unit.put(FIGURES, Key::Text(lane.name.to_string()), records::encode(&figures));
                    let change = Change::of(&owned, unit, Vec::new(), None);
                    self.send(Command::Change { change, reply: None })?;
                }
                None => {
                    let shown = self.shown(lane).await?;
                    lane.published.lock().show(shown.sizes.waiting(), shown.without_places);
                }
            }
        }
        let mut unit = Unit::default();
        self.show_node(cluster, &mut unit);
        let node = self.node.read().clone();
        self.write_under(node, vec![unit]).await?;
        self.look_at_nodes(cluster).await?;
        self.balance(cluster).await
    }
}

/// Shows and looks once a second, until the store ends.
pub(super) async fn keep_showing(shared: Arc<Shared>) {
    let Some(cluster) = &shared.cluster else { return };
    while !shared.stop.is_cancelled() {
        if let Err(error) = shared.show_and_look(cluster).await {
            tracing::debug!(errorReason = %error, "What nodes show of themselves could not be exchanged");
        }
        shared.look_at_registry().await;
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => {}
            () = tokio::time::sleep(SHOW_EVERY) => {}
        }
    }
}
