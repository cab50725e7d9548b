//! Connecting: from an origin's host to a TCP connection.
//! Invariant: no socket is opened to an address that the filter has not judged; the name is looked
//! up once, and what was judged is what is connected to.
//! Never: speaks on the connection.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::address::AddressFilter;
use crate::error::CallError;
use crate::origin::Origin;
use crate::resolve::Resolve;
use crate::url::literal_ip;

/// The most addresses of one name that are tried: whoever owns the name chooses the list.
const ADDRESSES_MAX: usize = 8;

/// How long an address that is not the last may take. It outlasts one lost SYN (repeated after a
/// second) and leaves time for the next address even within the five seconds of a webhook.
const ADDRESS_TIMEOUT: Duration = Duration::from_millis(1500);

/// Looks up, filters, connects.
#[derive(Clone, Debug)]
pub(crate) struct TcpConnector {
    filter: Arc<AddressFilter>,
    resolver: Arc<dyn Resolve>,
}

impl TcpConnector {
    pub(crate) fn new(filter: Arc<AddressFilter>, resolver: Arc<dyn Resolve>) -> Self {
        Self { filter, resolver }
    }

    pub(crate) async fn open(&self, origin: &Origin, tenant: Option<&str>) -> Result<TcpStream, CallError> {
        let (host, port) = (origin.host(), origin.port());
        if let Some(address) = literal_ip(host) {
            self.filter.check_ip(address)?;
            return open(SocketAddr::new(address, port)).await;
        }
        let found = self.resolver.look_up_for(host, tenant).await.map_err(|source| unresolved(host, source))?;
        let resolved = found.into_iter().map(|address| SocketAddr::new(address, port)).collect();
        open_any(&permitted(&self.filter, host, resolved)?, open).await
    }
}

