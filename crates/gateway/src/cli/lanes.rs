//! `entrega lanes`: what is where, and what holds it.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::api::Api;
use super::error::CliError;
use super::out::{Out, items, text};
use super::target::Target;

/// What to do with lanes.
#[derive(Debug, Args)]
pub struct LanesArgs {
    #[command(subcommand)]
    command: Option<LanesCommand>,
}

/// What to do with a lane.
#[derive(Debug, Subcommand)]
pub enum LanesCommand {
    /// List them; the same as no command
    List,
    /// Start nothing more in a lane; it still takes jobs
    Pause {
        /// The lane.
        lane: String,
    },
    /// Go on
    Resume {
        /// The lane.
        lane: String,
    },
}

pub(super) async fn run(args: LanesArgs, api: &Api, out: &mut Out) -> Result<(), CliError> {
    match args.command {
        None | Some(LanesCommand::List) => list(api, out).await,
        Some(LanesCommand::Pause { lane }) => {
            let answer = api.post(&Target::new("/v1/lanes").part(&lane).part("pause"), &json!({})).await?;
            out.answer(&answer, |_| format!("paused {lane}; go on with: entrega lanes resume {lane}"))
        }
        Some(LanesCommand::Resume { lane }) => {
            let answer = api.post(&Target::new("/v1/lanes").part(&lane).part("resume"), &json!({})).await?;
            out.answer(&answer, |_| format!("{lane} goes on"))
        }
    }
}

async fn list(api: &Api, out: &mut Out) -> Result<(), CliError> {
    let answer = api.get(&Target::new("/v1/lanes")).await?;
    out.answer(&answer, |out| {
        let rows = items(&answer).iter().map(|lane| {
            let size = |state: &str| lane.pointer(&format!("/sizes/{state}")).and_then(Value::as_u64).unwrap_or(0);
            [
                text(lane, "lane"),
                standing(lane),
                (size("idle") + size("queued")).to_string(),
                size("running").to_string(),
                size("retry_wait").to_string(),
                size("replaying").to_string(),
                text(lane, "blocked"),
                text(lane, "deadLetters"),
                out.age(lane, "oldestAt"),
            ]
        });
        let head = ["LANE", "STATE", "WAITING", "RUNNING", "RETRYING", "REPLAYING", "BLOCKED", "DEAD", "OLDEST"];
        out.table(head, rows.collect())
    })
}

/// Whether a lane runs, and if not, what holds it.
fn standing(lane: &Value) -> String {
    let gate = lane.pointer("/hold/gate").and_then(Value::as_str);
    match (lane.get("paused").and_then(Value::as_bool), gate) {
        (Some(true), _) => "paused".into(),
        (_, Some(_)) => format!("held: {}", text(lane, "hold.gate")),
        _ => "open".into(),
    }
}
