//! `entrega demo`: the whole gateway in a minute, with a destination that misbehaves.
//! Invariant: it is the real engine on the embedded store in a directory of its own, which goes away at the end; the
//! figures it ends with are counted at the destination, and it fails if a job is missing there.
//! Never: leaves loopback.

mod flaky;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use entrega::http::HttpRequest;
use entrega_core::backoff::Backoff;
use entrega_core::dead_letter::DeadLetterStatus;
use entrega_core::id::JobId;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::policy::LanePolicy;
use entrega_core::time::Time;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::flaky::{Flaky, Tally};
use super::DemoArgs;
use super::error::CliError;
use super::out::Out;
use crate::api::{self, ApiState, ServerLimits};
use crate::config::{Config, ConfigSources};
use entrega::chance;
use entrega::engine::Engine;
use entrega::store::{CountBy, DeadLetterFilter, ReplayRun, ReplayStatus};
use entrega::submission::NewJob;

const TENANTS: [&str; 5] = ["acme", "globex", "initech", "umbrella", "hooli"];
const LOOK_EVERY: Duration = Duration::from_millis(100);
const REPLAYS_PER_SEC: u32 = 200;
/// The whole demo must be over by then, whatever happens.
const LIMIT: Duration = Duration::from_secs(300);

/// Runs it, from the first job to the last replay.
pub(super) async fn run(args: DemoArgs, out: &mut Out) -> Result<(), CliError> {
    let folder = Folder::new()?;
    let flaky = Flaky::start().await.map_err(CliError::failed)?;
    let engine = Arc::new(Engine::open(config(&folder, &flaky, &args)?.engine()?).await?);
    let shutdown = CancellationToken::new();
    let address = serve_api(&engine, &args, &shutdown).await?;
    let running = {
        let (engine, shutdown) = (engine.clone(), shutdown.clone());
        tokio::spawn(async move { engine.run(shutdown, Duration::from_secs(5)).await })
    };
    eprintln!(
        "A gateway on http://{address} (look at http://{address}/metrics), a destination that misbehaves on {}",
        flaky.origin()
    );
    let demo = Demo { engine, flaky, jobs: u64::from(args.jobs) };
    let story = tokio::time::timeout(LIMIT, demo.play()).await.map_err(CliError::failed)?;
    shutdown.cancel();
    running.await.map_err(CliError::failed)??;
    demo.summary(story?, out)
}

/// Short waits and a small lane, so that a minute shows what else takes an hour.
fn config(folder: &Folder, flaky: &Flaky, args: &DemoArgs) -> Result<Config, CliError> {
    let mut config = Config::load(ConfigSources::default())?;
    config.store.data = folder.0.clone();
    config.store.free_space_min_mib = 0;
    config.outbound.allow_http = true;
    config.outbound.allow_networks = vec![flaky.address().ip().into()];
    let mut policy = LanePolicy::http();
    policy.retry.attempts = 4;
    policy.retry.backoff = Backoff::exponential(Duration::from_millis(250), Duration::from_secs(1));
    policy.capacity = policy.capacity.max(args.jobs);
    config.lanes = BTreeMap::from([(lane(), Arc::new(policy))]);
    Ok(config)
}

async fn serve_api(
    engine: &Arc<Engine>,
    args: &DemoArgs,
    shutdown: &CancellationToken,
) -> Result<std::net::SocketAddr, CliError> {
    let listen = |source| CliError::Listen { address: args.listen, source };
    let listener = TcpListener::bind(args.listen).await.map_err(listen)?;
    let address = listener.local_addr().map_err(listen)?;
    let state = ApiState { open_metrics: true, ..ApiState::new(engine.clone(), chance::secret_bytes()) };
    tokio::spawn(api::serve(listener, state, ServerLimits::default(), shutdown.clone()));
    Ok(address)
}

fn lane() -> LaneName {
    LaneName::new("http").expect("a lane name")
}

struct Demo {
    engine: Arc<Engine>,
    flaky: Flaky,
    jobs: u64,
}

/// What happened, as counted at the destination before and after it was mended.
struct Story {
    accepted: Vec<JobId>,
    before: Tally,
    dead: u64,
    dead_by_code: Vec<(String, u64)>,
    replayed: u64,
    took: Duration,
}

impl Demo {
    async fn play(&self) -> Result<Story, CliError> {
        let started = self.engine.env().clock.now();
        let accepted = self.send().await?;
        self.watch("delivering").await?;
        let before = self.flaky.tally();
        let counts = self.engine.store().dead_letter_counts(CountBy::Code, None).await.map_err(CliError::failed)?;
        let dead_by_code: Vec<_> = counts.into_iter().map(|count| (count.key, count.count)).collect();
        let dead = dead_by_code.iter().map(|(_, count)| count).sum();
        eprintln!("{dead} jobs gave up. The destination is mended; replaying at {REPLAYS_PER_SEC} a second.");
        self.flaky.mend();
        let replayed = self.replay(dead).await?;
        self.watch("replaying ").await?;
        let took = self.engine.env().clock.now().since(started);
        Ok(Story { accepted, before, dead, dead_by_code, replayed, took })
    }

