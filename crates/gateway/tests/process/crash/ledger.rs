//! The books: what was sent, what of it was accepted, when something was killed, and what must have come of it all.
//! Invariant: every job sent has a number of its own, which its URL carries to the destination.

use std::collections::BTreeMap;
use std::time::Duration;

use entrega_core::time::Time;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::nodes::destination::Destination;

const TENANTS: u64 = 20;
const JOBS_MAX: u64 = 40;
/// What a process sent before it was killed may be read by the destination so much later.
const ON_THE_WAY_MAX: Duration = Duration::from_millis(500);
/// Of what is wrong, so much is shown.
const SHOWN: usize = 5;

/// An array of jobs under one key, to be sent once or more often.
pub struct Submission {
    first: u64,
    pub key: String,
    pub jobs: Value,
}

impl Submission {
    /// How many jobs it is.
    pub fn count(&self) -> usize {
        self.jobs.as_array().map_or(0, Vec::len)
    }
}

/// The books.
#[derive(Default)]
pub struct Ledger {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    /// How many jobs were sent, and the number of the next.
    sent: u64,
    /// Under which id a job was accepted, by its number.
    accepted: BTreeMap<u64, String>,
    /// Submissions that were accepted only when they were sent again.
    in_doubt: usize,
    /// Those of them that had been taken before: only the answer was lost.
    answers_lost: usize,
    kills: Vec<Time>,
}

/// What came of everything.
#[derive(Debug)]
pub struct Balance {
    pub kills: usize,
    pub sent: u64,
    pub accepted: usize,
    pub in_doubt: usize,
    pub answers_lost: usize,
    pub repeats: usize,
    pub repeats_per_kill: usize,
}

impl Ledger {
    /// Some jobs that nobody has sent.
    pub fn draw(&self, destination: &Destination, chance: &mut fastrand::Rng) -> Submission {
        let count = chance.u64(1..=JOBS_MAX);
        let first = {
            let mut entries = self.entries.lock();
            entries.sent += count;
            entries.sent - count
        };
        let job = |number: u64| {
            let (url, tenant) = (destination.url(&format!("/?{number}")), format!("tenant-{}", number % TENANTS));
            json!({"tenant": tenant, "request": {"url": url, "body": "x".repeat(200)}})
        };
        let jobs = (first..first + count).map(job).collect();
        Submission { first, key: format!("submission-{first}"), jobs: Value::Array(jobs) }
    }

    /// An answer's rows: an id for each job that was accepted. An id that was given before must be the same.
    pub fn accept(&self, submission: &Submission, rows: &[Value]) {
        let mut entries = self.entries.lock();
        for (number, row) in (submission.first..).zip(rows) {
            let Some(id) = row["jobId"].as_str() else { continue };
            let kept = entries.accepted.entry(number).or_insert_with(|| id.to_owned());
            assert_eq!(kept, id, "job {number}, sent again under the key {}, became another job", submission.key);
        }
    }

    /// A submission without an answer was sent again, and was accepted.
    pub fn note_cleared(&self, was_taken_before: bool) {
        let mut entries = self.entries.lock();
        entries.in_doubt += 1;
        entries.answers_lost += usize::from(was_taken_before);
    }

    pub fn note_kill(&self, at: Time) {
        self.entries.lock().kills.push(at);
    }

    /// How many accepted jobs have not arrived, roughly.
    pub fn backlog(&self, destination: &Destination) -> usize {
        self.entries.lock().accepted.len().saturating_sub(destination.jobs())
    }

    /// How many accepted jobs have not arrived.
    pub fn missing(&self, destination: &Destination) -> usize {
        let entries = self.entries.lock();
        let arrived = entries.arrived(destination);
        entries.accepted.keys().filter(|number| !arrived.contains_key(number)).count()
    }

    /// Checks the books once everything has drained. So many attempts at most may be repeated after one kill.
    pub fn check(&self, destination: &Destination, repeats_max: usize) -> Balance {
        let entries = self.entries.lock();
        let arrived = entries.arrived(destination);
        let lost: Vec<_> = entries.accepted.iter().filter(|(number, _)| !arrived.contains_key(number)).collect();
        let some = &lost[..lost.len().min(SHOWN)];
        assert!(lost.is_empty(), "{} of {} accepted jobs never arrived: {some:?}", lost.len(), entries.accepted.len());
        let by_kill = entries.repeats(destination);
        let most = by_kill.values().copied().max().unwrap_or(0);
        assert!(most <= repeats_max, "{most} attempts repeated after one kill, more than {repeats_max}: {by_kill:?}");
        Balance {
            kills: entries.kills.len(),
            sent: entries.sent,
            accepted: entries.accepted.len(),
            in_doubt: entries.in_doubt,
            answers_lost: entries.answers_lost,
            repeats: by_kill.values().sum(),
            repeats_per_kill: most,
        }
    }
}

impl Entries {
    /// What arrived, by number: each was sent, and as one job, the accepted one if it was accepted.
    fn arrived(&self, destination: &Destination) -> BTreeMap<u64, String> {
        let mut arrived = BTreeMap::new();
        destination.each_job(|id, calls| {
            let number = calls.query.parse().ok().filter(|number| *number < self.sent);
            let number = number.unwrap_or_else(|| panic!("{id} arrived, and nobody sent it: {}", calls.query));
            let accepted = self.accepted.get(&number);
            assert!(accepted.is_none_or(|kept| kept == id), "job {number} is {accepted:?}, and arrived as {id}");
            let other = arrived.insert(number, id.to_owned());
            assert!(other.is_none(), "job {number} was sent under one key, and arrived as {other:?} and {id}");
        });
        arrived
    }

    /// How many attempts each kill made necessary again: of two attempts of a job, the first was cut short by the first
    /// kill after it. Without one there is no excuse.
    fn repeats(&self, destination: &Destination) -> BTreeMap<usize, usize> {
        let mut by_kill = BTreeMap::new();
        destination.each_job(|id, calls| {
            let mut times = calls.times.clone();
            times.sort_unstable();
            for pair in times.windows(2) {
                let kill = self.kills.partition_point(|kill| *kill + ON_THE_WAY_MAX < pair[0]);
                let is_excused = self.kills.get(kill).is_some_and(|kill| *kill < pair[1]);
                assert!(is_excused, "{id} was attempted twice without a kill: {times:?}, kills {:?}", self.kills);
                *by_kill.entry(kill).or_default() += 1;
            }
        });
        by_kill
    }
}
