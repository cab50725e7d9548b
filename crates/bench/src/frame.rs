//! The frame of a run: what its rows share.
//!
//! Owns: the sink, Redis, the output folder, the counts, the peers' figures.
//! Invariant: a peer is measured once in a run, when a row first asks for it,
//! and everything it started ends with the frame.
//! Never: turns a peer that cannot be had into a failed run.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::OnceCell;

use crate::append::{self, Batches};
use crate::bare;
use crate::bullmq;
use crate::client;
use crate::drain::{self, Run};
use crate::ours;
use crate::post::Shape;
use crate::rate::Rate;
use crate::redis::Redis;
use crate::sink::Sink;

/// Runs end after this long, whatever they do.
pub const LIMIT: Duration = Duration::from_secs(300);

/// How often two that take turns do so; odd, so that one of the rounds is in the middle.
const ROUNDS: usize = 5;

/// A figure, or why there is none.
pub type Had<T> = std::result::Result<T, String>;

/// What the rows of a run share.
#[derive(Debug)]
pub struct Frame {
    /// Whether counts are cut for speed.
    pub quick: bool,
    out: PathBuf,
    exe: PathBuf,
    sink: OnceCell<Sink>,
    redis: OnceCell<Had<Redis>>,
    bare: OnceCell<Rate>,
    append: OnceCell<Rate>,
    bullmq: OnceCell<Had<Rate>>,
    drain: OnceCell<Rate>,
}

impl Frame {
    /// `out` is the folder for everything that is written; `exe` is the
    /// `entrega-bench` binary, which is also the sink.
    pub fn new(out: &Path, exe: &Path, quick: bool) -> Result<Self> {
        std::fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
        Ok(Self {
            quick,
            out: out.to_path_buf(),
            exe: exe.to_path_buf(),
            sink: OnceCell::new(),
            redis: OnceCell::new(),
            bare: OnceCell::new(),
            append: OnceCell::new(),
            bullmq: OnceCell::new(),
            drain: OnceCell::new(),
        })
    }

    /// The drain every peer does: 100 000 bodies of 1 KB, 64 at once.
    pub fn shape(&self) -> Shape {
        Shape { requests: self.count(100_000), at_once: 64, body_bytes: 1024 }
    }

    /// The `entrega-bench` binary, which is also every child of ours.
    pub fn exe(&self) -> &Path {
        &self.exe
    }

    /// A count, or a tenth of it in a quick run.
    pub fn count(&self, full: u64) -> u64 {
        if self.quick { full.div_ceil(10) } else { full }
    }

    /// A new folder on the disk that is measured, gone when dropped.
    pub fn scratch(&self, name: &str) -> Result<tempfile::TempDir> {
        let prefix = format!("{name}-");
        let folder = tempfile::Builder::new().prefix(&prefix).tempdir_in(&self.out)?;
        Ok(folder)
    }

    /// The sink, started at the first call.
    pub async fn sink(&self) -> Result<&Sink> {
        let start = || async { Sink::start(&self.exe) };
        self.sink.get_or_try_init(start).await
    }

    /// The Redis server, started at the first call.
    pub async fn redis(&self) -> Had<&Redis> {
        let start = || async { had("Redis", Redis::start(&self.out).await) };
        let redis = self.redis.get_or_init(start).await;
        redis.as_ref().map_err(Clone::clone)
    }

    /// Requests per second of the bare client.
    pub async fn bare(&self) -> Result<Rate> {
        let measure = || async {
            let shape = self.shape();
            progress(&format!("bare client, {} requests", shape.requests));
            bare::post_all(self.sink().await?, shape, LIMIT).await
        };
        self.bare.get_or_try_init(measure).await.copied()
    }

    /// Our client alone and the bare one, taking turns.
    pub async fn clients(&self) -> Result<Turns<Clients>> {
        let (sink, shape) = (self.sink().await?, self.shape());
        let mut rounds = Vec::with_capacity(ROUNDS);
        for round in 1..=ROUNDS {
            progress(&format!("clients, round {round} of {ROUNDS}, {} requests each", shape.requests));
            let bare = bare::post_all(sink, shape, LIMIT).await?;
            let ours = client::post_all(sink, shape, LIMIT).await?;
            progress(&format!("bare {:.0}, ours {:.0} requests/s", bare.per_second(), ours.per_second()));
            rounds.push(Clients { bare, ours });
        }
        Ok(Turns { rounds })
    }

    /// Records per second of the raw synced append: batches of 256, 1 KB each.
    pub async fn append(&self) -> Result<Rate> {
        let measure = || async {
            let batches = self.count(4_000);
            progress(&format!("raw append, {batches} batches"));
            let plan = Batches { batches, records_per_batch: 256, record_bytes: 1024 };
            let folder = self.scratch("append")?;
            let write = move || append::synced(folder.path(), plan);
            tokio::task::spawn_blocking(write).await?
        };
        self.append.get_or_try_init(measure).await.copied()
    }

    /// Jobs per second of our own drain, embedded store.
    pub async fn drain(&self) -> Result<Rate> {
        let measure = || async {
            let shape = self.shape();
            progress(&format!("drain, {} jobs", shape.requests));
            let folder = self.scratch("drain")?;
            drain::measure(ours::embedded(folder.path()).await?, self.sink().await?, shape, LIMIT).await
        };
        self.drain.get_or_try_init(measure).await.copied()
    }

