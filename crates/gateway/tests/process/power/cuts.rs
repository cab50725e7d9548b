//! Power cuts: at many moments of a run, in every way of losing what was not synced.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use entrega::store::JobStore as _;
use entrega::store::local::LocalStore;
use entrega::store::local::tables::TABLES;
use entrega_call::Clock;
use entrega_core::id::JobId;
use entrega_gateway::config::{Config, ConfigSources};
use entrega_ledger::LsmLedger;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::platter::{CUTS, Cut, Platter};
use super::trace::{self, Event};
use super::{is_left_out, number};
use crate::server::{Server, command};

/// More than a job of this test may carry, so that every byte of a write is in the log.
const LOGGED_BYTES_MAX: usize = 8 << 20;
const LOG: &str = "trace.log";

/// Starts a process over `data` in this folder, with a log of what it does beside it.
fn start(folder: &Path, change: impl FnOnce(&mut Command)) -> Server {
    let data = folder.join("data");
    std::fs::write(folder.join("entrega.toml"), "[lanes.http]\nretry = { attempts = 1 }\n").unwrap();
    Server::start_by(folder, |args| {
        let (data, folder_text) = (data.to_str().unwrap(), folder.to_str().unwrap());
        let args: Vec<&str> = args.iter().map(|arg| if *arg == folder_text { data } else { arg }).collect();
        let entrega = command(&args);
        let mut strace = Command::new("strace");
        // As a grandchild, so that the process itself is ours to kill.
        strace.args(["-D", "-f", "-y", "-s", &LOGGED_BYTES_MAX.to_string(), "-e"]);
        strace.arg(format!("trace={}", trace::CALLS)).arg("-o").arg(folder.join(LOG));
        strace.arg(entrega.get_program()).args(entrega.get_args()).env_clear();
        strace.envs(entrega.get_envs().filter_map(|(name, value)| Some((name, value?))));
        change(&mut strace);
        strace
    })
}

fn read_log(folder: &Path) -> Vec<Event> {
    trace::read(&std::fs::read_to_string(folder.join(LOG)).unwrap())
}

/// Runs a scripted load on a real process; what it did, in order.
async fn record(folder: &Path) -> Vec<Event> {
    let server = start(folder, |_| {});
    let bytes = number("ENTREGA_POWER_BYTES", 300);
    for count in 0..number("ENTREGA_POWER_JOBS", 40) {
        let body = "b".repeat(bytes);
        // Some end in the meantime: ends, histories and dead letters are written too.
        let delay = if count % 4 == 0 { 0 } else { 3_600_000 };
        let job = |body: &str| json!({"delayMs": delay, "request": {"url": "http://127.0.0.1:9/", "body": body}});
        let jobs = match count % 5 {
            0 => Value::Array(vec![job(&body), job(&body)]),
            _ => job(&body),
        };
        server.ok("POST", "/v1/jobs", &jobs).await;
    }
    server.kill();
    read_log(folder)
}

/// Opens what is left, and looks for everything that was acknowledged.
async fn check(left: &Path, told: &[JobId], what: &str) {
    let ledger = LsmLedger::open(&left.join("data"), &TABLES).unwrap_or_else(|error| panic!("{what}: {error}"));
    let config = Config::load(ConfigSources::default()).unwrap();
    let store = LocalStore::open(Arc::new(ledger), Clock::system(), config.store.local(&config.lanes)).await;
    let store = Arc::new(store.unwrap_or_else(|error| panic!("{what}: {error}")));
    for id in told {
        let view = store.job(*id).await.unwrap_or_else(|error| panic!("{what}: {id}: {error}"));
        assert!(view.is_some(), "{what}: {id} was acknowledged and is gone");
    }
}

#[tokio::test]
async fn whenever_the_power_is_cut_everything_acknowledged_is_there() {
    if is_left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let events = record(&root).await;
    let moments: Vec<usize> = (0..events.len()).filter(|place| matters(&events[*place])).collect();
    let acknowledged = events.iter().filter(|event| matches!(event, Event::Told { .. })).count();
    assert!(acknowledged >= 20, "the log shows {acknowledged} acknowledgements in {} events", events.len());
    let first_told = events.iter().position(|event| matches!(event, Event::Told { .. })).unwrap();
    let (starting, running): (Vec<usize>, Vec<usize>) = moments.into_iter().partition(|place| *place < first_told);
    let cuts_max = number("ENTREGA_POWER_CUTS", 40);
    let chosen = [spread(&starting, cuts_max / 3), spread(&running, cuts_max - cuts_max / 3)].concat();
    let (mut platter, mut told, mut cuts) = (Platter::new(&root), Vec::new(), 0);
    for (place, event) in events.iter().enumerate() {
        platter.follow(event);
        if let Event::Told { jobs } = event {
            told.extend(jobs.iter().map(|id| id.parse::<JobId>().unwrap()));
        }
        if chosen.contains(&place) {
            for cut in CUTS {
                let left = scratch();
                platter.leave(cut, left.path());
                check(left.path(), &told, &format!("cut {cut:?} after event {place} ({})", told.len())).await;
                cuts += 1;
            }
        }
    }
    println!("{} events, {acknowledged} acknowledgements of {} jobs, {cuts} cuts", events.len(), told.len());
}

