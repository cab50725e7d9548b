//! `entrega dlq`: dead letters.
//! Invariant: what cannot be undone asks for a reason, and for many at once for `--yes` too.

mod replay;

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use entrega_core::time::parse_duration;
use serde_json::{Map, Value, json};

use self::replay::ReplayArgs;
use super::api::Api;
use super::error::CliError;
use super::jobs::{Rows, more};
use super::out::{Out, attempts, items, pairs, text};
use super::target::Target;

const PAGE_ROWS: usize = 200;

/// What to do with dead letters.
#[derive(Debug, Subcommand)]
pub enum DlqCommand {
    /// List them, newest first
    List(ListArgs),
    /// Show one, with its attempts; with --json also what it would send
    Show {
        /// The job's id.
        id: String,
    },
    /// Count them
    Stats {
        /// By what
        #[arg(long, default_value = "code")]
        by: CountBy,
    },
    /// Send one on its way again, or all that fit
    Replay(ReplayArgs),
    /// Give one up
    Discard {
        /// The job's id.
        id: String,
        /// Why; kept for audit
        #[arg(long)]
        reason: String,
    },
    /// Write all that fit to a file
    Export(ExportArgs),
    /// Give up all pending ones that fit
    Purge(PurgeArgs),
}

/// What dead letters are counted by.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CountBy {
    /// Failure code.
    Code,
    /// Tenant.
    Tenant,
    /// Lane.
    Lane,
    /// The hour they died.
    Hour,
}

/// Which dead letters.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Which {
    /// Of this lane
    #[arg(long)]
    lane: Option<String>,
    /// Of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// With this failure code, such as http_404
    #[arg(long)]
    code: Option<String>,
    /// Dead for at least this long, such as 2h
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    older_than: Option<Duration>,
    /// With this text in the reason
    #[arg(long)]
    text: Option<String>,
}

impl Which {
    fn query(&self, target: Target) -> Target {
        let seconds = self.older_than.map(|length| length.as_secs());
        let target = target.with("lane", self.lane.as_ref()).with("tenant", self.tenant.as_ref());
        target.with("code", self.code.as_ref()).with("olderThanSeconds", seconds).with("text", self.text.as_ref())
    }

    /// As the API takes it in a body.
    pub(super) fn json(&self) -> Value {
        let texts = [("lane", &self.lane), ("tenant", &self.tenant), ("code", &self.code), ("text", &self.text)];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key.to_owned(), json!(text.as_ref()?))));
        let mut filter: Map<String, Value> = texts.collect();
        if let Some(length) = self.older_than {
            filter.insert("olderThanSeconds".into(), json!(length.as_secs()));
        }
        Value::Object(filter)
    }
}

/// Which dead letters to list.
#[derive(Debug, Args)]
pub struct ListArgs {
    #[command(flatten)]
    which: Which,
    /// With this status: pending, replaying, replayed or discarded
    #[arg(long)]
    status: Option<String>,
    #[command(flatten)]
    rows: Rows,
}

/// The form of an export.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ExportFormat {
    /// One JSON object a line, whole entries.
    Jsonl,
    /// A table of the most useful columns.
    Csv,
}

