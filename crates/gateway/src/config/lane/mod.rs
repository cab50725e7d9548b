//! Lanes: from a table to a policy, and back.
//! Invariant: a policy that leaves here passed [`LanePolicy::check`]; a key left out has the value of its product's own lane.
//! What is printed reads back as the same.
//! Never: knows what a channel does.
//!
//! # Layout
//! - here: every key of a lane, each once: how it is read and how it is printed
//! - `retry`, `gates`, `rules`: the keys that are tables

mod gates;
mod retry;
pub(super) mod rules;

use entrega::PRODUCTS;
use entrega::http::HTTP;
use entrega::product::Product;
use entrega_core::classify::Rule;
use entrega_core::dialect::Dialect;
use entrega_core::policy::{DeadLetterPolicy, Destinations, Fairness, LanePolicy, OnExhausted, OnFull};
use toml::{Table, Value};

use super::error::ConfigError;
use super::section::{Given, Section};
use super::value::{duration, keys, none, number, word};

const DESTINATIONS: [(&str, Destinations); 2] = [("one", Destinations::One), ("many", Destinations::Many)];
const ON_FULL: [(&str, OnFull); 2] = [("refuse", OnFull::Refuse), ("preempt", OnFull::Preempt)];
const ON_EXHAUSTED: [(&str, OnExhausted); 2] = [("dlq", OnExhausted::Dlq), ("blocked", OnExhausted::Blocked)];
const DIALECTS: [(&str, Dialect); 4] = [
    ("http", Dialect::Http),
    ("connector", Dialect::Connector),
    ("webhook", Dialect::Webhook),
    ("email", Dialect::Mail),
];

/// A key of a lane.
struct Key {
    name: &'static str,
    read: fn(&mut Draft, Given<'_>) -> Result<(), ConfigError>,
    print: fn(&LanePolicy) -> Value,
}

/// Every key, in the order in which they are read: what another depends on comes before it.
const KEYS: [Key; 18] = [
    Key {
        name: "channel",
        read: |draft, given| given.choice(&channels()).map(|product| *draft = Draft::of(product)),
        print: |lane| Value::from(lane.channel.as_str()),
    },
    Key {
        name: "timeout",
        read: |draft, given| given.duration().map(|timeout| draft.policy.timeout = timeout),
        print: |lane| duration(lane.timeout),
    },
    Key {
        name: "concurrency",
        read: |draft, given| count(given).map(|count| draft.policy.concurrency = count),
        print: |lane| number(lane.concurrency),
    },
    Key {
        name: "fairness",
        read: |draft, given| read_fairness(given.section()?).map(|fairness| draft.policy.fairness = fairness),
        print: |lane| fairness(&lane.fairness),
    },
    Key {
        name: "tenant_concurrency",
        read: |draft, given| count(given).map(|count| draft.tenant_concurrency = Some(count)),
        print: |lane| number(lane.tenant_concurrency),
    },
    Key {
        name: "destinations",
        read: |draft, given| given.choice(&DESTINATIONS).map(|destinations| draft.destinations = Some(destinations)),
        print: |lane| word(&DESTINATIONS, lane.destinations),
    },
    Key {
        name: "priority_scope",
        read: |draft, given| given.choice(&gates::SCOPES).map(|scope| draft.policy.priority_scope = scope),
        print: |lane| word(&gates::SCOPES, lane.priority_scope),
    },
    Key {
        name: "retry",
        read: |draft, given| retry::read(given.section()?).map(|retry| draft.policy.retry = retry),
        print: |lane| retry::print(&lane.retry),
    },
    Key {
        name: "ttl",
        read: |draft, given| {
            let ttl = given.unless_none().map(|given| given.positive_duration()).transpose();
            ttl.map(|ttl| draft.policy.ttl = ttl)
        },
        print: |lane| lane.ttl.map_or_else(none, duration),
    },
    Key {
        name: "throttle",
        read: |draft, given| unless_none(given, gates::read_throttle).map(|throttle| draft.policy.throttle = throttle),
        print: |lane| lane.throttle.as_ref().map_or_else(none, gates::throttle),
    },
    Key {
        name: "breaker",
        read: |draft, given| {
            let timeout = draft.policy.timeout;
            let breaker = unless_none(given, |section| gates::read_breaker(section, timeout));
            breaker.map(|breaker| draft.policy.breaker = breaker)
        },
        print: |lane| lane.breaker.as_ref().map_or_else(none, gates::breaker),
    },
    Key {
        name: "cadence",
        read: |draft, given| unless_none(given, gates::read_cadence).map(|cadence| draft.policy.cadence = cadence),
        print: |lane| lane.cadence.as_ref().map_or_else(none, gates::cadence),
    },
    Key {
        name: "capacity",
        read: |draft, given| count(given).map(|count| draft.policy.capacity = count),
        print: |lane| number(lane.capacity),
    },
    Key {
        name: "on_full",
        read: |draft, given| given.choice(&ON_FULL).map(|on_full| draft.policy.on_full = on_full),
        print: |lane| word(&ON_FULL, lane.on_full),
    },
    Key {
        name: "on_exhausted",
        read: |draft, given| given.choice(&ON_EXHAUSTED).map(|then| draft.policy.on_exhausted = then),
        print: |lane| word(&ON_EXHAUSTED, lane.on_exhausted),
    },
    Key {
        name: "dialect",
        read: |draft, given| given.choice(&DIALECTS).map(|dialect| draft.policy.dialect = dialect),
        print: |lane| word(&DIALECTS, lane.dialect),
    },
    Key {
        name: "classify",
        read: |draft, given| rules::read(given).map(|rules| draft.own_rules = rules),
        print: |lane| {
            let own = lane.rules.len().saturating_sub(lane.dialect.rules().len());
            Value::Array(lane.rules[..own].iter().map(rules::print).collect())
        },
    },
    Key {
        name: "dead_letters",
        read: |draft, given| read_dead_letters(given.section()?).map(|dead| draft.policy.dead_letters = dead),
        print: |lane| keys([("ttl", duration(lane.dead_letters.ttl)), ("cap", number(lane.dead_letters.cap))]),
    },
];

/// A lane while it is read.
struct Draft {
    product: &'static Product,
    policy: LanePolicy,
    tenant_concurrency: Option<u32>,
    destinations: Option<Destinations>,
    own_rules: Vec<Rule>,
}

impl Draft {
    fn of(product: &'static Product) -> Draft {
        Draft {
            product,
            policy: (product.policy)(),
            tenant_concurrency: None,
            destinations: None,
            own_rules: Vec::new(),
        }
    }

