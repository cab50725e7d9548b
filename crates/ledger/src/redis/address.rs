//! Where the server is found.
//! Invariant: an address is read whole before it is used, and never shown with its password.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{Client, IntoConnectionInfo as _, RedisError};
use tokio::sync::Mutex;

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

/// Checks an address without using it.
pub fn check_url(url: &str) -> Result<(), BadUrl> {
    Address::read(url).map(drop)
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

enum Source {
    At(Box<Client>),
    /// Whichever the sentinels name at the moment.
    Sentinel(Box<Mutex<SentinelClient>>),
}

/// An address that can be used.
pub(super) struct Address {
    source: Source,
    shown: String,
}

impl Address {
    pub(super) fn read(url: &str) -> Result<Address, BadUrl> {
        let source = match url.strip_prefix(SENTINEL_SCHEME) {
            None => {
                let info = url.into_connection_info().map_err(bad)?.set_tcp_settings(tcp_settings());
                Source::At(Box::new(Client::open(info).map_err(bad)?))
            }
            Some(rest) => Source::Sentinel(Box::new(Mutex::new(sentinel(rest)?))),
        };
        Ok(Address { source, shown: without_password(url) })
    }

    /// For people.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) fn has_sentinels(&self) -> bool {
        matches!(self.source, Source::Sentinel(_))
    }

    /// The server that is to be used at the moment.
    pub(super) async fn client(&self) -> Result<Client, RedisError> {
        match &self.source {
            Source::At(client) => Ok((**client).clone()),
            Source::Sentinel(sentinels) => sentinels.lock().await.async_get_client().await,
        }
    }
}

fn bad(error: RedisError) -> BadUrl {
    BadUrl { reason: error.to_string() }
}

/// A peer that is gone without a word is noticed, also by a connection that only listens.
fn tcp_settings() -> TcpSettings {
    let alive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3).with_retries(3);
    TcpSettings::default().set_nodelay(true).set_keepalive(alive)
}

fn sentinel(rest: &str) -> Result<SentinelClient, BadUrl> {
    let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
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
