//! The embedded store on damaged data: what was acknowledged is there, what cannot be read is set aside and seen.

use std::path::{Path, PathBuf};

use entrega::store::local::LocalStore;
use entrega::store::local::tables::{DEAD, HISTORY, IDEMPOTENCY, JOBS, LIVE, MAIL, REGISTRY, TABLES};
use entrega::store::{Idempotency, JobFilter, NewEntry, Page, Submitted};
use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::{Job, JobState, Priority};
use entrega_ledger::{Key, LedgerError, LsmLedger, Table, Unit};
use futures_util::FutureExt as _;

use super::fixture::{FEW, Fixture, HOUR, RETENTION, SECOND, Setup, lane, soon, tenant};
use super::mail::bounce;
use super::restart::Home;
use super::worlds::open_embedded;

/// Copies a directory as it is, while its store is open: what a power cut leaves.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// The newest journal file, which is the one being written.
pub(crate) fn journal(dir: &Path) -> PathBuf {
    let files = std::fs::read_dir(dir.join("store")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|ending| ending == "jnl")).max().expect("there is a journal")
}

/// The bytes that were written; the rest of the file is room.
pub(crate) fn written(path: &Path) -> usize {
    let bytes = std::fs::read(path).unwrap();
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
}

/// Where it is noted how much was acknowledged.
const ACKNOWLEDGED: &str = "store/acknowledged";

/// A directory whose journal ends with one record too many to be sure of.
struct Torn {
    home: Home,
    acknowledged: Vec<JobId>,
    last: JobId,
    /// Where the last record begins and ends.
    record: std::ops::Range<usize>,
}

impl Torn {
    async fn new() -> Torn {
        let home = Home::new();
        let live = Home::new();
        let f = Fixture::over(open_embedded(live.dir.path(), &home.setup).await, home.setup.clone());
        let mut acknowledged = Vec::new();
        for _ in 0..20 {
            acknowledged.push(f.add("http", "acme").await);
        }
        f.store.flush().await.unwrap();
        let begin = written(&journal(live.dir.path()));
        let noted = std::fs::read(live.dir.path().join(ACKNOWLEDGED)).unwrap();
        let last = f.add("http", "acme").await;
        copy(live.dir.path(), home.dir.path());
        // The power went before anybody was told of the last one.
        std::fs::write(home.dir.path().join(ACKNOWLEDGED), noted).unwrap();
        let end = written(&journal(home.dir.path()));
        assert!(end > begin);
        Torn { home, acknowledged, last, record: begin..end }
    }

    /// Changes the copied journal, opens the store on it and looks.
    async fn check(&self, what: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let dir = tempfile::tempdir().unwrap();
        copy(self.home.dir.path(), dir.path());
        let path = journal(dir.path());
        let mut bytes = std::fs::read(&path).unwrap();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let setup = Setup { clock: self.home.setup.clock.clone(), ..Setup::new() };
        let opened = LsmLedger::open(dir.path(), &TABLES);
        let disk = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
        let f = Fixture::over(super::worlds::open_over(disk, &setup).await, setup);
        assert_eq!(f.claim_ids("http").await, self.acknowledged, "{what}");
        assert!(f.store.job(self.last).await.unwrap().is_none(), "{what}: half a record is no record");
        assert_eq!(f.submit_all(vec![f.job("small", "acme")]).await, [Submitted::Accepted { pushed_out: None }]);
    }
}

#[tokio::test]
async fn a_torn_last_record_takes_nothing_else_with_it() {
    let torn = Torn::new().await;
    let middle = torn.record.start + torn.record.len() / 2;
    for end in [torn.record.start + 1, middle, torn.record.end - 1] {
        torn.check(&format!("cut at {end} of {:?}", torn.record), |bytes| bytes.truncate(end)).await;
        torn.check(&format!("zeros from {end} of {:?}", torn.record), |bytes| bytes[end..].fill(0)).await;
    }
    let last = torn.record.end - 1;
    torn.check("the last byte is garbled", |bytes| bytes[last] ^= 0xff).await;
}

