//! `[outbound]`: where calls may go, and what they carry.
//! Invariant: what is not public is called only where a network says so.

use std::net::IpAddr;
use std::path::PathBuf;

use entrega::mail::transport::Transport;
use entrega_call::{AddressFilter, ClientConfig, Clock, check_headers};
use entrega_core::trace::TRACEPARENT;
use http::{HeaderName, header};
use ipnet::IpNet;
use toml::{Table, Value};

use super::section::{Given, Section};
use super::{Config, ConfigError, read_path, value};

/// `[outbound]`: where calls may go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundConfig {
    /// Whether plain http may be called.
    pub allow_http: bool,
    /// Networks that are open although they are not public.
    pub allow_networks: Vec<IpNet>,
    /// Certificates to trust beside the public roots.
    pub ca_file: Option<PathBuf>,
    /// How much of an answer is kept.
    pub answer_kib_max: usize,
    /// Connections in all.
    pub connections_max: usize,
    /// Idle connections kept to one host.
    pub idle_connections_per_host: usize,
    /// The header that names the user for whom a call is made.
    pub user_header: HeaderName,
}

impl Config {
    /// Which destinations may be called.
    pub fn filter(&self) -> AddressFilter {
        AddressFilter { allow_http: self.outbound.allow_http, allow_networks: self.outbound.allow_networks.clone() }
    }

    /// The ways out for mails, in order. Reads the extra certificates.
    pub fn transports(&self, clock: &Clock) -> Result<Vec<Box<dyn Transport>>, ConfigError> {
        Ok(self.mail.transports(&self.client()?, clock)?)
    }

    /// How the client that makes the calls is set up. Reads the extra certificates.
    pub fn client(&self) -> Result<ClientConfig, ConfigError> {
        let read = |file: &PathBuf| {
            std::fs::read(file).map_err(|source| ConfigError::Unreadable { file: file.clone(), source })
        };
        let per_host_max = self.outbound.idle_connections_per_host;
        let default = ClientConfig::default();
        Ok(ClientConfig {
            filter: self.filter(),
            extra_ca_pem: self.outbound.ca_file.as_ref().map(read).transpose()?,
            answer_bytes_max: self.outbound.answer_kib_max * 1024,
            idle_per_host_max: per_host_max,
            // Whoever allows one host more than that means it.
            idle_max: default.idle_max.max(per_host_max),
            connections_max: self.outbound.connections_max,
            ..default
        })
    }
}

pub(super) fn read(mut outbound: Section<'_>) -> Result<OutboundConfig, ConfigError> {
    let networks = outbound.get_default("allow_networks")?.list()?;
    let read = OutboundConfig {
        allow_http: outbound.get_default("allow_http")?.flag()?,
        allow_networks: networks.into_iter().map(read_network).collect::<Result<_, _>>()?,
        ca_file: outbound.get("ca_file").map(read_path).transpose()?,
        answer_kib_max: outbound.get_default("answer_kib_max")?.number(1..=65_536)?,
        connections_max: outbound.get_default("connections_max")?.number(1..=1_000_000)?,
        idle_connections_per_host: outbound.get_default("idle_connections_per_host")?.number(0..=100_000)?,
        user_header: read_header(&outbound.get_default("user_header")?)?,
    };
    outbound.finish()?;
    Ok(read)
}

fn read_network(given: Given<'_>) -> Result<IpNet, ConfigError> {
    let address = given.text()?.parse::<IpAddr>();
    address.map(IpNet::from).or_else(|_| given.parse("a network, such as \"10.20.0.0/16\" or \"::1/128\""))
}

/// What else a caller says in its headers is for us alone, or means something else to a destination.
const NOT_FOR_USERS: [HeaderName; 6] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    header::COOKIE,
    header::CONTENT_TYPE,
    HeaderName::from_static("idempotency-key"),
    HeaderName::from_static(TRACEPARENT),
];

fn read_header(given: &Given<'_>) -> Result<HeaderName, ConfigError> {
    let name = given.text()?.parse::<HeaderName>().ok();
    let is_free = |name: &HeaderName| !NOT_FOR_USERS.contains(name) && check_headers([(name.as_str(), "user")]).is_ok();
    let free = name.filter(is_free);
    free.ok_or_else(|| given.must_be("the name of a header of your own, such as \"x-growqr-user\""))
}

pub(super) fn print(outbound: &OutboundConfig) -> Table {
    let networks: Vec<String> = outbound.allow_networks.iter().map(ToString::to_string).collect();
    let mut table = value::table([
        ("allow_http", Value::from(outbound.allow_http)),
        ("allow_networks", Value::from(networks)),
        ("answer_kib_max", value::number(outbound.answer_kib_max)),
        ("connections_max", value::number(outbound.connections_max)),
        ("idle_connections_per_host", value::number(outbound.idle_connections_per_host)),
        ("user_header", Value::from(outbound.user_header.as_str())),
    ]);
    if let Some(file) = &outbound.ca_file {
        table.insert("ca_file".into(), Value::from(file.to_string_lossy().as_ref()));
    }
    table
}
