//! Random damage to a store with acknowledged jobs: every start has all of them, or refuses, or says what cannot be read.
//! Invariant: the same seed damages the same places. `cargo xtask damage` runs it with as many as are asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use entrega::store::local::LocalStore;
use entrega::store::local::tables::TABLES;
use entrega_core::id::JobId;
use entrega_ledger::LsmLedger;

use super::fixture::{Fixture, Setup};
use super::worlds::{open_over, options};

const JOBS: usize = 1_000;
/// Jobs of one submission, so about of one batch of the journal.
const TOGETHER: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Bit,
    SixtyFourBytes,
    Sector,
    Page,
    Copied,
    Cut,
}

const KINDS: [Kind; 6] = [Kind::Bit, Kind::SixtyFourBytes, Kind::Sector, Kind::Page, Kind::Copied, Kind::Cut];

/// What came of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    /// Every job is there.
    Whole,
    /// It did not start, and said why.
    Refused,
    /// It started, and counts what it cannot read; the others run.
    Reported,
    /// It started, jobs are missing, and nobody is told.
    Silent,
}

/// The same numbers for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// The files of a store, as a crash or an orderly end leaves them.
struct Left {
    name: &'static str,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Left {
    fn of(name: &'static str, dir: &Path) -> Left {
        let mut files = Vec::new();
        gather(dir, dir, &mut files);
        files.sort();
        Left { name, files }
    }

    fn put_into(&self, dir: &Path) {
        for (path, bytes) in &self.files {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
    }

    /// Half of the damage is spread over the files by size, the other half hits each as often.
    fn damage(&self, kind: Kind, numbers: &mut Numbers) -> (PathBuf, Vec<u8>, usize) {
        let sizes: Vec<usize> = self.files.iter().map(|(_, bytes)| written(bytes)).collect();
        loop {
            let mut place = numbers.below(self.files.len());
            if numbers.below(2) == 0 {
                let mut at = numbers.below(sizes.iter().sum());
                place =
                    sizes.iter().position(|size| at.checked_sub(*size).inspect(|rest| at = *rest).is_none()).unwrap();
            }
            let (path, sound) = &self.files[place];
            let mut bytes = sound.clone();
            let Some(at) = (sizes[place] > 0).then(|| harm(kind, &mut bytes, sizes[place], numbers)) else { continue };
            if bytes != *sound {
                return (path.clone(), bytes, at);
            }
        }
    }
}

/// Damages bytes, of which so many were written. Gives where.
fn harm(kind: Kind, bytes: &mut Vec<u8>, written: usize, numbers: &mut Numbers) -> usize {
    let at = numbers.below(written);
    let zeros = |bytes: &mut [u8], len: usize| {
        let start = at / len * len;
        let end = (start + len).min(bytes.len());
        bytes[start..end].fill(0);
        start
    };
    match kind {
        Kind::Bit => {
            bytes[at] ^= 1 << numbers.below(8);
            at
        }
        Kind::SixtyFourBytes => {
            let end = (at + 64).min(bytes.len());
            bytes[at..end].iter_mut().for_each(|byte| *byte = numbers.below(256) as u8);
            at
        }
        Kind::Sector => zeros(bytes, 512),
        Kind::Page => zeros(bytes, 4096),
        Kind::Copied => {
            let len = (1 + numbers.below(4096)).min(written);
            let from = numbers.below(written - len + 1);
            let to = numbers.below(written - len + 1);
            bytes.copy_within(from..from + len, to);
            to
        }
        Kind::Cut => {
            bytes.truncate(at);
            at
        }
    }
}

fn written(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1)
}

/// The files in a folder. Of a journal, which is made long in advance, only some of the room behind it.
fn gather(root: &Path, dir: &Path, files: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            gather(root, &path, files);
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        if path.extension().is_some_and(|ending| ending == "jnl") {
            bytes.truncate((written(&bytes) + 8192).min(bytes.len()));
        }
        files.push((path.strip_prefix(root).unwrap().to_owned(), bytes));
    }
}

/// In memory where that can be had: thousands of stores are made and thrown away.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

async fn fill(f: &Fixture, jobs: usize, all: &mut BTreeSet<JobId>) {
    for _ in 0..jobs / TOGETHER {
        let some: Vec<_> = (0..TOGETHER).map(|_| f.job("http", "acme")).collect();
        all.extend(some.iter().map(|job| job.id));
        f.submit_all(some).await;
    }
    f.store.flush().await.unwrap();
}

