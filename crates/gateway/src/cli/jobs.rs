//! `entrega jobs`: send, look, cancel, explain.

mod send;

use std::time::Duration;

use clap::{Args, Subcommand};
use entrega_core::time::{format_duration, parse_duration};
use serde_json::{Value, json};

use self::send::SendArgs;
use super::api::Api;
use super::error::CliError;
use super::out::{Out, attempts, items, pairs, text};
use super::target::Target;

/// What to do with jobs.
#[derive(Debug, Subcommand)]
pub enum JobsCommand {
    /// Send one: entrega jobs send https://example.com/orders --data '{"id":1}'
    Send(Box<SendArgs>),
    /// List them, newest first
    List(ListArgs),
    /// Show one, with its attempts
    Show {
        /// The job's id.
        id: String,
        /// Wait up to this long for it to end, at most 60s
        #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
        wait: Option<Duration>,
    },
    /// Why one has not run yet: which gate, until when
    Explain {
        /// The job's id.
        id: String,
    },
    /// Cancel one that still waits
    Cancel {
        /// The job's id.
        id: String,
    },
    /// Queue one again that is blocked, out of attempts
    Unblock {
        /// The job's id.
        id: String,
    },
}

/// Which jobs.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Of this lane
    #[arg(long)]
    lane: Option<String>,
    /// Of this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// In this state: idle, queued, running, retry_wait, done, blocked, dlq, replaying, dropped or cancelled
    #[arg(long)]
    state: Option<String>,
    #[command(flatten)]
    rows: Rows,
}

/// How many rows, and from where.
#[derive(Debug, Args)]
pub(super) struct Rows {
    /// At most so many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Go on from here; the end of a listing that has more says where
    #[arg(long)]
    cursor: Option<String>,
}

impl Rows {
    /// These rows of a listing.
    pub(super) async fn list(self, api: &Api, target: &Target) -> Result<Value, CliError> {
        api.list(target, self.limit as usize, self.cursor).await
    }
}

/// What to say below a listing that goes on.
pub(super) fn more(answer: &Value) -> String {
    match answer.get("nextCursor").and_then(Value::as_str) {
        Some(cursor) => format!("more: --cursor {cursor}\n"),
        None => String::new(),
    }
}

pub(super) async fn run(command: JobsCommand, api: &Api, out: &mut Out) -> Result<(), CliError> {
    match command {
        JobsCommand::Send(args) => send::run(*args, api, out).await,
        JobsCommand::List(args) => list(args, api, out).await,
        JobsCommand::Show { id, wait } => show(&id, wait, api, out).await,
        JobsCommand::Explain { id } => {
            let why = api.get(&target(&id).part("explain")).await?;
            out.answer(&why, |out| tell_why(out, &why))
        }
        JobsCommand::Cancel { id } => {
            let job = api.delete(&target(&id)).await?;
            out.answer(&job, |_| format!("cancelled {id}"))
        }
        JobsCommand::Unblock { id } => {
            let job = api.post(&target(&id).part("unblock"), &json!({})).await?;
            out.answer(&job, |_| format!("{id} is queued again"))
        }
    }
}

/// The address of a job.
fn target(id: &str) -> Target {
    Target::new("/v1/jobs").part(id)
}

/// Shows a job, once it has ended or the wait is over.
pub(super) async fn show(id: &str, wait: Option<Duration>, api: &Api, out: &mut Out) -> Result<(), CliError> {
    let target = target(id).with("wait", wait.map(format_duration));
    let job = api.get_within(&target, wait.unwrap_or_default()).await?;
    out.answer(&job, |out| tell(out, &job))
}

async fn list(args: ListArgs, api: &Api, out: &mut Out) -> Result<(), CliError> {
    let target = Target::new("/v1/jobs").with("lane", args.lane).with("tenant", args.tenant).with("state", args.state);
    let answer = args.rows.list(api, &target).await?;
    out.answer(&answer, |out| {
        let rows = items(&answer).iter().map(|job| {
            [
                text(job, "jobId"),
                text(job, "lane"),
                text(job, "companyId"),
                text(job, "state"),
                job.get("attempts").and_then(Value::as_array).map_or(0, Vec::len).to_string(),
                out.age(job, "acceptedAt"),
                text(job, "destination"),
            ]
        });
        let head = ["JOB", "LANE", "TENANT", "STATE", "ATTEMPTS", "AGE", "DESTINATION"];
        out.table(head, rows.collect()) + &more(&answer)
    })
}

/// A job in words.
fn tell(out: &Out, job: &Value) -> String {
    let labels = job.get("labels").and_then(Value::as_object).filter(|labels| !labels.is_empty());
    let result = job.get("result").filter(|result| !result.is_null());
    let told = pairs(&[
        ("job", text(job, "jobId")),
        ("state", text(job, "state")),
        ("reason", text(job, "reason")),
        ("lane", text(job, "lane")),
        ("tenant", text(job, "companyId")),
        ("priority", text(job, "priority")),
        ("destination", text(job, "destination")),
        ("labels", labels.map_or_else(|| "-".into(), |_| text(job, "labels"))),
        ("accepted", text(job, "acceptedAt")),
        ("due", text(job, "dueAt")),
        ("expires", text(job, "expiresAt")),
        ("ended", text(job, "endedAt")),
        ("answer", result.map_or_else(|| "-".into(), |result| text(result, "status"))),
    ]);
    told + &attempts(out, job)
}

fn tell_why(out: &Out, why: &Value) -> String {
    let told = pairs(&[
        ("job", text(why, "jobId")),
        ("state", text(why, "state")),
        ("attempt", text(why, "attempt")),
        ("due", text(why, "dueAt")),
        ("note", text(why, "note")),
    ]);
    let holds = why.get("holds").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if holds.is_empty() {
        return told;
    }
    let rows = holds.iter().map(|hold| [text(hold, "gate"), text(hold, "until")]);
    format!("{told}\n{}", out.table(["HELD BY", "UNTIL"], rows.collect()))
}
