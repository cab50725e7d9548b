//! How the server is: whether it is fit to keep jobs, and how full it is.
//! Invariant: a server that would lose or evict jobs is refused, with what to set.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::Value;

use super::connection::{Connection, Connections};
use super::error::RedisOpenError;
use crate::Memory;

const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The least version whose scripts can be told to go on when memory is full.
const VERSION_MIN: (u32, u32) = (7, 0);

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
pub struct ServerInfo {
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
    replicas: u64,
    /// How many replicas must be there for a write to be taken; unknown as above.
    replicas_to_write: Option<u64>,
    /// Names this run of the server among all.
    pub(super) run_id: String,
}

impl ServerInfo {
    /// Refuses a server that would lose jobs.
    pub fn check(&self) -> Result<(), Unfit> {
        self.check_version()?;
        match () {
            () if !self.has_aof => Err(Unfit::NotPersistent),
            () if self.sync == "no" => Err(Unfit::NeverSyncs),
            () if self.eviction != "noeviction" => Err(Unfit::Evicts { policy: self.eviction.clone() }),
            () => Ok(()),
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

    /// What a replica does not have yet is lost when it takes the server's place.
    fn may_lose_in_a_failover(&self, has_sentinels: bool) -> bool {
        (has_sentinels || self.replicas > 0) && self.replicas_to_write == Some(0)
    }

    pub(super) fn warn_of_failovers(&self, has_sentinels: bool) {
        if self.may_lose_in_a_failover(has_sentinels) {
            tracing::warn!(
                replicas = self.replicas,
                "Redis takes writes without its replicas (min-replicas-to-write 0): a failover loses what they do not \
                 have yet; set `min-replicas-to-write 1` to bound that by min-replicas-max-lag"
            );
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

    /// How much memory there is, and how much of it is used.
    pub fn memory(&self) -> Memory {
        Memory { used_bytes: self.memory_used, max_bytes: self.memory_max }
    }

    /// The part of the memory that is in use, where there is a limit.
    pub fn memory_ratio(&self) -> Option<f64> {
        self.memory().ratio()
    }

    /// 0 well, 1 a warning, 2 critical.
    pub fn memory_level(&self) -> u8 {
        self.memory().level()
    }
}

/// Looks at a server, for people who want to know before they use it.
pub async fn server_info(url: &str) -> Result<ServerInfo, RedisOpenError> {
    take(&Connection::open_once(url).await?).await
}

/// Looks at the server.
pub(super) async fn take(connection: &Connection) -> Result<ServerInfo, RedisOpenError> {
    let info = connection.call(&redis::cmd("INFO")).await.map_err(|error| connection.unusable(error))?;
    let text: String = redis::from_redis_value(info).map_err(|error| connection.unusable(error))?;
    let mut info = read(&text);
    // A hosted server may not let its configuration be read; then it is unknown, not wrong.
    let config = connection.call(redis::cmd("CONFIG").arg("GET").arg("appendfsync").arg("min-replicas-to-write")).await;
    let config = config.ok().and_then(|answer| redis::from_redis_value::<HashMap<String, String>>(answer).ok());
    let mut config = config.unwrap_or_default();
    info.sync = config.remove("appendfsync").unwrap_or_default();
    info.replicas_to_write = config.get("min-replicas-to-write").and_then(|count| count.parse().ok());
    Ok(info)
}

fn read(info: &str) -> ServerInfo {
    let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.trim().split_once(':')).collect();
    let text = |name: &str| fields.get(name).copied().unwrap_or_default().to_owned();
    let number = |name: &str| fields.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
    ServerInfo {
        version: text("redis_version"),
        has_aof: fields.get("aof_enabled") == Some(&"1"),
        sync: String::new(),
        eviction: text("maxmemory_policy"),
        memory_used: number("used_memory"),
        memory_max: number("maxmemory"),
        replicas: number("connected_slaves"),
        replicas_to_write: None,
        run_id: text("run_id"),
    }
}

/// The server's time, in microseconds since the epoch.
pub(super) async fn time_us(connection: &Connection) -> Result<u64, RedisOpenError> {
    let answer: Value = connection.call(&redis::cmd("TIME")).await.map_err(|error| connection.unusable(error))?;
    let (seconds, micros): (u64, u64) = redis::from_redis_value(answer).map_err(|error| connection.unusable(error))?;
    Ok(seconds * 1_000_000 + micros)
}

/// Looks now and then, until the ledger is dropped.
pub(super) async fn watch(connections: Arc<Connections>, last: Arc<Mutex<ServerInfo>>) {
    let has_sentinels = connections.owners.address().has_sentinels();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Ok(info) = take(&connections.owners).await else { continue };
        let before = std::mem::replace(&mut *last.lock(), info.clone());
        report_memory(&before.memory(), &info.memory());
        if info.check().is_err() && before.check().is_ok() {
            info.warn_if_unfit();
        }
        if !before.may_lose_in_a_failover(has_sentinels) {
            info.warn_of_failovers(has_sentinels);
        }
    }
}

fn report_memory(before: &Memory, now: &Memory) {
    let percent = (now.ratio().unwrap_or(0.0) * 100.0).round();
    match (before.level(), now.level()) {
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
                        maxmemory_policy:noeviction\r\naof_enabled:1\r\nconnected_slaves:1\r\n";

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
        let never = ServerInfo { sync: "no".into(), ..read(GOOD) };
        assert!(matches!(never.check(), Err(Unfit::NeverSyncs)));
    }

    #[test]
    fn memory_has_two_levels() {
        let level = |used: &str| read(&GOOD.replace("used_memory:900", &format!("used_memory:{used}"))).memory_level();
        assert_eq!([level("800"), level("801"), level("900"), level("901")], [0, 1, 1, 2]);
        assert_eq!(read(&GOOD.replace("maxmemory:1000", "maxmemory:0")).memory_level(), 0, "no limit, no level");
    }

    #[test]
    fn a_failover_loses_something_where_writes_need_no_replica() {
        let alone = read(&GOOD.replace("slaves:1", "slaves:0"));
        let with = |count, info| ServerInfo { replicas_to_write: count, ..info };
        assert!(with(Some(0), read(GOOD)).may_lose_in_a_failover(false));
        assert!(with(Some(0), alone.clone()).may_lose_in_a_failover(true));
        assert!(!with(Some(0), alone).may_lose_in_a_failover(false));
        assert!(!with(Some(1), read(GOOD)).may_lose_in_a_failover(true));
        assert!(!with(None, read(GOOD)).may_lose_in_a_failover(true), "unknown is not wrong");
    }
}
