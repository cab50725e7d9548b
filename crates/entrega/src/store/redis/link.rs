//! The connection to the server, for ever.
//! Invariant: one connection that all calls share, so that they reach the server in the order they were made; when it
//! breaks, it is made again with backoff until that succeeds.
//! Never: repeats a call by itself; only the caller knows whether that is safe.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use entrega_core::time::Time;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, IntoConnectionInfo as _, RedisError, ServerErrorKind, Value,
};
use tokio::sync::watch;

use super::{RedisOpenError, Shared, script};
use crate::clock::Clock;
use crate::store::StoreError;

/// For the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For one answer; a server that is slower is as good as gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a call waits for a connection before it gives up: a restart of the server is shorter.
const PATIENCE: Duration = Duration::from_secs(3);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// After an outage that was longer than this, leases may have ended everywhere.
const LONG_OUTAGE: Duration = Duration::from_secs(2);
/// How long nodes then wait before they claim: longer than any pause between two tries to connect, so that all have said
/// what they have in hand.
const ROLL_CALL: Duration = Duration::from_millis(1500);
/// A connection that says nothing is asked whether it is alive, and given up when it is not.
const KEEPALIVE: Duration = Duration::from_secs(10);
const SENTINEL_SCHEME: &str = "redis+sentinel://";

/// An address that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "the store's address cannot be used: {reason}; it looks like redis://[[user]:password@]host[:port][/database], \
     rediss://… for TLS, or redis+sentinel://[[user]:password@]sentinel1:port,sentinel2:port/service[/database]"
)]
pub struct BadUrl {
    reason: String,
}

/// Where the server is found.
enum Source {
    At(Client),
    /// Whichever the sentinels name at the moment.
    Sentinel(tokio::sync::Mutex<SentinelClient>),
}

/// A connection, if there is one, and how many came before it.
#[derive(Clone)]
pub(super) struct Line {
    number: u64,
    connection: Option<MultiplexedConnection>,
}

/// The way to the server.
pub(super) struct Link {
    source: Source,
    /// For people; no password.
    address: String,
    line: watch::Sender<Line>,
    last_error: Mutex<String>,
    clock: Clock,
    /// When the server last answered, in microseconds.
    answered_at: AtomicU64,
    /// No claims before this.
    claims_from: Mutex<Option<Time>>,
}

/// Checks an address without using it.
pub fn check_url(url: &str) -> Result<(), BadUrl> {
    source(url).map(drop)
}

fn source(url: &str) -> Result<Source, BadUrl> {
    let bad = |error: RedisError| BadUrl { reason: error.to_string() };
    match url.strip_prefix(SENTINEL_SCHEME) {
        None => {
            let info = url.into_connection_info().map_err(bad)?.set_tcp_settings(tcp_settings());
            Client::open(info).map(Source::At).map_err(bad)
        }
        Some(rest) => sentinel(rest).map(|client| Source::Sentinel(tokio::sync::Mutex::new(client))),
    }
}

/// A peer that is gone without a word is noticed, also by a connection that only listens.
fn tcp_settings() -> TcpSettings {
    let alive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3).with_retries(3);
    TcpSettings::default().set_nodelay(true).set_keepalive(alive)
}

fn sentinel(rest: &str) -> Result<SentinelClient, BadUrl> {
    let bad = |error: RedisError| BadUrl { reason: error.to_string() };
    let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(login, rest)| (login, rest));
    let mut parts = rest.split('/');
    let hosts = parts.next().unwrap_or_default();
    let service = parts.next().filter(|service| !service.is_empty());
    let service = service.ok_or_else(|| BadUrl { reason: "the service's name is missing".into() })?;
    let database = parts.next().unwrap_or("0");
    let at = if login.is_empty() { String::new() } else { format!("{login}@") };
    let node = format!("redis://{at}localhost/{database}").into_connection_info().map_err(bad)?;
    let sentinels = hosts.split(',').map(|host| format!("redis://{host}")).collect::<Vec<_>>();
    let info = SentinelNodeConnectionInfo::default()
        .set_redis_connection_info(node.redis_settings().clone())
        .set_tcp_settings(tcp_settings());
    SentinelClient::build(sentinels, service, Some(info), SentinelServerType::Master).map_err(bad)
}

/// The address as it may be shown.
pub fn without_password(url: &str) -> String {
    // What follows a question mark may be a password as well.
    let url = url.split('?').next().unwrap_or_default();
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => url.to_owned(),
    }
}

