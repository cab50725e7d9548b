//! Names by way of name servers: `/etc/hosts`, `/etc/resolv.conf`, DNS, without a thread for each look-up.
//! Invariant: at most so many look-ups are under way for one tenant, and in all; one that is over the limit waits, and so does
//! nobody else. What is known already is answered at once. A look-up ends by itself, whether anybody waits for it or not.
//! Never: blocks a thread for an answer; says which name servers were asked, for tenants read the reasons.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use entrega_core::time::Time;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::lookup_ip::LookupIp;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use hickory_resolver::system_conf::read_system_conf;
use tokio::time::timeout;

use super::{LookUp, Resolve};
use crate::clock::Clock;
use crate::shares::Shares;

/// What the system says of names.
const SYSTEM_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];
/// How often those are looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How long a name server has, before the next one or the same is asked.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How long an answer is believed, whatever it says itself.
const KNOWN_MAX: Duration = Duration::from_secs(300);
/// Names whose addresses are known.
const NAMES_MAX: usize = 8192;

/// How many look-ups may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameLimits {
    /// In all. Each takes two sockets for as long as it lasts.
    pub look_ups_max: usize,
    /// For one tenant; for one name, where nobody says whose it is.
    pub per_tenant_max: usize,
    /// How long one may take.
    pub timeout: Duration,
}

impl Default for NameLimits {
    fn default() -> NameLimits {
        NameLimits { look_ups_max: 128, per_tenant_max: 32, timeout: Duration::from_secs(5) }
    }
}

/// Asks name servers. Clones share what they know.
#[derive(Clone)]
pub struct NameResolver {
    shared: Arc<Shared>,
}

struct Shared {
    limits: NameLimits,
    clock: Clock,
    /// These servers, or those that the system names.
    servers: Option<Vec<SocketAddr>>,
    shares: Shares,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<String, Known>,
    asking: Option<Asking>,
}

struct Known {
    addresses: Vec<IpAddr>,
    until: Time,
}

/// The resolver as the system's files were when they were read.
struct Asking {
    resolver: TokioResolver,
    read: [Option<SystemTime>; 2],
    look_again: Time,
}

impl fmt::Debug for NameResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameResolver").field("limits", &self.shared.limits).finish_non_exhaustive()
    }
}

impl Default for NameResolver {
    fn default() -> NameResolver {
        NameResolver::new(NameLimits::default())
    }
}

impl NameResolver {
    /// Asks as the system's files say, which are read at the first look-up and again when they change.
    #[must_use]
    pub fn new(limits: NameLimits) -> NameResolver {
        NameResolver::with_servers(limits, None)
    }

    /// Asks these name servers, and no file.
    #[must_use]
    pub fn asking(servers: Vec<SocketAddr>, limits: NameLimits) -> NameResolver {
        NameResolver::with_servers(limits, Some(servers))
    }

    fn with_servers(limits: NameLimits, servers: Option<Vec<SocketAddr>>) -> NameResolver {
        let shares = Shares::new(limits.look_ups_max, limits.per_tenant_max);
        let shared = Shared { limits, clock: Clock::system(), servers, shares, state: Mutex::default() };
        NameResolver { shared: Arc::new(shared) }
    }

    async fn addresses(&self, host: &str, tenant: Option<&str>) -> io::Result<Vec<IpAddr>> {
        let name = host.to_ascii_lowercase();
        if let Some(known) = self.shared.known(&name) {
            return Ok(known);
        }
        let key = tenant.map_or_else(|| format!("name {name}"), |tenant| format!("tenant {tenant}"));
        let share = self.shared.shares.take(&key).await;
        // Others may have found it meanwhile.
        if let Some(known) = self.shared.known(&name) {
            return Ok(known);
        }
        // As DNS knows it: what services are called on private networks is not always a host name of the public one.
        let unfit = |_| io::Error::new(io::ErrorKind::InvalidInput, "this is no name that can be looked up");
        let asked = Name::from_ascii(&name).map_err(unfit)?;
        let resolver = self.shared.resolver()?;
        // A task of its own keeps its share until its sockets are closed, also where nobody waits any more.
        let limit = self.shared.limits.timeout;
        let looking = tokio::spawn(async move {
            let found = timeout(limit, resolver.lookup_ip(asked)).await;
            drop(share);
            found
        });
        let found = match looking.await {
            Ok(Ok(Ok(found))) => found,
            Ok(Ok(Err(error))) => return Err(reason(&error)),
            Ok(Err(_elapsed)) => return Err(unanswered()),
            Err(stopped) => return Err(io::Error::other(stopped)),
        };
        Ok(self.shared.remember(name, &found))
    }
}