    /// The first tenant sends most of them, and first; the others must not wait for it.
    async fn send(&self) -> Result<Vec<JobId>, CliError> {
        let others = TENANTS.len() as u64 - 1;
        let small = self.jobs / 12;
        let mut accepted = Vec::new();
        for (index, tenant) in TENANTS.iter().enumerate() {
            let count = if index == 0 { self.jobs - small * others } else { small };
            let tenant = TenantName::new(tenant).map_err(CliError::failed)?;
            let jobs: Vec<_> = (0..count).map(|number| self.job(&tenant, number)).collect();
            for chunk in jobs.chunks(1000) {
                for taken in self.engine.submit(&tenant, chunk.to_vec()).await {
                    accepted.push(taken.map_err(CliError::failed)?);
                }
            }
        }
        eprintln!("{} jobs of {} tenants accepted: each is on disk.", accepted.len(), TENANTS.len());
        Ok(accepted)
    }

    fn job(&self, tenant: &TenantName, number: u64) -> NewJob {
        let url = format!("{}/invoices", self.flaky.origin());
        let request = HttpRequest::post(&url, format!(r#"{{"company":"{tenant}","invoice":{number}}}"#));
        let labels = BTreeMap::from([("source".to_owned(), "demo".to_owned())]);
        NewJob { labels, ..NewJob::new(lane(), request) }
    }

    /// Shows how it goes until nothing waits or runs any more.
    async fn watch(&self, what: &'static str) -> Result<(), CliError> {
        let bar = ProgressBar::new(self.jobs);
        let style = ProgressStyle::with_template("{prefix} [{bar:40}] {pos}/{len} delivered, {msg}");
        bar.set_style(style.map_err(CliError::failed)?);
        bar.set_prefix(what);
        loop {
            let lanes = self.engine.store().lanes().await.map_err(CliError::failed)?;
            let Some(lane) = lanes.first() else { break };
            let tally = self.flaky.tally();
            let retrying = lane.sizes.in_state(entrega_core::job::JobState::RetryWait);
            bar.set_position(tally.delivered);
            bar.set_message(format!(
                "{} calls, {retrying} waiting to retry, {} dead letters",
                tally.calls, lane.dead_letters
            ));
            if lane.sizes.waiting() + lane.sizes.running() == 0 {
                break;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        self.engine.store().flush().await.map_err(CliError::failed)?;
        bar.finish();
        Ok(())
    }

    /// Sends every dead letter on its way again, as `POST /v1/dlq/replay` would.
    async fn replay(&self, total: u64) -> Result<u64, CliError> {
        let id = "demo".to_owned();
        let run = ReplayRun {
            id: id.clone(),
            filter: DeadLetterFilter { status: Some(DeadLetterStatus::Pending), ..DeadLetterFilter::default() },
            rate_per_sec: REPLAYS_PER_SEC,
            created_at: self.engine.env().clock.now() + Duration::from_micros(1),
            status: ReplayStatus::Running,
            total,
            replayed: 0,
            skipped: 0,
            cursor: None::<(Time, JobId)>,
            sending: Vec::new(),
        };
        self.engine.store().begin_replay(run).await.map_err(CliError::failed)?;
        loop {
            let run = self.engine.store().replay_run(&id).await.map_err(CliError::failed)?;
            match run {
                Some(run) if run.status == ReplayStatus::Running => tokio::time::sleep(LOOK_EVERY).await,
                Some(run) => return Ok(run.replayed),
                None => return Ok(0),
            }
        }
    }

    fn summary(&self, story: Story, out: &mut Out) -> Result<(), CliError> {
        let after = self.flaky.tally();
        let missing = story.accepted.iter().filter(|id| !self.flaky.has(**id)).count() as u64;
        let codes =
            story.dead_by_code.iter().map(|(code, count)| format!("{count} {code}")).collect::<Vec<_>>().join(", ");
        let rows = [
            ("accepted", story.accepted.len() as u64, "on disk before the answer".to_owned()),
            ("delivered at once", story.before.first_time, "first attempt".to_owned()),
            ("delivered after retries", story.before.delivered - story.before.first_time, "with backoff".to_owned()),
            ("dead letters", story.dead, codes),
            ("replayed", story.replayed, "same job ids".to_owned()),
            (
                "delivered by replay",
                after.delivered - story.before.delivered,
                "after the destination was mended".to_owned(),
            ),
            ("missing", missing, "counted at the destination".to_owned()),
        ];
        let value: serde_json::Map<_, _> =
            rows.iter().map(|(what, count, _)| ((*what).to_owned(), (*count).into())).collect();
        let lines = rows.map(|(what, count, note)| [what.to_owned(), count.to_string(), note]).to_vec();
        out.answer(&value.into(), |out| out.table(["what", "jobs", "note"], lines))?;
        eprintln!(
            "{} calls in {:.1} s. Now run it for real: entrega serve --dev",
            after.calls,
            story.took.as_secs_f64()
        );
        match missing {
            0 => Ok(()),
            _ => Err(CliError::failed(format!("{missing} accepted jobs never arrived"))),
        }
    }
}

/// A directory that goes away.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Result<Folder, CliError> {
        let name = format!("entrega-demo-{:08x}", u32::from_le_bytes(chance::secret_bytes()));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).map_err(CliError::failed)?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What stays behind lies in the directory for temporary files.
        drop(std::fs::remove_dir_all(&self.0));
    }
}
