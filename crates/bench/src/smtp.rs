//! Mail: synced mails, handed to Postfix's sink, beside Postfix's own source doing the same.
//!
//! Owns: the sink, one run of the source, one run of ours.
//! Invariant: both keep 20 connections open and send mails of the same size to the same sink; ours are durable before
//! the clock starts, and it stops when every settlement is.
//! Never: fails a run because Postfix is missing; the row says so.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use entrega::Engine;
use entrega::mail::{Mail, Mailbox};
use entrega::submission::NewJob;
use entrega_core::job::{JobState, Priority};
use entrega_core::name::LaneName;
use entrega_gateway::config::{Config, ConfigFile, ConfigSources};
use tokio_util::sync::CancellationToken;

use crate::ours::tenant;
use crate::process::{self, Running};
use crate::rate::Rate;

/// Connections at once.
pub const CONNECTIONS: u32 = 20;
const BODY_BYTES: usize = 1024;
const LOOK_EVERY: Duration = Duration::from_millis(5);
const START_LIMIT: Duration = Duration::from_secs(10);
const BATCH: u64 = 500;

/// Postfix's sink, which takes every mail and keeps none.
#[derive(Debug)]
pub struct MailSink {
    port: u16,
    _running: Running,
}

impl MailSink {
    /// Starts it on a free port.
    pub async fn start() -> Result<MailSink> {
        ensure_postfix().await?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?.local_addr()?.port();
        let mut command = Command::new(tool("smtp-sink"));
        // It wants to be told whom to be when it could be anybody.
        if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
            command.args(["-u", "root"]);
        }
        command.arg(format!("127.0.0.1:{port}")).arg("1024").stdin(Stdio::null()).stdout(Stdio::null());
        let sink = MailSink { port, _running: Running::start(&mut command)? };
        let start = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            ensure!(start.elapsed() < START_LIMIT, "smtp-sink did not listen in {START_LIMIT:?}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(sink)
    }

    /// Mails per second of Postfix's source, with connections that are kept.
    pub async fn source(&self, mails: u64, limit: Duration) -> Result<Rate> {
        let mut command = Command::new(tool("smtp-source"));
        command.args(["-d", "-s", &CONNECTIONS.to_string(), "-m", &mails.to_string()]);
        command.args(["-l", &BODY_BYTES.to_string(), "-f", "bench@example.com", "-t", "reader@example.com"]);
        command.arg(format!("127.0.0.1:{}", self.port)).stdin(Stdio::null()).stdout(Stdio::null());
        let start = Instant::now();
        Running::start(&mut command)?.finish(limit).await?;
        Ok(Rate::new(mails, start.elapsed()))
    }

    /// Mails per second of ours, on the embedded store in `folder`.
    pub async fn ours(&self, folder: &Path, mails: u64, limit: Duration) -> Result<Rate> {
        let engine = Arc::new(Engine::open(self.config(folder)?.engine()?).await?);
        let shutdown = CancellationToken::new();
        let running = {
            let (engine, shutdown) = (engine.clone(), shutdown.clone());
            tokio::spawn(async move { engine.run(shutdown, Duration::from_secs(5)).await })
        };
        let run = async {
            drain(&engine, mails.div_ceil(10)).await?;
            drain(&engine, mails).await
        };
        let rate = tokio::time::timeout(limit, run).await.with_context(|| format!("mails took over {limit:?}"))??;
        shutdown.cancel();
        running.await??;
        Ok(rate)
    }

    /// What `entrega serve` would run with, but for the limits that protect a provider.
    fn config(&self, folder: &Path) -> Result<Config> {
        let data = folder.join("data");
        let text = format!(
            "[store]\ndata = {data:?}\n[transports.main]\nurl = \"smtp://127.0.0.1:{port}?tls=never\"\n\
             [lanes.\"email:send\"]\nconcurrency = {CONNECTIONS}\nthrottle = \"none\"\nbreaker = \"none\"\n\
             capacity = 1000000\n",
            port = self.port,
        );
        let file = folder.join("entrega.toml");
        std::fs::write(&file, text)?;
        Ok(Config::load(ConfigSources { file: ConfigFile::At(file), ..ConfigSources::default() })?)
    }
}

fn lane() -> LaneName {
    LaneName::new("email:send").expect("a lane name")
}

async fn drain(engine: &Engine, mails: u64) -> Result<Rate> {
    engine.store().set_paused(&lane(), true).await?;
    for first in (0..mails).step_by(BATCH as usize) {
        let batch = (first..mails.min(first + BATCH)).map(|_| mail()).collect();
        for answer in engine.submit(&tenant(first / BATCH), batch).await {
            answer?;
        }
    }
    let start = Instant::now();
    engine.store().set_paused(&lane(), false).await?;
    loop {
        let lanes = engine.store().lanes().await?;
        let mail = lanes.iter().find(|view| view.name == lane()).context("there is no lane for mails")?;
        if mail.sizes.waiting() + mail.sizes.in_state(JobState::Running) == 0 {
            ensure!(mail.dead_letters == 0, "{} mails were refused", mail.dead_letters);
            break;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    engine.store().flush().await?;
    Ok(Rate::new(mails, start.elapsed()))
}

fn mail() -> NewJob {
    let mailbox = |address: &str| Mailbox { name: None, address: address.into() };
    let line = "All work and no play makes a long line of text in a mail.\r\n";
    let mail = Mail {
        from: mailbox("bench@example.com"),
        reply_to: None,
        to: vec![mailbox("reader@example.com")],
        cc: Vec::new(),
        bcc: Vec::new(),
        subject: "A mail of a benchmark".into(),
        text: Some(line.repeat(BODY_BYTES.div_ceil(line.len()))),
        html: None,
        attachments: Vec::new(),
        headers: Vec::new(),
    };
    NewJob {
        lane: lane(),
        priority: Priority::Normal,
        content: Arc::new(mail),
        labels: Default::default(),
        ttl: None,
        delay: Duration::ZERO,
        idempotency_key: None,
    }
}

/// Debian keeps these out of the path of ordinary users.
fn tool(name: &str) -> String {
    let there = ["/usr/sbin", "/usr/local/sbin"].map(|folder| format!("{folder}/{name}"));
    there.into_iter().find(|path| Path::new(path).exists()).unwrap_or_else(|| name.to_owned())
}

async fn ensure_postfix() -> Result<()> {
    if Path::new(&tool("smtp-sink")).exists() {
        return Ok(());
    }
    let mut install = Command::new("apt-get");
    install.args(["-q", "install", "-y", "--no-install-recommends", "postfix"]);
    install.env("DEBIAN_FRONTEND", "noninteractive");
    process::run(&mut install, Duration::from_secs(300)).await?;
    match Path::new(&tool("smtp-sink")).exists() {
        true => Ok(()),
        false => bail!("postfix is installed, but smtp-sink is not there"),
    }
}
