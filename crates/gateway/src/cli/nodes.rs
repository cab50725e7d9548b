//! `entrega nodes`: who shares the store, and who owns which lanes.

use clap::Args;
use serde_json::Value;

use super::api::Api;
use super::error::CliError;
use super::out::{Out, items, text};
use super::target::Target;

/// Which nodes there are.
#[derive(Debug, Args)]
pub struct NodesArgs {}

pub(super) async fn run(_: NodesArgs, api: &Api, out: &mut Out) -> Result<(), CliError> {
    let answer = api.get(&Target::new("/v1/nodes")).await?;
    out.answer(&answer, |out| {
        let rows = items(&answer).iter().map(|node| {
            [
                text(node, "id"),
                text(node, "name"),
                state(node).to_owned(),
                out.age(node, "startedAt"),
                out.age(node, "seenAt"),
                owns(node),
                hand_over(node),
            ]
        });
        out.table(["NODE", "NAME", "STATE", "STARTED", "SEEN", "OWNS", "LAST HAND-OVER"], rows.collect())
    })
}

fn is(node: &Value, field: &str) -> bool {
    node.get(field).and_then(Value::as_bool).unwrap_or(false)
}

fn state(node: &Value) -> &'static str {
    match () {
        _ if !is(node, "alive") => "gone",
        _ if is(node, "otherPolicies") => "other policies",
        _ if is(node, "steady") => "steady",
        _ => "new",
    }
}

fn owns(node: &Value) -> String {
    let shards = node.get("owns").and_then(Value::as_array).cloned().unwrap_or_default();
    let names: Vec<String> = shards.iter().map(|shard| text(shard, "shard").replace("lane/", "")).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(" ") }
}

fn hand_over(node: &Value) -> String {
    match node.get("lastHandOver") {
        Some(last) => format!("{} to {}", text(last, "shard").replace("lane/", ""), text(last, "to")),
        None => "-".to_owned(),
    }
}