/// Drops what the filter refuses. A name with no address left is forbidden for the first one's
/// reason.
fn permitted(filter: &AddressFilter, host: &str, resolved: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, CallError> {
    let mut refused = None;
    let mut open = Vec::with_capacity(resolved.len().min(ADDRESSES_MAX));
    for address in resolved {
        match filter.check_ip(address.ip()) {
            Ok(()) if open.len() < ADDRESSES_MAX => open.push(address),
            Ok(()) => break,
            Err(forbidden) => refused = refused.or(Some(forbidden)),
        }
    }
    match refused {
        _ if !open.is_empty() => Ok(open),
        Some(address) => {
            tracing::debug!(host, errorReason = %address, "A name leads to no address that may be called");
            Err(CallError::ForbiddenName { host: host.to_owned(), address })
        }
        None => Err(unresolved(host, io::Error::other("the name has no address"))),
    }
}

/// Tries addresses in the order of the resolver, until `open` succeeds with one.
async fn open_any<T, F>(addresses: &[SocketAddr], open: impl Fn(SocketAddr) -> F) -> F::Output
where
    F: Future<Output = Result<T, CallError>>,
{
    let (last, others) = addresses.split_last().expect("`permitted` gives at least one");
    for address in others {
        if let Ok(Ok(stream)) = timeout(ADDRESS_TIMEOUT, open(*address)).await {
            return Ok(stream);
        }
    }
    open(*last).await
}

async fn open(address: SocketAddr) -> Result<TcpStream, CallError> {
    let opened = async {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    opened.await.map_err(|source: io::Error| {
        tracing::debug!(%address, errorReason = %source, "No connection came about");
        CallError::Connect { address, source: Arc::new(source) }
    })
}

fn unresolved(host: &str, source: io::Error) -> CallError {
    CallError::Resolve { host: host.to_owned(), source: Arc::new(source) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::net::TcpListener;

    use super::*;
    use crate::resolve::{LookUp, SystemResolver};

    fn filter(networks: &[&str]) -> AddressFilter {
        AddressFilter { allow_http: true, allow_networks: networks.iter().map(|net| net.parse().unwrap()).collect() }
    }

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|address| address.parse().unwrap()).collect()
    }

    async fn connect(filter: AddressFilter, url: String) -> Result<SocketAddr, CallError> {
        let connector = TcpConnector::new(Arc::new(filter), Arc::new(SystemResolver));
        let stream = connector.open(&Origin::split(url.parse().unwrap()).unwrap().0, None).await?;
        assert!(stream.nodelay().unwrap());
        Ok(stream.peer_addr().unwrap())
    }

    #[test]
    fn refused_addresses_are_dropped_and_the_rest_kept_in_order() {
        let resolved = addresses(&["10.0.0.1:443", "8.8.8.8:443", "[::1]:443", "1.1.1.1:443"]);
        let open = permitted(&filter(&[]), "mixed.example", resolved).unwrap();
        assert_eq!(open, addresses(&["8.8.8.8:443", "1.1.1.1:443"]));
    }

    #[test]
    fn a_name_with_only_refused_addresses_is_forbidden_for_the_first() {
        let resolved = addresses(&["[::ffff:169.254.169.254]:80", "10.0.0.1:80"]);
        let error = permitted(&filter(&[]), "rebind.example", resolved).unwrap_err();
        assert_eq!(error.code(), "forbidden_address");
        assert!(matches!(error, CallError::ForbiddenName { address, .. } if address.address.is_ipv6()), "{error}");
        // A tenant learned from its dead letters what names inside lead to.
        assert!(!error.reason().contains("169.254") && error.reason().contains("rebind.example"), "{error}");
    }

    #[test]
    fn a_name_without_addresses_is_unresolved_and_a_long_list_is_cut() {
        let error = permitted(&filter(&[]), "empty.example", vec![]).unwrap_err();
        assert_eq!(error.code(), "resolve");
        let many = vec!["8.8.8.8:443".parse().unwrap(); 100];
        assert_eq!(permitted(&filter(&[]), "many.example", many).unwrap().len(), ADDRESSES_MAX);
    }

    #[tokio::test]
    async fn a_name_is_looked_up_filtered_and_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let url = format!("http://localhost:{port}/");

        let peer = connect(filter(&["127.0.0.0/8"]), url.clone()).await.unwrap();
        assert_eq!(peer, listener.local_addr().unwrap());

        let error = connect(filter(&[]), url).await.unwrap_err();
        assert_eq!(error.code(), "forbidden_address");
    }

    /// A name of somebody else's, with another answer each time.
    #[derive(Debug, Default)]
    struct Fickle(AtomicUsize);

    impl Resolve for Fickle {
        fn look_up<'a>(&'a self, _: &'a str) -> LookUp<'a> {
            let last = if self.0.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) { 2 } else { 1 };
            Box::pin(async move { Ok(vec![Ipv4Addr::new(127, 0, 0, last).into()]) })
        }
    }

    #[tokio::test]
    async fn what_was_judged_is_what_is_connected_to_however_the_answer_changes() {
        // One port on both addresses; somebody else may have it on one of them.
        let pair = async || {
            let open = TcpListener::bind("127.0.0.2:0").await.unwrap();
            let closed = std::net::TcpListener::bind(("127.0.0.1", open.local_addr().unwrap().port()));
            closed.ok().map(|closed| (open, closed))
        };
        let mut found = pair().await;
        for _ in 0..20 {
            found = if found.is_some() { found } else { pair().await };
        }
        let (open, closed) = found.expect("one port in twenty is free on both");
        let port = open.local_addr().unwrap().port();
        closed.set_nonblocking(true).unwrap();
        let resolver = Arc::new(Fickle::default());
        let connector = TcpConnector::new(Arc::new(filter(&["127.0.0.2/32"])), resolver.clone());
        let origin = Origin::split(format!("http://fickle.example:{port}/").parse().unwrap()).unwrap().0;
        for attempt in 0..10 {
            match connector.open(&origin, None).await {
                Ok(stream) => assert_eq!(stream.peer_addr().unwrap(), open.local_addr().unwrap()),
                Err(error) => assert_eq!((error.code(), attempt % 2), ("forbidden_address", 1)),
            }
        }
        assert_eq!(resolver.0.load(Ordering::SeqCst), 10, "it is asked once for each connection");
        assert_eq!(closed.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock, "nobody came");
    }

    #[tokio::test]
    async fn a_literal_address_is_filtered_too() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        assert!(connect(filter(&["127.0.0.0/8"]), url.clone()).await.is_ok());
        let error = connect(filter(&["10.0.0.0/8"]), url).await.unwrap_err();
        assert_eq!(error.code(), "forbidden_address");
    }

    #[tokio::test]
    async fn a_dead_address_gives_way_to_the_next() {
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gone = unused.local_addr().unwrap();
        drop(unused);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let alive = listener.local_addr().unwrap();
        let stream = open_any(&[gone, alive], open).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), alive);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_leaves_time_for_the_next() {
        let list = addresses(&["192.0.2.1:443", "192.0.2.2:443"]);
        let silent_then_open = |address: SocketAddr| async move {
            if address.ip().to_string() == "192.0.2.1" {
                std::future::pending::<()>().await;
            }
            Ok(address)
        };
        let webhook_timeout = Duration::from_secs(5);
        let opened = timeout(webhook_timeout, open_any(&list, silent_then_open)).await;
        assert_eq!(opened.unwrap().unwrap(), list[1]);
    }
}
