//! Policies: everything a lane may be told.
//! Invariant: a policy that passed [`LanePolicy::check`] can be run.
//! Never: reads files; configuration turns texts into these values.

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::breaker::{BreakerPolicy, WhenOpen};
use crate::cadence::CadencePolicy;
use crate::classify::Rule;
use crate::dialect::Dialect;
use crate::throttle::THROTTLE_MAX_REQUESTS_MAX;
use crate::time::Time;

/// Whether a gate stands before the whole lane or before each tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// One gate for all.
    #[default]
    Lane,
    /// A gate of its own for each tenant.
    Tenant,
}

/// How many destinations the jobs of a lane go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Destinations {
    /// One for all, which the lane's concurrency protects: no more attempts than that, however long they take.
    One,
    /// Many, one of which may hang: an attempt that takes long gives its slot up.
    #[default]
    Many,
}

/// What running out of attempts means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExhausted {
    /// A dead letter.
    #[default]
    Dlq,
    /// Kept in place until an operator decides.
    Blocked,
}

/// What a full lane does with a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnFull {
    /// Refuses it: what was accepted stays.
    #[default]
    Refuse,
    /// Lets a more urgent one push out the newest of the least urgent.
    Preempt,
}

/// Attempts and the waits between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// How many in all.
    pub attempts: u32,
    /// The waits.
    pub backoff: Backoff,
}

/// `max_requests` starts per `per`, at most.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottlePolicy {
    /// How many starts.
    pub max_requests: u32,
    /// In an interval of this length.
    pub per: Duration,
    /// Whose interval.
    pub scope: Scope,
}

/// How tenants take turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fairness {
    /// Off: first in, first out over all tenants.
    pub enable_round_robin: bool,
    /// The most jobs in a row, times the tenant's weight.
    pub max_jobs_per_tenant_batch: u32,
    /// A tenant's priority right after it was served.
    pub round_robin_base_priority: u32,
    /// By how much each round without processing makes it more urgent.
    pub priority_increment_per_round: u32,
    /// The most urgent it gets.
    pub max_round_robin_priority: u32,
}

impl Default for Fairness {
    fn default() -> Fairness {
        Fairness {
            enable_round_robin: true,
            max_jobs_per_tenant_batch: 3,
            round_robin_base_priority: 5,
            priority_increment_per_round: 1,
            max_round_robin_priority: 1,
        }
    }
}

impl Fairness {
    /// A tenant's current priority (1 is most urgent).
    pub fn priority(&self, rounds_without_processing: u64) -> u32 {
        let gained = rounds_without_processing.saturating_mul(self.priority_increment_per_round.into());
        let gained = u32::try_from(gained).unwrap_or(u32::MAX);
        self.round_robin_base_priority.saturating_sub(gained).max(self.max_round_robin_priority)
    }
}

/// How dead letters are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetterPolicy {
    /// How long.
    pub ttl: Duration,
    /// How many per lane.
    pub cap: u32,
}

impl Default for DeadLetterPolicy {
    fn default() -> DeadLetterPolicy {
        DeadLetterPolicy { ttl: Duration::from_hours(7 * 24), cap: 10_000 }
    }
}

/// The policy of one lane.
#[derive(Clone, Debug, PartialEq)]
pub struct LanePolicy {
    /// The channel by name.
    pub channel: String,
    /// Attempts and waits.
    pub retry: Retry,
    /// One attempt, from name look-up to the last byte.
    pub timeout: Duration,
    /// How long a job may wait before it is dropped.
    pub ttl: Option<Duration>,
    /// How many attempts at once; with many destinations, slow ones not counted.
    pub concurrency: u32,
    /// How many of them for one tenant.
    pub tenant_concurrency: u32,
    /// Whether its jobs go to one destination.
    pub destinations: Destinations,
    /// Limit on starts.
    pub throttle: Option<ThrottlePolicy>,
    /// Stops calling what is down.
    pub breaker: Option<(BreakerPolicy, Scope)>,
    /// One start per tick.
    pub cadence: Option<CadencePolicy>,
    /// How many jobs may wait.
    pub capacity: u32,
    /// What happens past that.
    pub on_full: OnFull,
    /// What happens past the last attempt.
    pub on_exhausted: OnExhausted,
    /// Turns between tenants.
    pub fairness: Fairness,
    /// Whether a job is urgent among those of its tenant or among all.
    pub priority_scope: Scope,
    /// The default rules.
    pub dialect: Dialect,
    /// All rules: the lane's own first, then the dialect's.
    pub rules: Vec<Rule>,
    /// How dead letters are kept.
    pub dead_letters: DeadLetterPolicy,
    /// Whether its jobs go to endpoints, each of which may have a throttle of its own.
    pub calls_endpoints: bool,
}

/// The most that a penalty multiplies a cadence's interval by.
pub const CADENCE_PENALTY_MAX: f64 = 100.0;

/// The longest a `Retry-After` can hold a job.
pub const RETRY_AFTER_MAX: Duration = Duration::from_hours(24);

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn breaker(open: Duration, probe_timeout: Duration) -> BreakerPolicy {
    BreakerPolicy { failures: 5, open, probe_timeout, when_open: WhenOpen::Hold }
}

