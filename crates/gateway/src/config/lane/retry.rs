//! `retry`: attempts, and the waits between them.

use std::time::Duration;

use entrega_core::backoff::Backoff;
use entrega_core::policy::{LanePolicy, Retry};
use toml::Value;

use super::super::error::ConfigError;
use super::super::layer::{RETRY_DOUBLING, RETRY_LISTED};
use super::super::section::{Given, Section};
use super::super::value::{duration, keys, number};
use super::{count, or};

pub(super) fn read(mut retry: Section<'_>) -> Result<Retry, ConfigError> {
    for listed in RETRY_LISTED {
        retry.exclude(listed, &RETRY_DOUBLING)?;
    }
    let base = LanePolicy::http().retry;
    let attempts = or(retry.get("attempts"), base.attempts, count)?;
    let doubling = read_doubling(&mut retry)?;
    let backoff = or(retry.get("delays"), doubling, |given| {
        let empty = given.must_be("a list of at least one duration, such as [\"1m\", \"5m\"]");
        let delays: Vec<Duration> = given.list()?.iter().map(Given::duration).collect::<Result<_, _>>()?;
        if delays.is_empty() && attempts > 1 { Err(empty) } else { Ok(Backoff::Listed(delays)) }
    })?;
    retry.finish()?;
    Ok(Retry { attempts, backoff })
}

fn read_doubling(retry: &mut Section<'_>) -> Result<Backoff, ConfigError> {
    let seconds = Duration::from_secs;
    Ok(Backoff::Exponential {
        base: or(retry.get("base"), seconds(1), |given| given.duration())?,
        max: or(retry.get("max"), seconds(60), |given| given.duration())?,
        jitter: or(retry.get("jitter"), 0.25, |given| given.fraction(0.0..=1.0))?,
        floor: or(retry.get("floor"), Duration::ZERO, |given| given.duration())?,
    })
}

pub(super) fn print(retry: &Retry) -> Value {
    let attempts = ("attempts", number(retry.attempts));
    match &retry.backoff {
        Backoff::Listed(delays) => {
            keys([attempts, ("delays", Value::Array(delays.iter().copied().map(duration).collect()))])
        }
        Backoff::Exponential { base, max, jitter, floor } => keys([
            attempts,
            ("base", duration(*base)),
            ("max", duration(*max)),
            ("jitter", Value::from(*jitter)),
            ("floor", duration(*floor)),
        ]),
    }
}