/// A power cut writes the pages of a record in any order: its end may be there while its middle is not.
#[tokio::test]
async fn a_last_record_with_a_hole_takes_nothing_else_with_it() {
    let torn = Torn::new().await;
    let middle = torn.record.start + torn.record.len() / 2;
    torn.check("a hole in the middle", |bytes| bytes[middle..middle + 8].fill(0)).await;
    let start = torn.record.start;
    torn.check("no number of items", |bytes| bytes[start + 1..start + 5].fill(0)).await;
}

#[tokio::test]
async fn what_is_cut_off_a_journal_is_kept_beside_it() {
    let torn = Torn::new().await;
    let path = journal(torn.home.dir.path());
    let middle = torn.record.start + torn.record.len() / 2;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[middle..middle + 8].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    drop(LsmLedger::open(torn.home.dir.path(), &TABLES).unwrap());
    let kept = std::fs::read(path.with_extension("jnl.torn")).unwrap();
    assert_eq!(kept, bytes[torn.record.clone()]);
    assert_eq!(written(&path), torn.record.start);
}

/// Damage before the last record is no power cut's: somebody was told that what it hit is safe.
#[tokio::test]
async fn a_journal_that_is_damaged_before_its_last_record_is_left_for_an_operator() {
    let torn = Torn::new().await;
    let path = journal(torn.home.dir.path());
    let mut bytes = std::fs::read(&path).unwrap();
    let in_a_value = bytes[..torn.record.start].windows(7).rposition(|window| window == b"run_456").unwrap();
    bytes[in_a_value] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    for _ in 0..2 {
        let Err(error) = LsmLedger::open(torn.home.dir.path(), &TABLES) else { panic!("it must not open") };
        assert!(matches!(error, LedgerError::Journal { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    }
    assert!(std::fs::read(&path).unwrap() == bytes, "nothing was changed");
    assert!(!path.with_extension("jnl.torn").exists());
}

/// A bit that flipped in a batch's first byte, and a page or a sector of zeros, were taken for the end of the journal: the
/// start succeeded without a word, and without the acknowledged jobs behind the damage.
#[tokio::test]
async fn whatever_is_damaged_before_the_last_batch_refuses_the_start() {
    let torn = Torn::new().await;
    let dir = tempfile::tempdir().unwrap();
    copy(torn.home.dir.path(), dir.path());
    let path = journal(dir.path());
    let sound = std::fs::read(&path).unwrap();
    let refuses = |what: &str, at: usize, change: &dyn Fn(&mut [u8])| {
        let mut bytes = sound.clone();
        change(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        let opened = LsmLedger::open(dir.path(), &TABLES).err();
        assert!(matches!(opened, Some(LedgerError::Journal { .. })), "{what} at {at}: {opened:?}");
        assert!(std::fs::read(&path).unwrap() == bytes, "{what} at {at}: nothing was changed");
    };
    let before_last = torn.record.start;
    for at in (0..before_last).step_by(31) {
        refuses("a flipped bit", at, &|bytes| bytes[at] ^= 1 << (at % 8));
    }
    for (what, len) in [("a sector of zeros", 512), ("a page of zeros", 4096)] {
        for at in (0..before_last.saturating_sub(len)).step_by(len) {
            refuses(what, at, &|bytes| bytes[at..at + len].fill(0));
        }
    }
}

/// The largest file of a table of a closed store: `jobs` is the engine's first, then `live`, as they are in the list.
fn table_file(dir: &Path, table: Table) -> PathBuf {
    let folder = dir.join(format!("store/keyspaces/{}/tables", table.number + 1));
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.max_by_key(|path| path.metadata().unwrap().len()).expect("there is a table")
}

/// Zeros a sector in the middle of a table of a closed store, whose records are all in tables.
pub(crate) fn zero_a_sector(dir: &Path, table: Table) {
    LsmLedger::open(dir, &TABLES).unwrap().flush().unwrap();
    let path = table_file(dir, table);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 3;
    bytes[middle..middle + 512].fill(0);
    std::fs::write(path, bytes).unwrap();
}

/// One bad block in the table of jobs answered every listing with 500, and nothing was swept any more.
#[tokio::test]
async fn a_damaged_block_stops_neither_listings_nor_retention_nor_other_jobs() {
    const JOBS_EACH: usize = 300;
    let home = Home::new();
    let f = home.open().await;
    let ended: Vec<JobId> = submit_many(&f, JOBS_EACH).await;
    for claimed in f.claim("http", JOBS_EACH).await.jobs {
        f.store.settle(&lane("http"), vec![f.settlement(claimed, Transition::Done)]).await.unwrap();
    }
    f.advance(SECOND);
    let waiting: Vec<JobId> = submit_many(&f, JOBS_EACH).await;
    f.store.flush().await.unwrap();
    drop(f);
    zero_a_sector(home.dir.path(), JOBS);

    let f = home.open().await;
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = f.store.jobs(&JobFilter::default(), Page { after, limit: 100 }).await.unwrap();
        listed.extend(page.items.iter().map(|view| view.job_id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(f.store.health().unreadable > 0, "it is counted");
    let seen = |ids: &[JobId]| ids.iter().filter(|id| listed.contains(id)).count();
    assert_eq!(seen(&waiting), waiting.len(), "the index has them, whatever became of what they carry");
    assert!(seen(&ended) >= ended.len() - 40, "a block holds few records: {}", seen(&ended));
    let claimed = f.claim_ids("http").await.len();
    assert!(claimed >= waiting.len() - 40, "{claimed} of {} run", waiting.len());
    f.advance(RETENTION + HOUR);
    let swept = f.store.sweep().await.unwrap();
    assert!(swept.jobs >= ended.len() - 40, "{} are swept", swept.jobs);
}

/// Without a block of the index jobs would wait for ever; what they carry is there, so nothing is lost by refusing.
#[tokio::test]
async fn a_damaged_block_of_the_index_refuses_the_start() {
    let home = Home::new();
    let f = home.open().await;
    submit_many(&f, 500).await;
    drop(f);
    zero_a_sector(home.dir.path(), LIVE);
    let ledger = std::sync::Arc::new(LsmLedger::open(home.dir.path(), &TABLES).unwrap());
    let opened = LocalStore::open(ledger, home.setup.clock.clone(), super::worlds::options(&home.setup)).await;
    let error = opened.err().expect("it must not open").to_string();
    assert!(error.contains("table live is damaged") && error.contains("entrega salvage"), "{error}");
}

pub(crate) async fn submit_many(f: &Fixture, count: usize) -> Vec<JobId> {
    let jobs: Vec<Job> = (0..count).map(|_| f.job("http", "acme")).collect();
    let ids = jobs.iter().map(|job| job.id).collect();
    f.submit_all(jobs).await;
    ids
}

/// The last write was acknowledged before the crash: damage to it is not taken for a torn write.
#[tokio::test]
async fn damage_to_an_acknowledged_last_record_refuses_the_start() {
    let live = Home::new();
    let f = live.open().await;
    let last = f.add("http", "acme").await;
    for is_closed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        copy(live.dir.path(), dir.path());
        if is_closed {
            drop(LsmLedger::open(dir.path(), &TABLES).unwrap());
        }
        let path = journal(dir.path());
        let mut bytes = std::fs::read(&path).unwrap();
        let end = written(&path);
        bytes[end - 20] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let error = LsmLedger::open(dir.path(), &TABLES).err();
        let Some(LedgerError::Journal { behind, .. }) = &error else { panic!("{is_closed}: {error:?}") };
        assert!(behind.ids.contains(last.as_bytes()), "it says which jobs are hit");
        assert!(std::fs::read(&path).unwrap() == bytes, "nothing was changed");
    }
}

/// Overwrites one record of a closed store with what no program can read.
async fn garble(home: &Home, table: Table, id: JobId) {
    garble_key(home, table, Key::Id(*id.as_bytes())).await;
}

async fn garble_key(home: &Home, table: Table, key: Key) {
    let mut change = Unit::default();
    change.put(table, key, vec![0xff; 20]);
    home.change(change).await;
}

#[tokio::test]
async fn a_job_that_cannot_be_read_is_blocked_and_the_others_run() {
    let home = Home::new();
    let f = home.open().await;
    let garbled = f.add("http", "acme").await;
    let sound = f.add("http", "acme").await;
    drop(f);
    garble(&home, JOBS, garbled).await;

    let f = home.open().await;
    let mut blocked = f.store.ended(garbled);
    assert!(blocked.as_mut().now_or_never().is_none());
    assert_eq!(f.claim_ids("http").await, [sound]);
    f.store.flush().await.unwrap();
    soon(blocked).await.unwrap();
    let view = f.view(garbled).await;
    assert_eq!(view.state, JobState::Blocked);
    assert!(view.reason.is_some_and(|reason| reason.contains("cannot be read")));
    assert!(f.store.health().unreadable > 0);
    let listed = f.store.jobs(&JobFilter::default(), Page { after: None, limit: 10 }).await.unwrap();
    assert_eq!(listed.items.iter().map(|view| view.job_id).collect::<Vec<_>>(), [sound, garbled]);

    let f = home.reopen(f).await;
    assert_eq!(f.state(garbled).await, JobState::Blocked, "also after a restart");
}

/// The index says that it has expired, its payload cannot be read: the claim failed, and with it everything it had
/// already taken out of the lane.
#[tokio::test]
async fn a_job_that_cannot_be_read_may_expire() {
    let home = Home::new();
    let f = home.open().await;
    let garbled = f.accept(Job { expires_at: Some(f.now() + SECOND), ..f.job("http", "acme") }).await;
    let expiring = f.accept(Job { expires_at: Some(f.now() + SECOND), ..f.job("http", "acme") }).await;
    let sound = f.add("http", "acme").await;
    drop(f);
    garble(&home, JOBS, garbled).await;
    let f = home.open().await;
    f.advance(SECOND);
    let batch = f.store.claim(&lane("http"), 10).await.expect("one bad record stops no lane");
    assert_eq!(batch.jobs.iter().map(|claimed| claimed.job.id).collect::<Vec<_>>(), [sound]);
    f.store.flush().await.unwrap();
    assert_eq!(f.state(expiring).await, JobState::Dropped);
    assert!(matches!(f.state(garbled).await, JobState::Dropped | JobState::Blocked));
}

/// A record that could not be read was taken for a disk that could not be written: the whole store stopped.
#[tokio::test]
async fn a_job_that_cannot_be_read_may_be_pushed_out() {
    let home = Home::new();
    let f = home.open().await;
    for _ in 1..FEW {
        f.add("urgent", "acme").await;
    }
    let garbled = f.accept(f.urgent_job("urgent", Priority::Low)).await;
    drop(f);
    garble(&home, JOBS, garbled).await;
    let f = home.open().await;
    let submitted = f.store.submit(vec![f.urgent_job("urgent", Priority::High)]).await;
    assert!(matches!(submitted.as_deref(), Ok([Submitted::Accepted { .. }])), "{submitted:?}");
    assert_eq!(f.store.health().failure, None);
    assert!(matches!(f.state(garbled).await, JobState::Dropped | JobState::Blocked));
}

#[tokio::test]
async fn a_history_that_cannot_be_read_blocks_its_job() {
    let home = Home::new();
    let f = home.open().await;
    let garbled = f.add("http", "acme").await;
    f.retry(f.claim_one("http").await, SECOND).await;
    drop(f);
    garble(&home, HISTORY, garbled).await;
    let f = home.open().await;
    f.advance(SECOND);
    let sound = f.add("http", "acme").await;
    assert_eq!(f.claim_ids("http").await, [sound]);
    f.store.flush().await.unwrap();
    assert_eq!(f.state(garbled).await, JobState::Blocked);
}

#[tokio::test]
async fn records_that_cannot_be_read_do_not_prevent_the_start() {
    let home = Home::new();
    let f = home.open().await;
    let garbled = f.add("http", "acme").await;
    let sound = f.add("http", "acme").await;
    let dead = f.add_dead("single", "acme", "http_404").await;
    let sound_dead = f.add_dead("single", "acme", "http_404").await;
    drop(f);
    garble_key(&home, LIVE, Key::Scoped("http".into(), *garbled.as_bytes())).await;
    garble(&home, DEAD, dead).await;
    let mut change = Unit::default();
    change.put(LIVE, Key::Text("http\0not an id".into()), &b"not a record"[..]);
    change.put(REGISTRY, Key::Text("key/broken".into()), &b"{"[..]);
    home.change(change).await;

    let f = home.open().await;
    assert_eq!(f.store.health().unreadable, 3, "of dead letters only the marks are read");
    assert_eq!(f.claim_ids("http").await, [sound]);
    f.entry(sound_dead).await;
    f.store.sweep().await.unwrap();
    let listed = f.store.jobs(&JobFilter::default(), Page { after: None, limit: 10 }).await.unwrap();
    assert_eq!(listed.items.iter().map(|view| view.job_id).collect::<Vec<_>>(), [sound_dead, sound]);
}

/// Puts what no program can read under a key of a closed store.
async fn garble_text(home: &Home, table: Table, key: &str) {
    garble_key(home, table, Key::Text(key.into())).await;
}

/// The writer took a key's record that it could not read for a disk that it could not write, and the store stopped.
#[tokio::test]
async fn a_key_that_cannot_be_read_counts_as_new() {
    let home = Home::new();
    drop(home.open().await);
    garble_text(&home, IDEMPOTENCY, "key/acme/order-17").await;
    let f = home.open().await;
    let once = || vec![Idempotency { key: "order-17".into(), request: [1; 32], lasts: SECOND }];
    let first = f.job("http", "acme");
    let id = first.id;
    let entries = vec![NewEntry { job: first, idempotency: once(), answer: None }];
    assert_eq!(f.store.take(entries).await.unwrap(), [Submitted::Accepted { pushed_out: None }]);
    let entries = vec![NewEntry { job: f.job("http", "acme"), idempotency: once(), answer: None }];
    assert_eq!(f.store.take(entries).await.unwrap(), [Submitted::Repeated { id }]);
    assert_eq!((f.store.health().failure, f.store.health().unreadable), (None, 1));
}

/// Nobody shall be written to because a record is damaged; whoever suppresses the address again mends it.
#[tokio::test]
async fn a_suppression_that_cannot_be_read_is_an_error_until_it_is_made_anew() {
    let home = Home::new();
    drop(home.open().await);
    garble_text(&home, MAIL, "suppressed/acme/x@example.com").await;
    let f = home.open().await;
    assert!(f.store.suppressed(&tenant("acme"), &["x@example.com"]).await.is_err());
    assert!(f.store.suppressions(&tenant("acme"), Page { after: None, limit: 9 }).await.unwrap().items.is_empty());
    let anew = bounce(&f, "acme", "x@example.com");
    f.store.suppress(anew.clone()).await.unwrap();
    assert_eq!(f.store.suppressed(&tenant("acme"), &["x@example.com"]).await.unwrap(), [Some(anew)]);
}

#[tokio::test]
async fn starts_that_cannot_be_read_count_as_spent() {
    let home = Home::new();
    let f = home.open().await;
    f.add("throttled", "acme").await;
    f.store.release().await.unwrap();
    drop(f);
    garble_text(&home, REGISTRY, "starts/throttled").await;
    let f = home.open().await;
    assert_eq!(f.claim("throttled", 1).await.wake_at, Some(f.now() + 60 * SECOND));
}