impl LanePolicy {
    /// Plain HTTP jobs. No throttle and no breaker: its jobs go to many destinations, and one that is down must not
    /// hold up the rest. For the same reason a quarter of the slots is out of any one tenant's reach.
    pub fn http() -> LanePolicy {
        LanePolicy {
            channel: "http".into(),
            retry: Retry { attempts: 5, backoff: Backoff::exponential(seconds(1), seconds(60)) },
            timeout: seconds(10),
            ttl: Some(Duration::from_hours(24)),
            concurrency: 64,
            tenant_concurrency: 48,
            destinations: Destinations::Many,
            throttle: None,
            breaker: None,
            cadence: None,
            capacity: 100_000,
            on_full: OnFull::Refuse,
            on_exhausted: OnExhausted::Dlq,
            fairness: Fairness::default(),
            priority_scope: Scope::Tenant,
            dialect: Dialect::Http,
            rules: Dialect::Http.rules(),
            dead_letters: DeadLetterPolicy::default(),
            calls_endpoints: false,
        }
    }

    /// E-mail: 5 attempts, 1 s → 60 s, 100 per minute. All of it leaves through the same few servers, so one tenant may
    /// have all slots, and a breaker holds the mails while no server answers.
    pub fn mail() -> LanePolicy {
        LanePolicy {
            channel: "email".into(),
            timeout: seconds(30),
            concurrency: 5,
            tenant_concurrency: 5,
            destinations: Destinations::One,
            throttle: Some(ThrottlePolicy { max_requests: 100, per: seconds(60), scope: Scope::Lane }),
            breaker: Some((breaker(seconds(30), seconds(30)), Scope::Lane)),
            dialect: Dialect::Mail,
            rules: Dialect::Mail.rules(),
            ..LanePolicy::http()
        }
    }

    /// Webhooks: 6 attempts over a day and more; per endpoint four at a time, and a breaker.
    pub fn webhook() -> LanePolicy {
        let delays = [60, 300, 1800, 7200, 86_400].map(seconds).to_vec();
        LanePolicy {
            channel: "webhook".into(),
            retry: Retry { attempts: 6, backoff: Backoff::Listed(delays) },
            timeout: seconds(5),
            ttl: None,
            concurrency: 512,
            tenant_concurrency: 4,
            breaker: Some((breaker(seconds(60), seconds(5)), Scope::Tenant)),
            dialect: Dialect::Webhook,
            rules: Dialect::Webhook.rules(),
            calls_endpoints: true,
            ..LanePolicy::http()
        }
    }

    /// Events on their way to whoever listens: nobody is called, so nothing is to be spared.
    pub fn events() -> LanePolicy {
        LanePolicy {
            channel: "event".into(),
            ttl: None,
            concurrency: 16,
            tenant_concurrency: 16,
            destinations: Destinations::One,
            ..LanePolicy::http()
        }
    }

    /// A paced queue before somebody else's API.
    pub fn proxy() -> LanePolicy {
        LanePolicy {
            channel: "proxy".into(),
            retry: Retry { attempts: 1, ..LanePolicy::http().retry },
            timeout: seconds(5),
            ttl: Some(seconds(10)),
            concurrency: 16,
            tenant_concurrency: 16,
            destinations: Destinations::One,
            cadence: Some(CadencePolicy::starting_at(seconds(1))),
            breaker: Some((
                BreakerPolicy { failures: 5, open: seconds(30), probe_timeout: seconds(5), when_open: WhenOpen::Pass },
                Scope::Lane,
            )),
            capacity: 100,
            on_full: OnFull::Preempt,
            priority_scope: Scope::Lane,
            ..LanePolicy::http()
        }
    }

    /// The job around a connector's call.
    pub fn connector() -> LanePolicy {
        LanePolicy {
            channel: "connector".into(),
            retry: Retry { attempts: 3, backoff: Backoff::exponential(seconds(1), seconds(60)) },
            timeout: seconds(300),
            concurrency: 16,
            tenant_concurrency: 16,
            destinations: Destinations::One,
            dialect: Dialect::Connector,
            rules: Dialect::Connector.rules(),
            ..LanePolicy::http()
        }
    }