/// What to export, and where to.
#[derive(Debug, Args)]
pub struct ExportArgs {
    #[command(flatten)]
    which: Which,
    /// With this status
    #[arg(long)]
    status: Option<String>,
    /// jsonl: whole entries; csv: the most useful columns
    #[arg(long, default_value = "jsonl")]
    format: ExportFormat,
    /// The file [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// What to give up.
#[derive(Debug, Args)]
#[command(group(ArgGroup::new("purged").required(true).multiple(true).args(["all", "lane", "tenant", "code", "older_than", "text"])))]
pub struct PurgeArgs {
    #[command(flatten)]
    which: Which,
    /// Everything
    #[arg(long, conflicts_with_all = ["lane", "tenant", "code", "older_than", "text"])]
    all: bool,
    /// Why; kept for audit
    #[arg(long)]
    reason: String,
    /// Do it; without, only count
    #[arg(long)]
    yes: bool,
}

pub(super) async fn run(command: DlqCommand, api: &Api, out: &mut Out) -> Result<(), CliError> {
    match command {
        DlqCommand::List(args) => list(args, api, out).await,
        DlqCommand::Show { id } => {
            let dead = api.get(&target(&id)).await?;
            out.answer(&dead, |out| tell(out, &dead))
        }
        DlqCommand::Stats { by } => stats(by, api, out).await,
        DlqCommand::Replay(args) => replay::run(args, api, out).await,
        DlqCommand::Discard { id, reason } => {
            let dead = api.post(&target(&id).part("discard"), &json!({ "reason": reason })).await?;
            out.answer(&dead, |_| format!("discarded {id}"))
        }
        DlqCommand::Export(args) => export(&args, api, out).await,
        DlqCommand::Purge(args) => purge(&args, api, out).await,
    }
}

/// The address of a dead letter.
pub(super) fn target(id: &str) -> Target {
    Target::new("/v1/dlq").part(id)
}

async fn list(args: ListArgs, api: &Api, out: &mut Out) -> Result<(), CliError> {
    let target = args.which.query(Target::new("/v1/dlq")).with("status", args.status);
    let answer = args.rows.list(api, &target).await?;
    out.answer(&answer, |out| {
        let rows = items(&answer).iter().map(|dead| {
            [
                text(dead, "jobId"),
                text(dead, "lane"),
                text(dead, "companyId"),
                text(dead, "status"),
                text(dead, "failedAttempts"),
                out.age(dead, "movedToDLQAt"),
                text(dead, "lastFailureCode"),
                text(dead, "lastFailureReason"),
            ]
        });
        let head = ["JOB", "LANE", "TENANT", "STATUS", "ATTEMPTS", "AGE", "CODE", "REASON"];
        out.table(head, rows.collect()) + &more(&answer)
    })
}

fn tell(out: &Out, dead: &Value) -> String {
    let destination = dead.pointer("/originalData").map(|job| text(job, "destination"));
    let told = pairs(&[
        ("job", text(dead, "jobId")),
        ("status", text(dead, "status")),
        ("discarded", text(dead, "discardReason")),
        ("reason", text(dead, "lastFailureReason")),
        ("code", text(dead, "lastFailureCode")),
        ("lane", text(dead, "lane")),
        ("tenant", text(dead, "companyId")),
        ("destination", destination.unwrap_or_else(|| "-".into())),
        ("accepted", text(dead, "enqueuedAt")),
        ("died", text(dead, "movedToDLQAt")),
        ("attempts", text(dead, "failedAttempts")),
        ("replays", text(dead, "generation")),
    ]);
    told + &attempts(out, dead)
}

async fn stats(by: CountBy, api: &Api, out: &mut Out) -> Result<(), CliError> {
    let (word, head) = match by {
        CountBy::Code => ("code", "CODE"),
        CountBy::Tenant => ("tenant", "TENANT"),
        CountBy::Lane => ("lane", "KEY"),
        CountBy::Hour => ("hour", "HOUR"),
    };
    let answer = api.get(&Target::new("/v1/dlq/stats").with("by", Some(word))).await?;
    out.answer(&answer, |out| {
        let rows = items(&answer).iter().map(|count| [text(count, "lane"), text(count, "key"), text(count, "count")]);
        out.table(["LANE", head, "COUNT"], rows.collect()) + &format!("total: {}\n", text(&answer, "total"))
    })
}

async fn export(args: &ExportArgs, api: &Api, out: &mut Out) -> Result<(), CliError> {
    let format = match args.format {
        ExportFormat::Jsonl => "jsonl",
        ExportFormat::Csv => "csv",
    };
    let target = args.which.query(Target::new("/v1/dlq/export").with("format", Some(format)));
    let target = target.with("status", args.status.as_ref());
    let Some(path) = &args.output else { return api.download(&target, out.sink()).await };
    // Under another name until it is whole, so that a file with this name is a whole export.
    let part = path.with_added_extension("part");
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| CliError::File { path, source }
    };
    let mut file = BufWriter::new(File::create(&part).map_err(at(&part))?);
    api.download(&target, &mut file).await?;
    file.into_inner().map_err(|error| at(&part)(error.into_error()))?.sync_all().map_err(at(&part))?;
    std::fs::rename(&part, path).map_err(at(path))
}

/// Discards page by page. Discarded entries stay in the listing, so a cursor keeps its place.
async fn purge(args: &PurgeArgs, api: &Api, out: &mut Out) -> Result<(), CliError> {
    let target = args.which.query(Target::new("/v1/dlq")).with("status", Some("pending"));
    let bar = indicatif::ProgressBar::new_spinner();
    let (mut cursor, mut count, mut skipped) = (None, 0, 0);
    loop {
        let page = api.list(&target, PAGE_ROWS, cursor).await?;
        for dead in items(&page) {
            bar.tick();
            if args.yes && !discard(api, &text(dead, "jobId"), &args.reason).await? {
                skipped += 1;
                continue;
            }
            count += 1;
            bar.set_message(format!("{count} dead letters"));
        }
        cursor = page.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() {
            break;
        }
    }
    bar.finish_and_clear();
    match args.yes {
        true => out.answer(&json!({ "discarded": count, "skipped": skipped }), |_| match skipped {
            0 => format!("dead letters discarded: {count}"),
            _ => format!("dead letters discarded: {count}; changed in between: {skipped}"),
        }),
        false => Err(CliError::NeedsYes { count }),
    }
}

/// Whether it was still there to be discarded.
async fn discard(api: &Api, id: &str, reason: &str) -> Result<bool, CliError> {
    match api.post(&target(id).part("discard"), &json!({ "reason": reason })).await {
        Ok(_) => Ok(true),
        Err(CliError::Problem(problem)) if matches!(problem.status, 404 | 409) => Ok(false),
        Err(error) => Err(error),
    }
}
