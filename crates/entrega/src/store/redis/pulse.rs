//! How the server is: whether it is fit to keep jobs, and how full it is.
//! Invariant: a server that would lose or evict jobs is refused, with what to set.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::link::Link;
use super::{RedisOpenError, Shared};
use crate::clock::Clock;

const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The least version whose scripts can be told to go on when memory is full.
const VERSION_MIN: (u32, u32) = (7, 0);
/// From here on memory is a warning, and from there on critical.
const MEMORY_LEVELS: (f64, f64) = (0.8, 0.9);

/// A server that would lose jobs.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// Nothing would survive its restart.
    #[error(
        "Redis keeps no append-only file, so its restart would lose every job; set `appendonly yes` (redis-cli config \
         set appendonly yes, and in redis.conf), or start with --allow-unsafe-redis if that is meant"
    )]
    NotPersistent,
    /// Its file is synced when the system likes.
    #[error(
        "Redis never syncs its append-only file (appendfsync no), so a crash of its machine would lose much; set \
         `appendfsync everysec` or `always`, or start with --allow-unsafe-redis if that is meant"
    )]
    NeverSyncs,
    /// It would throw jobs away to make room.
    #[error(
        "Redis throws keys away when its memory is full (maxmemory-policy {policy}), so it would lose jobs; set \
         `maxmemory-policy noeviction`, or start with --allow-unsafe-redis if that is meant"
    )]
    Evicts {
        /// What is set.
        policy: String,
    },
    /// It is too old.
    #[error("Redis {version} is too old: 7.0 or later is needed, or any Valkey")]
    TooOld {
        /// What it is.
        version: String,
    },
}

/// How the server was when it was last looked at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pulse {
    /// Its version.
    pub version: String,
    has_aof: bool,
    /// `always`, `everysec` or `no`; unknown where the server does not let its configuration be read.
    sync: String,
    eviction: String,
    /// Bytes in use.
    pub memory_used: u64,
    /// Bytes that may be; 0 for no limit.
    pub memory_max: u64,
}

impl Pulse {
    /// Refuses a server that would lose jobs.
    pub fn check(&self) -> Result<(), Unfit> {
        self.check_version()?;
        match () {
            _ if !self.has_aof => Err(Unfit::NotPersistent),
            _ if self.sync == "no" => Err(Unfit::NeverSyncs),
            _ if self.eviction != "noeviction" => Err(Unfit::Evicts { policy: self.eviction.clone() }),
            _ => Ok(()),
        }
    }

    fn check_version(&self) -> Result<(), Unfit> {
        let mut parts = self.version.split('.').map(|part| part.parse().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        match version >= VERSION_MIN {
            true => Ok(()),
            false => Err(Unfit::TooOld { version: self.version.clone() }),
        }
    }

    pub(super) fn warn_if_unfit(&self) {
        if let Err(unfit) = self.check() {
            tracing::warn!(errorReason = %unfit, "This Redis may lose jobs");
        }
    }

    /// What a 2xx means with this server.
    pub fn durability(&self) -> &'static str {
        match (self.has_aof, self.sync.as_str()) {
            (true, "always") => "synced to the append-only file before the answer: nothing is lost with this server",
            (true, "everysec") => {
                "in Redis's memory and its append-only file, which is synced every second: if its machine dies, up to \
                 about two seconds of accepted work are lost"
            }
            (true, "no") => {
                "in Redis's memory, written to the append-only file and synced when the system likes: if the machine \
                 dies, half a minute of accepted work can be lost"
            }
            (true, _) => "in Redis's memory and its append-only file; how often that is synced cannot be read",
            (false, _) => "in Redis's memory only: if Redis stops, every job since its last snapshot is lost",
        }
    }

    /// The part of the memory that is in use, where there is a limit.
    pub fn memory_ratio(&self) -> Option<f64> {
        (self.memory_max > 0).then(|| self.memory_used as f64 / self.memory_max as f64)
    }