    /// Whether it can be run; the error names the key.
    pub fn check(&self) -> Result<(), BadPolicy> {
        let at_least_one = [
            ("retry.attempts", self.retry.attempts),
            ("concurrency", self.concurrency),
            ("tenant_concurrency", self.tenant_concurrency),
            ("capacity", self.capacity),
            ("dead_letters.cap", self.dead_letters.cap),
            ("fairness.max_jobs_per_tenant_batch", self.fairness.max_jobs_per_tenant_batch),
        ];
        for (key, value) in at_least_one {
            limit(key, value.into(), 1, u32::MAX.into())?;
        }
        limit("retry.attempts", self.retry.attempts.into(), 1, 100)?;
        limit("concurrency", self.concurrency.into(), 1, 10_000)?;
        limit("timeout in ms", self.timeout.as_millis(), 1, 600_000)?;
        if let Some(throttle) = &self.throttle {
            limit("throttle.max_requests", throttle.max_requests.into(), 1, THROTTLE_MAX_REQUESTS_MAX.into())?;
            limit("throttle.per in ms", throttle.per.as_millis(), 1, 86_400_000)?;
        }
        if let Some((breaker, _)) = &self.breaker {
            limit("breaker.failures", breaker.failures.into(), 1, 1_000_000)?;
            limit("breaker.open in ms", breaker.open.as_millis(), 1, 86_400_000)?;
        }
        if let Some(cadence) = &self.cadence {
            check_cadence(cadence)?;
        }
        if self.passes_when_open() && self.has_tenant_scope() {
            return Err(BadPolicy::PassNeedsLane);
        }
        match self.fairness.enable_round_robin || !self.has_tenant_gates() {
            true => Ok(()),
            false => Err(BadPolicy::GatesNeedTurns),
        }
    }

    /// Whether something judges each start and learns from each attempt: a gate of the lane or of its tenants, or the
    /// throttle that an endpoint may get at any time.
    pub fn has_gates(&self) -> bool {
        self.throttle.is_some() || self.breaker.is_some() || self.cadence.is_some() || self.calls_endpoints
    }

    /// Whether jobs go past its breaker while that is open.
    pub fn passes_when_open(&self) -> bool {
        self.breaker.as_ref().is_some_and(|(breaker, _)| breaker.when_open == WhenOpen::Pass)
    }

    /// How many destinations a lane like this has if nobody says it: what holds the whole lane protects one.
    pub fn likely_destinations(&self) -> Destinations {
        let of_lane = |scope: Option<Scope>| scope == Some(Scope::Lane);
        let throttled = of_lane(self.throttle.as_ref().map(|throttle| throttle.scope));
        let broken = of_lane(self.breaker.as_ref().map(|(_, scope)| *scope));
        match throttled || broken || self.cadence.is_some() {
            true => Destinations::One,
            false => self.destinations,
        }
    }

    /// When a job expires that an operator lets go on at `now`: it has time to live again, and never less than it had.
    pub fn expires_unblocked(&self, now: Time, expires: Time) -> Time {
        match (expires.finite(), self.ttl) {
            (Some(old), Some(ttl)) => old.max(now + ttl),
            (Some(old), None) => old.max(now),
            (None, _) => Time::NEVER,
        }
    }

    fn has_tenant_scope(&self) -> bool {
        let throttled = self.throttle.as_ref().is_some_and(|throttle| throttle.scope == Scope::Tenant);
        let broken = self.breaker.as_ref().is_some_and(|(_, scope)| *scope == Scope::Tenant);
        throttled || broken
    }

    fn has_tenant_gates(&self) -> bool {
        self.has_tenant_scope() || self.tenant_concurrency < self.concurrency
    }
}

fn check_cadence(cadence: &CadencePolicy) -> Result<(), BadPolicy> {
    limit("cadence.initial in ms", cadence.initial.as_millis(), 1, 86_400_000)?;
    limit("cadence.max in ms", cadence.max.as_millis(), 1, 86_400_000)?;
    let is_ordered = !cadence.min.is_zero() && cadence.min <= cadence.initial && cadence.initial <= cadence.max;
    match (is_ordered, (1.0..=CADENCE_PENALTY_MAX).contains(&cadence.penalty)) {
        (false, _) => Err(BadPolicy::CadenceBounds),
        (_, false) => Err(BadPolicy::CadencePenalty),
        _ => Ok(()),
    }
}

fn limit(key: &'static str, value: u128, least: u128, most: u128) -> Result<(), BadPolicy> {
    match (least..=most).contains(&value) {
        true => Ok(()),
        false => Err(BadPolicy::OutOfRange { key, value, least, most }),
    }
}

/// A policy that cannot be run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadPolicy {
    /// A number beyond its limits.
    #[error("{key} = {value}: must be from {least} to {most}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// What was given.
        value: u128,
        /// The least that is allowed.
        least: u128,
        /// The most that is allowed.
        most: u128,
    },
    /// One queue for all cannot hold back one tenant.
    #[error(
        "fairness.enable_round_robin = false: a gate or limit per tenant needs turns; drop scope = \"tenant\", set \
         tenant_concurrency to concurrency, or leave turns on"
    )]
    GatesNeedTurns,
    /// Whoever is held by a gate of their own cannot be let past the lane's.
    #[error(
        "breaker.when_open = \"pass\": an open breaker lets jobs past the lane's own gates only; write scope = \"lane\" \
         for breaker and throttle, or when_open = \"hold\""
    )]
    PassNeedsLane,
    /// An interval outside its own bounds.
    #[error("cadence: must have min, initial and max in ascending order, min above zero")]
    CadenceBounds,
    /// A penalty that makes it faster, or stops it.
    #[error("cadence.penalty: must be from 1 to {CADENCE_PENALTY_MAX}")]
    CadencePenalty,
}