/// The engine reads the lengths of a record before it knows that the record is whole: every place for the tear counts.
#[tokio::test]
async fn wherever_the_last_write_is_torn_everything_acknowledged_is_there() {
    if is_left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let events = record(&root).await;
    let is_journal = |event: &Event| matches!(event, Event::Write { path, .. } if path.ends_with(".jnl"));
    let last = events.iter().rposition(is_journal).unwrap();
    let (mut platter, mut told) = (Platter::new(&root), Vec::new());
    for event in &events[..=last] {
        platter.follow(event);
        if let Event::Told { jobs } = event {
            told.extend(jobs.iter().map(|id| id.parse::<JobId>().unwrap()));
        }
    }
    let Event::Write { bytes, .. } = &events[last] else { unreachable!("it was found so") };
    // In the suite the head of the record byte by byte, and some places in the rest.
    let step = if number("ENTREGA_POWER_CUTS", 40) > 40 { 1 } else { 9 };
    let lengths: Vec<usize> = (0..bytes.len()).filter(|length| *length < 48 || length % step == 0).collect();
    for length in lengths.iter().copied() {
        let left = scratch();
        platter.leave(Cut::TornAt(length), left.path());
        check(left.path(), &told, &format!("{length} of {} bytes", bytes.len())).await;
    }
    println!("{} tears, {} jobs", lengths.len(), told.len());
}

/// The file was synced, its name was not: after a power cut another key was made, and the one that was shown, once, was
/// good for nothing.
#[tokio::test]
async fn an_admin_key_that_was_shown_is_kept() {
    if is_left_out() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().canonicalize().unwrap();
    let server = start(&root, |command| {
        command.env_remove("ENTREGA_ADMIN_KEY");
    });
    server.kill();
    let key = std::fs::read_to_string(root.join("data/admin-key")).unwrap();
    let mut platter = Platter::new(&root);
    read_log(&root).iter().for_each(|event| platter.follow(event));
    let left = scratch();
    platter.leave(Cut::Clean, left.path());
    assert_eq!(std::fs::read_to_string(left.path().join("data/admin-key")).ok(), Some(key));
}

/// So many of them, evenly, with the last.
fn spread(moments: &[usize], count: usize) -> Vec<usize> {
    let step = moments.len().div_ceil(count.max(1)).max(1);
    moments.iter().rev().step_by(step).copied().collect()
}

/// A folder in memory: what is put together there need not survive anything.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap()
}

/// Moments at which what is safe, or what was promised, has just changed.
fn matters(event: &Event) -> bool {
    matches!(event, Event::Sync { .. } | Event::Told { .. } | Event::Rename { .. } | Event::Write { .. })
}

/// The model itself: without a sync nothing is safe, and with one it is.
#[test]
fn what_was_not_synced_is_lost() {
    let root = Path::new("/r");
    let mut platter = Platter::new(root);
    let path = "/r/a".to_owned();
    let open = Event::Open { fd: 3, path: path.clone(), is_made: true, is_emptied: false, is_appending: false };
    let write = |bytes: &[u8]| Event::Write { fd: 3, path: path.clone(), at: None, bytes: bytes.to_vec() };
    let left = |platter: &Platter, cut: Cut| {
        let folder = tempfile::tempdir().unwrap();
        platter.leave(cut, folder.path());
        std::fs::read(folder.path().join("a")).ok()
    };
    platter.follow(&open);
    platter.follow(&write(b"one,"));
    platter.follow(&Event::Sync { path: path.clone() });
    assert_eq!(left(&platter, Cut::Clean), None, "its name was not synced");
    platter.follow(&Event::Sync { path: "/r".into() });
    platter.follow(&write(b"two,"));
    platter.follow(&write(b"three"));
    assert_eq!(left(&platter, Cut::Clean).unwrap(), b"one,");
    assert_eq!(left(&platter, Cut::Torn).unwrap(), b"one,tw");
    platter.follow(&Event::Sync { path });
    assert_eq!(left(&platter, Cut::Clean).unwrap(), b"one,two,three");
}
