//! `entrega-bench`: measures rows and reports them.
//!
//! Owns: the command line and the list of rows.
//! Invariant: rows run one after another, in the order of the list.
//! Never: leaves a child behind when it is told to stop.

use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use entrega_bench::frame::{self, Frame, progress};
use entrega_bench::load::Load;
use entrega_bench::machine::Machine;
use entrega_bench::report::{Report, Row, Target};
use entrega_bench::smtp::MailSink;
use entrega_bench::{choose, hoard, http_intake, intake, latency, sink};
use tokio::signal::unix::{SignalKind, signal};

/// The allocator of the shipped binary, for us and for the bare client alike.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const OUT: &str = "bench-out";
const WORKERS: usize = 2;
const DRAIN: &str = "drain, embedded store";
const BULLMQ: &str = "BullMQ worker";

#[derive(Parser)]
#[command(about = "Measures Entrega side by side with its peers")]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    part: Option<Part>,
    /// A tenth of every count; such figures are no evidence
    #[arg(long)]
    quick: bool,
    /// Where the report goes
    #[arg(long, default_value = "bench-out/bench.json")]
    json: PathBuf,
    /// Which rows to measure; all when none is named
    rows: Vec<Which>,
}

#[derive(Subcommand)]
enum Part {
    /// Be the sink: print the port, count requests, answer 200
    Sink {
        /// 0 means any that is free
        #[arg(long, default_value_t = 0)]
        port: u16,
        /// End when whoever started us is gone
        #[arg(long)]
        until_stdin_closes: bool,
    },
    /// Be the server of the intake row: print the port, take jobs
    Api {
        /// Where the store lies
        #[arg(long)]
        folder: PathBuf,
    },
    /// Be the hoard: take jobs, print what they cost
    Hoard {
        /// Where the store lies
        #[arg(long)]
        folder: PathBuf,
        /// How many jobs to add
        #[arg(long)]
        jobs: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// A bare hyper-util client against the sink
    Bare,
    /// Our client alone and the bare one against the sink, in turn, five times
    Client,
    /// 100 000 synced jobs to the sink, embedded store
    Drain,
    /// The load generator against the sink: what it could measure at most
    Load,
    /// Raw synced appends
    Append,
    /// Intake over HTTP, 64 connections, synced
    Http,
    /// 256 callers in this process, synced
    Intake,
    /// The next job, with few and with many tenants
    Choose,
    /// From accepted to the first attempt, idle
    Latency,
    /// A million waiting jobs: memory, and the time to start
    Hoard,
    /// Mails to Postfix's sink, 20 connections
    Smtp,
    // Last, because Redis goes on rewriting its files long after BullMQ is done.
    /// BullMQ's worker against the sink
    Bullmq,
    /// 100 000 jobs to the sink on one Redis, BullMQ and we in turn, five times
    Redis,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        // Returning drops what runs, and with it every child.
        tokio::select! {
            result = run(cli) => result,
            _ = terminate.recv() => bail!("told to stop"),
            result = tokio::signal::ctrl_c() => {
                result?;
                bail!("told to stop")
            }
        }
    })
}

async fn run(cli: Cli) -> Result<()> {
    match cli.part {
        Some(Part::Sink { port, until_stdin_closes }) => be_sink(port, until_stdin_closes).await,
        Some(Part::Api { folder }) => http_intake::be_server(&folder).await,
        Some(Part::Hoard { folder, jobs }) => hoard::be_hoard(&folder, jobs).await,
        None => measure_all(cli).await,
    }
}