impl Resolve for NameResolver {
    fn look_up<'a>(&'a self, host: &'a str) -> LookUp<'a> {
        self.look_up_for(host, None)
    }

    fn look_up_for<'a>(&'a self, host: &'a str, tenant: Option<&'a str>) -> LookUp<'a> {
        Box::pin(self.addresses(host, tenant))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, name: &str) -> Option<Vec<IpAddr>> {
        let now = self.clock.now();
        self.state().known.get(name).filter(|known| now < known.until).map(|known| known.addresses.clone())
    }

    fn remember(&self, name: String, found: &LookupIp) -> Vec<IpAddr> {
        let mut addresses: Vec<IpAddr> = found.iter().collect();
        // Of a name in a file the first line counts, and several say the same.
        let mut seen = Vec::with_capacity(addresses.len());
        addresses.retain(|address| {
            !seen.contains(address) && {
                seen.push(*address);
                true
            }
        });
        let ttl = found.as_lookup().answers().iter().map(|record| u64::from(record.ttl)).min().unwrap_or(0);
        let now = self.clock.now();
        let until = now + Duration::from_secs(ttl).min(KNOWN_MAX);
        let known = &mut self.state().known;
        if known.len() >= NAMES_MAX && !known.contains_key(&name) {
            known.retain(|_, known| now < known.until);
            // All of them are still good: any one makes room.
            if let Some(any) = known.keys().next().filter(|_| known.len() >= NAMES_MAX).cloned() {
                known.remove(&any);
            }
        }
        known.insert(name, Known { addresses: addresses.clone(), until });
        addresses
    }

    /// The resolver, made anew when the system's files have changed.
    fn resolver(&self) -> io::Result<TokioResolver> {
        let now = self.clock.now();
        let mut state = self.state();
        if let Some(asking) = &mut state.asking {
            if now < asking.look_again || self.servers.is_some() {
                return Ok(asking.resolver.clone());
            }
            asking.look_again = now + LOOK_AGAIN;
            if asking.read == changed_at() {
                return Ok(asking.resolver.clone());
            }
        }
        let read = changed_at();
        let resolver = build(self.servers.as_deref()).map_err(|error| io::Error::other(error.to_string()))?;
        // What was learned from other servers may be wrong here.
        state.known.clear();
        state.asking = Some(Asking { resolver: resolver.clone(), read, look_again: now + LOOK_AGAIN });
        Ok(resolver)
    }
}

fn changed_at() -> [Option<SystemTime>; 2] {
    SYSTEM_FILES.map(|file| fs::metadata(file).and_then(|file| file.modified()).ok())
}

fn build(servers: Option<&[SocketAddr]>) -> Result<TokioResolver, NetError> {
    let (config, mut options) = match servers {
        Some(servers) => {
            let mut options = ResolverOpts::default();
            (options.use_hosts_file, options.ndots) = (ResolveHosts::Never, 0);
            (ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(name_server).collect()), options)
        }
        // Without a file that names servers there is one on this machine, or none: so says resolv.conf(5).
        None => read_system_conf().unwrap_or_else(|_| {
            let here = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
            (ResolverConfig::from_parts(None, Vec::new(), vec![here]), ResolverOpts::default())
        }),
    };
    options.timeout = options.timeout.min(ANSWER_MAX);
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    // One server after the other: each question is a socket.
    options.num_concurrent_reqs = 1;
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build()
}

fn name_server(address: &SocketAddr) -> NameServerConfig {
    let mut server = NameServerConfig::udp_and_tcp(address.ip());
    server.connections.iter_mut().for_each(|connection: &mut ConnectionConfig| connection.port = address.port());
    server
}

fn unanswered() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the name servers did not answer in time")
}

/// In words that name no server.
fn reason(error: &NetError) -> io::Error {
    match error {
        _ if error.is_nx_domain() || error.is_no_records_found() => {
            io::Error::new(io::ErrorKind::NotFound, "the name does not exist, or has no address")
        }
        NetError::Timeout => unanswered(),
        _ => {
            tracing::debug!(errorReason = %error, "Name servers could not be asked");
            io::Error::other("the name servers could not be asked")
        }
    }
}