    /// 0 well, 1 a warning, 2 critical.
    pub fn memory_level(&self) -> u8 {
        let ratio = self.memory_ratio().unwrap_or(0.0);
        u8::from(ratio > MEMORY_LEVELS.0) + u8::from(ratio > MEMORY_LEVELS.1)
    }
}

/// Looks at a server, for people who want to know before they use it.
pub async fn pulse(url: &str) -> Result<Pulse, RedisOpenError> {
    take(&Link::open(url, Clock::system()).await?).await
}

/// Looks at the server.
pub(super) async fn take(link: &Link) -> Result<Pulse, RedisOpenError> {
    let failed = |error: redis::RedisError| RedisOpenError::Connect {
        address: link.address().to_owned(),
        reason: error.to_string(),
    };
    let info = link.call(redis::cmd("INFO").arg("everything")).await.map_err(failed)?;
    let text: String = redis::from_redis_value(info).unwrap_or_default();
    let mut pulse = read(&text);
    // A hosted server may not let its configuration be read; then it is unknown, not wrong.
    let config = link.call(redis::cmd("CONFIG").arg("GET").arg("appendfsync")).await;
    let config: HashMap<String, String> =
        config.ok().and_then(|value| redis::from_redis_value(value).ok()).unwrap_or_default();
    pulse.sync = config.get("appendfsync").cloned().unwrap_or_default();
    Ok(pulse)
}

fn read(info: &str) -> Pulse {
    let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.trim().split_once(':')).collect();
    let text = |name: &str| fields.get(name).copied().unwrap_or_default().to_owned();
    let number = |name: &str| fields.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
    Pulse {
        version: text("redis_version"),
        has_aof: fields.get("aof_enabled") == Some(&"1"),
        sync: String::new(),
        eviction: text("maxmemory_policy"),
        memory_used: number("used_memory"),
        memory_max: number("maxmemory"),
    }
}

/// Looks now and then, until the store is dropped.
pub(super) async fn watch(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Ok(pulse) = take(&shared.link).await else { continue };
        let before = std::mem::replace(&mut *shared.pulse.lock(), pulse.clone());
        report_memory(&before, &pulse);
        if pulse.check().is_err() && before.check().is_ok() {
            pulse.warn_if_unfit();
        }
    }
}

fn report_memory(before: &Pulse, now: &Pulse) {
    let percent = (now.memory_ratio().unwrap_or(0.0) * 100.0).round();
    match (before.memory_level(), now.memory_level()) {
        (old, new) if old == new => {}
        (_, 0) => tracing::info!(percent, "Redis has memory again"),
        (_, 1) => tracing::warn!(percent, "Redis's memory is over 80 % used"),
        _ => tracing::error!(percent, "Redis's memory is over 90 % used; when it is full, new work is refused"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nused_memory:900\r\nmaxmemory:1000\r\n\
                        maxmemory_policy:noeviction\r\naof_enabled:1\r\n";

    #[test]
    fn a_server_that_would_lose_jobs_is_refused() {
        assert!(read(GOOD).check().is_ok());
        for (from, to, hint) in [
            ("aof_enabled:1", "aof_enabled:0", "appendonly yes"),
            ("noeviction", "allkeys-lru", "maxmemory-policy noeviction"),
            ("7.0.15", "6.2.1", "7.0 or later"),
        ] {
            let refused = read(&GOOD.replace(from, to)).check().unwrap_err().to_string();
            assert!(refused.contains(hint), "{refused}");
        }
    }

    #[test]
    fn memory_has_two_levels() {
        let level = |used: &str| read(&GOOD.replace("used_memory:900", &format!("used_memory:{used}"))).memory_level();
        assert_eq!([level("800"), level("801"), level("900"), level("901")], [0, 1, 1, 2]);
        assert_eq!(read(&GOOD.replace("maxmemory:1000", "maxmemory:0")).memory_level(), 0, "no limit, no level");
    }
}
