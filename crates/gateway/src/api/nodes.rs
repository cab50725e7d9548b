//! Nodes: who shares the store, who lives, who owns what.
//! Invariant: what is shown is what the node that was asked sees.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use entrega_core::time::Time;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::auth::Admin;
use super::problem::ApiError;
use entrega::store::{HandOver, NodeView, OwnedShard};

/// All nodes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Nodes {
    /// By their number.
    items: Vec<NodeRow>,
}

/// A node.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeRow {
    /// Its number, new with each start.
    id: String,
    /// Its machine and port.
    name: String,
    /// Of the program.
    version: String,
    /// When it joined.
    #[schema(value_type = String, format = DateTime)]
    started_at: Time,
    /// When it last showed that it lives.
    #[schema(value_type = String, format = DateTime)]
    seen_at: Time,
    /// Whether that was within a lease.
    alive: bool,
    /// Whether it has lived long enough to be given lanes.
    steady: bool,
    /// Whether it is the node that answers.
    this: bool,
    /// Whether its lanes have other policies than those of the node that answers: give all nodes the same configuration.
    other_policies: bool,
    /// What it owns.
    owns: Vec<ShardRow>,
    /// What it last gave up for another node.
    #[serde(skip_serializing_if = "Option::is_none")]
    last_hand_over: Option<HandOverRow>,
}

/// Something that a node owns.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ShardRow {
    /// `lane/<name>`, or `house` for replays and sweeps.
    shard: String,
    /// Since when.
    #[schema(value_type = String, format = DateTime)]
    since: Time,
}

/// Something that a node gave up for another.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct HandOverRow {
    /// The shard.
    shard: String,
    /// For which node.
    to: String,
    /// The moment of it.
    #[schema(value_type = String, format = DateTime)]
    at: Time,
}

impl From<NodeView> for NodeRow {
    fn from(node: NodeView) -> NodeRow {
        let shard = |OwnedShard { shard, since }| ShardRow { shard, since };
        NodeRow {
            id: node.id,
            name: node.name,
            version: node.version,
            started_at: node.started_at,
            seen_at: node.seen_at,
            alive: node.is_alive,
            steady: node.is_steady,
            this: node.is_this,
            other_policies: node.has_other_policies,
            owns: node.owns.into_iter().map(shard).collect(),
            last_hand_over: node.last_hand_over.map(|HandOver { shard, to, at }| HandOverRow { shard, to, at }),
        }
    }
}

/// List nodes
///
/// Who shares the store, who lives, who owns which lanes since when, and the last hand-over. A store that is not shared has
/// one.
#[utoipa::path(
    get, path = "/v1/nodes", tag = "nodes", security(("key" = ["admin"])),
    responses((status = 200, description = "All of them", body = Nodes))
)]
pub(super) async fn list(State(api): State<Arc<Api>>, Admin(_who): Admin) -> Result<Json<Nodes>, ApiError> {
    let items = api.engine.store().nodes().await?.into_iter().map(NodeRow::from).collect();
    Ok(Json(Nodes { items }))
}