    /// Jobs per second of BullMQ's worker.
    pub async fn bullmq(&self) -> Result<Had<Rate>> {
        let sink = self.sink().await?;
        let measure = || async { self.drain_bullmq(self.redis().await?, sink).await };
        Ok(self.bullmq.get_or_init(measure).await.clone())
    }

    /// BullMQ's drain and ours on one Redis, taking turns: a machine that is slower for a while is so for both.
    pub async fn on_redis(&self) -> Result<Had<Turns<Round>>> {
        let (sink, redis) = (self.sink().await?, self.redis().await);
        let redis = match redis {
            Ok(redis) => redis,
            Err(why) => return Ok(Err(why)),
        };
        let mut rounds = Vec::with_capacity(ROUNDS);
        for round in 1..=ROUNDS {
            progress(&format!("on Redis, round {round} of {ROUNDS}"));
            let theirs = match self.drain_bullmq(redis, sink).await {
                Ok(theirs) => theirs,
                Err(why) => return Ok(Err(why)),
            };
            let bare = bare::post_all(sink, self.shape(), LIMIT).await?;
            let (ours, server_us) = self.drain_ours(redis, sink, false).await?;
            let (shared, shared_us) = self.drain_ours(redis, sink, true).await?;
            progress(&format!(
                "BullMQ {:.0}, bare {:.0}, ours {:.0} jobs/s at {server_us:.1} us of the server, \
                 half of them by another node {:.0} at {shared_us:.1} us",
                theirs.per_second(),
                bare.per_second(),
                ours.per_second(),
                shared.per_second()
            ));
            rounds.push(Round { theirs, bare, ours, shared, server_us, shared_us });
        }
        Ok(Ok(Turns { rounds }))
    }

    async fn drain_bullmq(&self, redis: &Redis, sink: &Sink) -> Had<Rate> {
        let shape = self.shape();
        progress(&format!("BullMQ, {} jobs", shape.requests));
        let drained = async {
            redis.clear().await?;
            bullmq::drain(&self.out, redis, sink, shape, LIMIT).await
        };
        had("BullMQ", drained.await)
    }

    /// The rate, and the server's processor time for a job that is drained, in microseconds.
    async fn drain_ours(&self, redis: &Redis, sink: &Sink, is_shared: bool) -> Result<(Rate, f64)> {
        let shape = self.shape();
        progress(&format!("drain on Redis, {} jobs", shape.requests));
        redis.clear().await?;
        let engine = ours::on_redis(&redis.url()).await?;
        let other = if is_shared { Some(ours::on_redis(&redis.url()).await?) } else { None };
        let run = Run { engine, other, redis: Some(redis), sink };
        let (rate, used) = run.measure(shape, LIMIT).await?;
        Ok((rate, used.as_secs_f64() * 1e6 / shape.requests as f64))
    }
}

/// What a peer and we reached, round by round.
#[derive(Debug)]
pub struct Turns<R> {
    rounds: Vec<R>,
}

/// One round of two that take turns.
pub trait Ratio: Copy {
    /// Ours ÷ theirs.
    fn ratio(&self) -> f64;
}

/// What both reached on Redis, one right after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Round {
    /// The peer's.
    pub theirs: Rate,
    /// The bare client's.
    pub bare: Rate,
    /// Ours.
    pub ours: Rate,
    /// Ours, where another node took half of the jobs in.
    pub shared: Rate,
    /// The server's processor time for one of our jobs, in microseconds.
    pub server_us: f64,
    /// The same where another node took half of them in.
    pub shared_us: f64,
}

impl Ratio for Round {
    fn ratio(&self) -> f64 {
        self.ours.per_second() / self.theirs.per_second()
    }
}

/// What the two clients reached, one right after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Clients {
    /// The bare client's.
    pub bare: Rate,
    /// Ours.
    pub ours: Rate,
}

impl Ratio for Clients {
    fn ratio(&self) -> f64 {
        self.ours.per_second() / self.bare.per_second()
    }
}

impl<R: Ratio> Turns<R> {
    /// The round whose ratio is in the middle: whatever held one side up for a moment does not count.
    pub fn middle(&self) -> R {
        let mut rounds = self.rounds.clone();
        rounds.sort_by(|one, other| one.ratio().total_cmp(&other.ratio()));
        rounds[rounds.len() / 2]
    }

    /// The ratio of each round.
    pub fn in_words(&self) -> String {
        let ratios: Vec<String> = self.rounds.iter().map(|round| format!("{:.2}", round.ratio())).collect();
        format!("the middle of {}", ratios.join(", "))
    }
}

/// A line on stderr, so that a long run is never silent.
pub fn progress(what: &str) {
    eprintln!("bench: {what}");
}

fn had<T>(what: &str, result: Result<T>) -> Had<T> {
    result.map_err(|error| {
        progress(&format!("no {what}: {error:#}"));
        format!("no {what}: {error:#}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_round_is_the_one_that_counts() {
        let round = |theirs: u64, ours: u64| Round {
            theirs: Rate::new(theirs, Duration::from_secs(1)),
            ours: Rate::new(ours, Duration::from_secs(1)),
            bare: Rate::new(ours, Duration::from_secs(1)),
            shared: Rate::new(ours, Duration::from_secs(1)),
            server_us: 0.0,
            shared_us: 0.0,
        };
        let turns = Turns { rounds: vec![round(10, 30), round(10, 5), round(10, 40)] };
        assert_eq!(turns.middle(), round(10, 30));
        assert_eq!(turns.in_words(), "the middle of 3.00, 0.50, 4.00");
    }
}