    /// The policy, with what follows from other keys.
    fn finish(self) -> LanePolicy {
        let share = (self.product.tenant_share)(&self.policy);
        LanePolicy {
            tenant_concurrency: self.tenant_concurrency.unwrap_or(share),
            destinations: self.destinations.unwrap_or_else(|| self.policy.likely_destinations()),
            rules: [self.own_rules, self.policy.dialect.rules()].concat(),
            ..self.policy
        }
    }
}

/// Reads one lane. Numbers are held against their limits by [`LanePolicy::check`] afterwards.
pub(super) fn read(mut lane: Section<'_>) -> Result<LanePolicy, ConfigError> {
    let mut draft = Draft::of(&HTTP);
    for key in &KEYS {
        if let Some(given) = lane.get(key.name) {
            (key.read)(&mut draft, given)?;
        }
    }
    lane.finish()?;
    Ok(draft.finish())
}

/// A lane as it is printed.
pub(super) fn print(policy: &LanePolicy) -> Table {
    KEYS.iter().map(|key| (key.name.to_owned(), (key.print)(policy))).collect()
}

/// A table that `none` switches off.
fn unless_none<'a, T>(
    given: Given<'a>,
    read: impl FnOnce(Section<'a>) -> Result<T, ConfigError>,
) -> Result<Option<T>, ConfigError> {
    given.unless_none().map(|given| read(given.section()?)).transpose()
}

/// What was given, or else the fallback.
fn or<'a, T>(
    given: Option<Given<'a>>,
    fallback: T,
    read: impl FnOnce(Given<'a>) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    given.map_or(Ok(fallback), read)
}

/// The products by the name that a lane gives as its channel.
fn channels() -> Vec<(&'static str, &'static Product)> {
    PRODUCTS.0.iter().map(|product| (product.name, product)).collect()
}

fn count(given: Given<'_>) -> Result<u32, ConfigError> {
    given.number(0..=u32::MAX)
}

fn read_fairness(mut fairness: Section<'_>) -> Result<Fairness, ConfigError> {
    let base = Fairness::default();
    let policy = Fairness {
        enable_round_robin: or(fairness.get("enable_round_robin"), base.enable_round_robin, |given| given.flag())?,
        max_jobs_per_tenant_batch: or(
            fairness.get("max_jobs_per_tenant_batch"),
            base.max_jobs_per_tenant_batch,
            count,
        )?,
        round_robin_base_priority: or(
            fairness.get("round_robin_base_priority"),
            base.round_robin_base_priority,
            count,
        )?,
        priority_increment_per_round: or(
            fairness.get("priority_increment_per_round"),
            base.priority_increment_per_round,
            count,
        )?,
        max_round_robin_priority: or(fairness.get("max_round_robin_priority"), base.max_round_robin_priority, count)?,
    };
    fairness.finish()?;
    Ok(policy)
}

fn fairness(fairness: &Fairness) -> Value {
    keys([
        ("enable_round_robin", Value::from(fairness.enable_round_robin)),
        ("max_jobs_per_tenant_batch", number(fairness.max_jobs_per_tenant_batch)),
        ("round_robin_base_priority", number(fairness.round_robin_base_priority)),
        ("priority_increment_per_round", number(fairness.priority_increment_per_round)),
        ("max_round_robin_priority", number(fairness.max_round_robin_priority)),
    ])
}

fn read_dead_letters(mut dead: Section<'_>) -> Result<DeadLetterPolicy, ConfigError> {
    let base = DeadLetterPolicy::default();
    let policy = DeadLetterPolicy {
        ttl: or(dead.get("ttl"), base.ttl, |given| given.positive_duration())?,
        cap: or(dead.get("cap"), base.cap, count)?,
    };
    dead.finish()?;
    Ok(policy)
}