impl Link {
    /// Connects once; a store that cannot be reached at the start is a mistake in the configuration.
    pub(super) async fn open(url: &str, clock: Clock) -> Result<Link, RedisOpenError> {
        let link = Link {
            source: source(url)?,
            address: without_password(url),
            line: watch::Sender::new(Line { number: 0, connection: None }),
            last_error: Mutex::new("not connected yet".into()),
            answered_at: AtomicU64::new(clock.now().as_micros()),
            clock,
            claims_from: Mutex::new(None),
        };
        let failed = |error: RedisError| RedisOpenError::Connect {
            address: link.address.clone(),
            reason: format!("{error}; is it running, and is the address right?"),
        };
        let connection = link.connect().await.map_err(failed)?;
        link.line.send_replace(Line { number: 1, connection: Some(connection) });
        Ok(link)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// From when on jobs may be claimed, if not yet.
    pub(super) fn claims_from(&self) -> Option<Time> {
        let mut from = self.claims_from.lock();
        *from = from.filter(|from| *from > self.clock.now());
        *from
    }

    /// The number of the present connection.
    pub(super) fn number(&self) -> u64 {
        self.line.borrow().number
    }

    /// Resolves when the connection is another than the one of this number.
    pub(super) async fn renewed(&self, number: u64) {
        // Closed never: this holds the sender.
        drop(self.line.subscribe().wait_for(|line| line.number != number && line.connection.is_some()).await);
    }

    /// Why there is no connection, if there is none.
    pub(super) fn trouble(&self) -> Option<String> {
        let is_up = self.line.borrow().connection.is_some();
        (!is_up).then(|| format!("{}: {}", self.address, self.last_error.lock()))
    }

    async fn client(&self) -> Result<Client, RedisError> {
        match &self.source {
            Source::At(client) => Ok(client.clone()),
            Source::Sentinel(sentinels) => sentinels.lock().await.async_get_client().await,
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        let mut connection = self.client().await?.get_multiplexed_async_connection_with_config(&config).await?;
        let role: Value = redis::cmd("ROLE").query_async(&mut connection).await?;
        let is_master = |words: &[Value]| words.first() == Some(&Value::BulkString(b"master".to_vec()));
        if !matches!(&role, Value::Array(words) if is_master(words)) {
            return Err(RedisError::from((ErrorKind::Client, "this server is a replica: it takes no writes")));
        }
        script::load_all(&mut connection).await?;
        Ok(connection)
    }

    /// A connection of its own for what other nodes say.
    pub(super) async fn listen(&self, channel: &str) -> Result<redis::aio::PubSubStream, RedisError> {
        let listening = async {
            let (mut sink, stream) = self.client().await?.get_async_pubsub().await?.split();
            sink.subscribe(channel).await?;
            Ok(stream)
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, listening).await {
            Ok(listening) => listening,
            Err(_) => Err(RedisError::from((ErrorKind::Io, "no answer in time"))),
        }
    }

    /// One call. Waits a while for a connection; an error says nothing about whether the call took effect.
    pub(super) async fn call(&self, command: &Cmd) -> Result<Value, RedisError> {
        self.call_on(self.ready().await?, command).await
    }

    /// One call on this connection.
    pub(super) async fn call_on(&self, line: Line, command: &Cmd) -> Result<Value, RedisError> {
        let Some(mut connection) = line.connection else { return Err(self.not_connected()) };
        let answer = command.query_async(&mut connection).await;
        match &answer {
            Err(error) if is_over(error) => self.give_up(line.number, error),
            _ => self.answered_at.store(self.clock.now().as_micros(), Ordering::Relaxed),
        }
        answer
    }

    /// One call that has a meaning for the callers of the store.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, StoreError> {
        self.call(command).await.map_err(|error| store_error(&error))
    }

    /// Waits a while for a connection.
    pub(super) async fn ready(&self) -> Result<Line, RedisError> {
        let mut line = self.line.subscribe();
        match tokio::time::timeout(PATIENCE, line.wait_for(|line| line.connection.is_some())).await {
            Ok(Ok(line)) => Ok(line.clone()),
            _ => Err(self.not_connected()),
        }
    }

    fn not_connected(&self) -> RedisError {
        RedisError::from((ErrorKind::Io, "not connected", self.last_error.lock().clone()))
    }

    /// Marks a connection as broken, unless there is another already.
    fn give_up(&self, number: u64, error: &RedisError) {
        *self.last_error.lock() = error.to_string();
        self.line.send_if_modified(|line| {
            let is_current = line.number == number && line.connection.is_some();
            if is_current {
                line.connection = None;
            }
            is_current
        });
    }

    async fn reconnect(&self, number: u64) {
        let (mut wait, longest) = BACKOFF;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    let now = self.clock.now();
                    let answered_at = Time::from_micros(self.answered_at.load(Ordering::Relaxed));
                    if now.since(answered_at) > LONG_OUTAGE {
                        *self.claims_from.lock() = Some(now + ROLL_CALL);
                    }
                    tracing::info!(store = %self.address, "Redis answers again");
                    self.line.send_replace(Line { number, connection: Some(connection) });
                    return;
                }
                Err(error) => *self.last_error.lock() = error.to_string(),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
    }
}

/// Makes the connection again whenever it breaks.
pub(super) async fn keep(shared: Arc<Shared>) {
    let link = &shared.link;
    let mut line = link.line.subscribe();
    while let Ok(broken) = line.wait_for(|line| line.connection.is_none()).await.map(|line| line.number) {
        tracing::warn!(store = %link.address, errorReason = %link.last_error.lock(), "Redis is gone; connecting again");
        link.reconnect(broken + 1).await;
        shared.renew_all().await;
        // Whatever was missed meanwhile is asked for.
        shared.lanes.values().for_each(|lane| lane.wake.notify_one());
    }
}

/// Whether a connection is of no more use: it is cut, it says nothing, or the server is no longer the one that takes
/// writes.
fn is_over(error: &RedisError) -> bool {
    let is_demoted = matches!(error.kind(), ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown));
    is_demoted || error.is_connection_dropped() || error.is_io_error() || error.is_timeout()
}

/// What an error means to the callers of the store.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    match error.code() {
        Some("OOM") => StoreError::MemoryFull,
        _ => StoreError::Unreachable { reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_and_shown_without_their_password() {
        for good in [
            "redis://localhost",
            "redis://:secret@10.0.0.1:6380/3",
            "rediss://user:secret@redis.example.com",
            "redis+sentinel://:secret@a:26379,b:26379/main/1",
        ] {
            assert!(check_url(good).is_ok(), "{good}: {:?}", check_url(good));
        }
        for bad in ["redis:localhost", "http://localhost", "redis+sentinel://a:26379", "redis://"] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
        assert_eq!(without_password("redis://u:se@cret@host:1/2"), "redis://host:1/2");
        assert_eq!(without_password("redis://host:1/2"), "redis://host:1/2");
        assert_eq!(without_password("redis+unix:///run/redis.sock?pass=secret"), "redis+unix:///run/redis.sock");
    }
}