/// A store with jobs in tables alone, in a journal alone, and half of them in each; after an orderly end and after a crash.
async fn make(setup: &Setup) -> (Vec<Left>, BTreeSet<JobId>, BTreeSet<JobId>) {
    let (mut in_both, mut in_one) = (BTreeSet::new(), BTreeSet::new());
    let mut left = Vec::new();

    let dir = scratch();
    let f = Fixture::over(open_over(LsmLedger::open(dir.path(), &TABLES).unwrap(), setup).await, setup.clone());
    fill(&f, JOBS, &mut in_one).await;
    left.push(Left::of("journal, crashed", dir.path()));
    drop(f);
    left.push(Left::of("journal, closed", dir.path()));

    let dir = scratch();
    let ledger = Arc::new(LsmLedger::open(dir.path(), &TABLES).unwrap());
    let store = LocalStore::open(ledger.clone(), setup.clock.clone(), options(setup)).await.unwrap();
    let f = Fixture::over(Arc::new(store), setup.clone());
    fill(&f, JOBS / 2, &mut in_both).await;
    drop(f);
    ledger.flush().unwrap();
    drop(ledger);
    // All of it is in tables, as if the engine had begun a new journal and removed this one.
    std::fs::write(dir.path().join("store/0.jnl"), []).unwrap();
    let f = Fixture::over(open_over(LsmLedger::open(dir.path(), &TABLES).unwrap(), setup).await, setup.clone());
    fill(&f, JOBS / 2, &mut in_both).await;
    left.push(Left::of("both, crashed", dir.path()));
    drop(f);
    left.push(Left::of("both, closed", dir.path()));
    (left, in_one, in_both)
}

/// Starts a store and lets everything run that it has.
async fn start(dir: &Path, setup: &Setup, jobs: &BTreeSet<JobId>) -> (Came, String) {
    let ledger = match LsmLedger::open(dir, &TABLES) {
        Ok(ledger) => Arc::new(ledger),
        Err(error) => return (Came::Refused, error.to_string()),
    };
    let store = match LocalStore::open(ledger, setup.clock.clone(), options(setup)).await {
        Ok(store) => store,
        Err(error) => return (Came::Refused, error.to_string()),
    };
    let f = Fixture::over(Arc::new(store), setup.clone());
    let run: BTreeSet<JobId> = f.claim_ids("http").await.into_iter().collect();
    let unreadable = f.store.health().unreadable;
    let missing = jobs.difference(&run).count();
    match (missing, unreadable) {
        (0, _) => (Came::Whole, String::new()),
        (missing, 0) => (Came::Silent, format!("{missing} jobs are missing")),
        (missing, count) => (Came::Reported, format!("{missing} jobs, {count} places")),
    }
}

/// How often each kind of damage came to what.
#[derive(Default)]
struct Table(BTreeMap<(Kind, Came), usize>);

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<16}{:>8}{:>9}{:>10}{:>8}", "damage", "whole", "refused", "reported", "silent")?;
        for kind in KINDS {
            let of = |came| self.0.get(&(kind, came)).copied().unwrap_or(0);
            let [whole, refused, reported, silent] = [Came::Whole, Came::Refused, Came::Reported, Came::Silent].map(of);
            writeln!(f, "{:<16}{whole:>8}{refused:>9}{reported:>10}{silent:>8}", format!("{kind:?}"))?;
        }
        Ok(())
    }
}

/// The engine took most damage for the end of what was written: a start succeeded without a word, and up to three quarters
/// of the acknowledged jobs were gone.
#[tokio::test]
async fn no_damage_loses_acknowledged_jobs_in_silence() {
    let number = |name: &str, usual: u64| std::env::var(name).ok().map_or(usual, |text| text.parse().unwrap());
    let each = number("ENTREGA_DAMAGE_EACH", 8);
    let seed = number("ENTREGA_DAMAGE_SEED", 1);
    let setup = Setup::new();
    let (left, in_one, in_both) = make(&setup).await;
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut table = Table::default();
    let mut silent = Vec::new();
    for kind in KINDS {
        for _ in 0..each {
            let place = numbers.below(left.len());
            let (path, bytes, at) = left[place].damage(kind, &mut numbers);
            let dir = scratch();
            left[place].put_into(dir.path());
            std::fs::write(dir.path().join(&path), bytes).unwrap();
            let jobs = if place < 2 { &in_one } else { &in_both };
            let (came, said) = start(dir.path(), &setup, jobs).await;
            *table.0.entry((kind, came)).or_default() += 1;
            if came == Came::Silent {
                silent.push(format!("{kind:?} in {} at {at} ({}): {said}", path.display(), left[place].name));
            }
        }
    }
    println!("{each} of each kind, seed {seed}\n{table}");
    assert!(silent.is_empty(), "lost in silence:\n{}", silent.join("\n"));
}

/// What is not damaged starts, so the refusals above are about the damage.
#[tokio::test]
async fn a_store_without_damage_starts_with_everything() {
    let setup = Setup::new();
    let (left, in_one, in_both) = make(&setup).await;
    for (place, left) in left.iter().enumerate() {
        let dir = scratch();
        left.put_into(dir.path());
        let jobs = if place < 2 { &in_one } else { &in_both };
        assert_eq!(start(dir.path(), &setup, jobs).await, (Came::Whole, String::new()), "{}", left.name);
    }
}