async fn be_sink(port: u16, until_stdin_closes: bool) -> Result<()> {
    if until_stdin_closes {
        std::thread::spawn(|| {
            // An error means the same as the end: nobody is there any more.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
    }
    sink::serve(sink::listen(port).await?).await
}

async fn measure_all(cli: Cli) -> Result<()> {
    let exe = std::env::current_exe().context("cannot find our own binary")?;
    let frame = Frame::new(OUT.as_ref(), &exe, cli.quick)?;
    let (machine, quick) = (Machine::describe(), cli.quick);
    let mut rows = Vec::new();
    for which in Which::value_variants() {
        if cli.rows.is_empty() || cli.rows.contains(which) {
            // Boxed: the futures of all rows in one are deeper than the compiler follows.
            rows.extend(Box::pin(measure(*which, &frame)).await?);
        }
    }
    let report = Report { machine, quick, rows };
    println!("{}", report.table());
    report.write(&cli.json)?;
    progress(&format!("written to {}", cli.json.display()));
    Ok(())
}

async fn measure(which: Which, frame: &Frame) -> Result<Vec<Row>> {
    match which {
        Which::Bare => {
            let rate = frame.bare().await?.per_second();
            Ok(vec![Row::new("bare hyper-util client", "requests/s", rate)])
        }
        Which::Client => client(frame).await,
        Which::Load => load(frame).await,
        Which::Append => {
            let rate = frame.append().await?.per_second();
            Ok(vec![Row::new("raw synced append", "records/s", rate)])
        }
        Which::Bullmq => bullmq(frame).await,
        Which::Redis => redis(frame).await,
        Which::Drain => drain(frame).await,
        Which::Http => http(frame).await,
        Which::Intake => intake(frame).await,
        Which::Choose => Ok(choose()),
        Which::Latency => latency(frame).await,
        Which::Hoard => hoard(frame).await,
        Which::Smtp => smtp(frame).await,
    }
}

async fn client(frame: &Frame) -> Result<Vec<Row>> {
    let turns = frame.clients().await?;
    let middle = turns.middle();
    let row = Row::new("our client alone", "requests/s", middle.ours.per_second());
    let row = row.against("bare hyper-util client", middle.bare.per_second());
    Ok(vec![row.target(Target::RatioAtLeast(1.15)).note(&turns.in_words())])
}

async fn drain(frame: &Frame) -> Result<Vec<Row>> {
    let bare = frame.bare().await?.per_second();
    let row = Row::new(DRAIN, "jobs/s", frame.drain().await?.per_second());
    Ok(vec![row.against("bare hyper-util client", bare).target(Target::RatioAtLeast(0.7))])
}

async fn intake(frame: &Frame) -> Result<Vec<Row>> {
    let append = frame.append().await?.per_second();
    let jobs = frame.count(400_000);
    progress(&format!("intake in process, {jobs} jobs, 256 callers"));
    let folder = frame.scratch("intake")?;
    let rate = intake::in_process(folder.path(), 256, jobs).await?.per_second();
    let row = Row::new("intake in process, 256 callers", "jobs/s", rate);
    Ok(vec![row.against("raw synced append", append).target(Target::RatioAtLeast(0.15))])
}

async fn http(frame: &Frame) -> Result<Vec<Row>> {
    let requests = frame.count(100_000);
    progress(&format!("intake over HTTP, {requests} jobs, 64 connections"));
    let folder = frame.scratch("http")?;
    let measured = http_intake::measure(frame.exe(), folder.path(), requests).await?;
    let note = format!("p50 {:?}, p99 {:?}", measured.stored.p50, measured.stored.p99);
    let row = Row::new("intake over HTTP, 64 connections", "jobs/s", measured.stored.rate.per_second());
    let row = row.against("the same server, refusing", measured.refused.rate.per_second());
    Ok(vec![row.target(Target::RatioAtLeast(0.5)).note(&note)])
}

async fn latency(frame: &Frame) -> Result<Vec<Row>> {
    progress("accepted to first attempt");
    let folder = frame.scratch("latency")?;
    let (p50, p99) = latency::measure(folder.path(), frame.sink().await?, frame.count(3_000)).await?;
    let row = |name, value: std::time::Duration, most| {
        Row::new(name, "ms", value.as_secs_f64() * 1e3).target(Target::AtMost(most))
    };
    Ok(vec![row("accepted to first attempt, p50", p50, 2.0), row("accepted to first attempt, p99", p99, 10.0)])
}

async fn hoard(frame: &Frame) -> Result<Vec<Row>> {
    let jobs = frame.count(1_000_000);
    progress(&format!("{jobs} waiting jobs"));
    let folder = frame.scratch("hoard")?;
    let filled = hoard::measure(frame.exe(), folder.path(), jobs).await?;
    progress("starting again with them");
    let reopened = hoard::measure(frame.exe(), folder.path(), 0).await?;
    let note = format!("{} jobs found, {:.0} MB", reopened.waiting, reopened.memory_mb);
    Ok(vec![
        Row::new("memory for 1 000 000 waiting jobs", "MB", filled.memory_mb).target(Target::AtMost(200.0)),
        Row::new("start with 1 000 000 waiting jobs", "s", reopened.open_seconds)
            .target(Target::AtMost(3.0))
            .note(&note),
    ])
}

async fn smtp(frame: &Frame) -> Result<Vec<Row>> {
    let (name, mails) = ("mails over SMTP, 20 connections", frame.count(20_000));
    let sink = match MailSink::start().await {
        Ok(sink) => sink,
        Err(error) => return Ok(vec![Row::unavailable(name, &format!("no Postfix: {error:#}"))]),
    };
    progress(&format!("smtp-source, {mails} mails"));
    let source = sink.source(mails, frame::LIMIT).await?.per_second();
    progress(&format!("{name}, {mails} mails"));
    let folder = frame.scratch("smtp")?;
    let row = Row::new(name, "mails/s", sink.ours(folder.path(), mails, frame::LIMIT).await?.per_second());
    Ok(vec![row.against("smtp-source", source).target(Target::RatioAtLeast(0.5))])
}

fn choose() -> Vec<Row> {
    progress("choosing the next job");
    let (few, many) = (choose::nanos(10), choose::nanos(100_000));
    vec![
        Row::new("choosing the next job, 10 tenants", "ns", few).target(Target::AtMost(1000.0)),
        Row::new("choosing the next job, 100 000 tenants", "ns", many)
            .against("with 10 tenants", few)
            .target(Target::RatioAtMost(1.3)),
    ]
}

async fn load(frame: &Frame) -> Result<Vec<Row>> {
    let (sink, shape) = (frame.sink().await?, frame.shape());
    progress(&format!("load generator, {} requests", shape.requests));
    sink.reset().await?;
    let load = Load {
        url: format!("{}/", sink.origin()).parse()?,
        headers: http::HeaderMap::new(),
        body: shape.body(),
        connections: shape.at_once,
        requests: shape.requests,
        limit: frame::LIMIT,
    };
    let loaded = load.run().await?;
    sink.expect(shape.requests).await?;
    let bare = frame.bare().await?.per_second();
    let row = Row::new("load generator", "requests/s", loaded.rate.per_second());
    let note = format!("p50 {:?}, p99 {:?}", loaded.p50, loaded.p99);
    Ok(vec![row.against("bare hyper-util client", bare).note(&note)])
}

async fn bullmq(frame: &Frame) -> Result<Vec<Row>> {
    // Ours first: Redis has not started then.
    let drain = Row::new(DRAIN, "jobs/s", frame.drain().await?.per_second());
    let rate = match frame.bullmq().await? {
        Ok(rate) => rate.per_second(),
        Err(why) => return Ok(vec![Row::unavailable(BULLMQ, &why)]),
    };
    Ok(vec![Row::new(BULLMQ, "jobs/s", rate), drain.against(BULLMQ, rate).target(Target::RatioAtLeast(6.0))])
}

async fn redis(frame: &Frame) -> Result<Vec<Row>> {
    let name = "drain, Redis store";
    let turns = match frame.on_redis().await? {
        Ok(turns) => turns,
        Err(why) => return Ok(vec![Row::unavailable(name, &why)]),
    };
    let middle = turns.middle();
    let (ours, shared) = (middle.ours.per_second(), middle.shared.per_second());
    let row = |name: &str, rate| Row::new(name, "jobs/s", rate);
    let half = "drain, Redis store, half taken in by another node";
    Ok(vec![
        row(name, ours).against(BULLMQ, middle.theirs.per_second()).target(Target::RatioAtLeast(4.5)).note(&format!(
            "{}; {:.1} us of the server a job",
            turns.in_words(),
            middle.server_us
        )),
        row(name, ours).against("bare hyper-util client", middle.bare.per_second()).target(Target::RatioAtLeast(0.6)),
        row(half, shared)
            .against(BULLMQ, middle.theirs.per_second())
            .target(Target::RatioAtLeast(4.5))
            .note(&format!("{:.1} us of the server a job", middle.shared_us)),
    ])
}
