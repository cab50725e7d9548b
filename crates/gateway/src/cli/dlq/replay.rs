//! `entrega dlq replay`: one dead letter, or all that fit, followed until they are on their way.

use std::time::Duration;

use clap::{ArgGroup, Args};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::super::api::Api;
use super::super::error::CliError;
use super::super::out::{Out, text};
use super::super::target::Target;
use super::{Which, target};

/// How often a replay is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What to replay.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("replayed").required(true).multiple(true).args(["id", "all", "lane", "tenant", "code", "older_than", "text"])))]
pub struct ReplayArgs {
    /// The job's id
    #[arg(conflicts_with_all = ["all", "lane", "tenant", "code", "older_than", "text", "rate", "no_wait"])]
    id: Option<String>,
    /// Everything
    #[arg(long, conflicts_with_all = ["lane", "tenant", "code", "older_than", "text"])]
    all: bool,
    #[command(flatten)]
    which: Which,
    /// How many a second [default: 10]
    #[arg(long, value_name = "COUNT")]
    rate: Option<u32>,
    /// Return at once; the server goes on
    #[arg(long)]
    no_wait: bool,
}

pub(super) async fn run(args: ReplayArgs, api: &Api, out: &mut Out) -> Result<(), CliError> {
    if let Some(id) = args.id {
        let answer = api.post(&target(&id).part("replay"), &json!({})).await?;
        return out.answer(&answer, |_| format!("{id} is on its way; entrega jobs show {id}"));
    }
    let mut given = json!({ "filter": args.which.json() });
    if let Some(rate) = args.rate {
        given["ratePerSec"] = json!(rate);
    }
    let run = api.post(&Target::new("/v1/dlq/replay"), &given).await?;
    let run = if args.no_wait { run } else { follow(api, run).await? };
    out.answer(&run, |_| tell(&run))
}

/// Looks until it has finished.
async fn follow(api: &Api, mut run: Value) -> Result<Value, CliError> {
    let target = Target::new("/v1/replays").part(&text(&run, "replayId"));
    let count = |run: &Value, key: &str| run.get(key).and_then(Value::as_u64).unwrap_or(0);
    let bar = ProgressBar::new(count(&run, "total"));
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} {eta}") {
        bar.set_style(style);
    }
    loop {
        bar.set_position(count(&run, "replayed") + count(&run, "skipped"));
        bar.set_message(format!("{} skipped", count(&run, "skipped")));
        if run.get("status").and_then(Value::as_str) != Some("running") {
            bar.finish_and_clear();
            return Ok(run);
        }
        tokio::time::sleep(LOOK_EVERY).await;
        run = api.get(&target).await?;
    }
}

fn tell(run: &Value) -> String {
    let figures = |what| text(run, what);
    format!(
        "replay {}: {}, {} of {} on their way, {} skipped",
        figures("replayId"),
        figures("status"),
        figures("replayed"),
        figures("total"),
        figures("skipped")
    )
}
