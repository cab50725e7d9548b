//! Printing: a configuration as TOML.
//! Invariant: what is printed loads again to an equal configuration, under the same environment's plain names.
//! Never: shows a secret. That of an endpoint is printed as `***`, which is too short to load: nobody signs with it.

use entrega_core::sender::SenderRule;
use entrega_core::throttle::Rate;
use std::collections::BTreeMap;
use toml::{Table, Value};

use super::value::{duration, keys, none, number, table, word};
use super::{ADMIN_KEY_VARIABLE, Config, LogFormat, connectors, lane, proxy};
use entrega::connector::Connector;
use entrega::seal::SECRET_KEY_VARIABLE;

pub(super) const LOG_FORMATS: [(&str, LogFormat); 3] =
    [("auto", LogFormat::Auto), ("json", LogFormat::Json), ("pretty", LogFormat::Pretty)];

impl Config {
    /// The whole configuration, defaults included.
    pub fn to_toml(&self) -> String {
        let lanes = self.lanes.iter().map(|(name, policy)| (name.to_string(), Value::Table(lane::print(policy))));
        let table = Table::from_iter([
            ("server".to_owned(), Value::Table(self.server_table())),
            ("store".to_owned(), Value::Table(self.store_table())),
            ("cluster".to_owned(), Value::Table(self.cluster_table())),
            ("outbound".to_owned(), Value::Table(super::outbound::print(&self.outbound))),
            ("email".to_owned(), Value::Table(self.email_table())),
            (
                "webhooks".to_owned(),
                keys([("user_agent", Value::from(self.webhook_agent.to_str().unwrap_or_default()))]),
            ),
            ("transports".to_owned(), Value::Table(self.transports_table())),
            (
                "ses".to_owned(),
                keys([
                    ("topics", Value::from(self.mail.topics.clone())),
                    ("certificate_hosts", Value::from(self.mail.certificate_hosts.clone())),
                ]),
            ),
            (
                "log".to_owned(),
                keys([
                    ("level", Value::from(self.log.level.as_str())),
                    ("format", word(&LOG_FORMATS, self.log.format)),
                ]),
            ),
            ("shutdown".to_owned(), keys([("grace", duration(self.shutdown.grace))])),
            ("lanes".to_owned(), Value::Table(lanes.collect())),
            ("tenants".to_owned(), Value::Table(self.tenants_table())),
            ("proxy".to_owned(), Value::Table(self.proxy_table())),
            ("connectors".to_owned(), Value::Table(self.connectors_table())),
        ]);
        let mut secrets = String::new();
        for (name, key) in [(ADMIN_KEY_VARIABLE, &self.admin_key), (SECRET_KEY_VARIABLE, &self.secret_key)] {
            if key.is_some() {
                secrets += &format!("# {name} = \"***\" comes from the environment\n\n");
            }
        }
        format!("{secrets}{table}")
    }

    fn connectors_table(&self) -> Table {
        let table = |connector: &Connector| Value::Table(connectors::table(connector));
        self.connectors.iter().map(|connector| (connector.id.clone(), table(connector))).collect()
    }

    fn proxy_table(&self) -> Table {
        self.routes.values().map(|route| (route.name.clone(), Value::Table(proxy::table(route)))).collect()
    }

    fn tenants_table(&self) -> Table {
        let mut tenants: BTreeMap<String, Table> = BTreeMap::new();
        for endpoint in &self.endpoints {
            let keys = keys([
                ("url", Value::from(endpoint.url.as_str())),
                ("secret", Value::from("***")),
                ("event_types", Value::from(endpoint.event_types.clone())),
                ("throttle", endpoint.throttle.map_or_else(none, rate)),
                ("enabled", Value::from(endpoint.enabled)),
            ]);
            tenants.entry(endpoint.tenant.to_string()).or_default().insert(endpoint.name.clone(), keys);
        }
        let mut settings: BTreeMap<String, Table> = BTreeMap::new();
        for (tenant, endpoints) in tenants {
            settings.entry(tenant).or_default().insert("endpoints".into(), Value::Table(endpoints));
        }
        for (tenant, senders) in &self.mail.senders {
            let senders: Vec<&str> = senders.iter().map(SenderRule::as_str).collect();
            settings.entry(tenant.to_string()).or_default().insert("senders".into(), Value::from(senders));
        }
        settings.into_iter().map(|(tenant, settings)| (tenant, Value::Table(settings))).collect()
    }

    fn server_table(&self) -> Table {
        let server = &self.server;
        table([
            ("listen", Value::from(server.listen.to_string())),
            ("insecure_listen", Value::from(server.insecure_listen)),
            ("connections_max", number(server.connections_max)),
            ("header_timeout", duration(server.header_timeout)),
            ("body_timeout", duration(server.body_timeout)),
            ("in_flight_mib_max", number(server.in_flight_mib_max)),
            ("in_flight_mib_per_tenant", number(server.in_flight_mib_per_tenant)),
        ])
    }

    fn store_table(&self) -> Table {
        let store = &self.store;
        table([
            ("kind", Value::from(store.kind.to_string())),
            ("data", Value::from(store.data.to_string_lossy().as_ref())),
            ("retention", duration(store.retention)),
            ("free_space_min_mib", number(store.free_space_min_mib)),
            ("export_dead_letters", Value::from(store.export_dead_letters)),
            ("redis_prefix", Value::from(store.redis_prefix.as_str())),
            ("allow_unsafe_redis", Value::from(store.allow_unsafe_redis)),
        ])
    }

    fn cluster_table(&self) -> Table {
        table([("lease", duration(self.cluster.lease))])
    }

    fn email_table(&self) -> Table {
        let mail = &self.mail;
        let names: Vec<&str> = mail.transports.iter().map(|transport| transport.name.as_str()).collect();
        let mut table = table([("transports", Value::from(names))]);
        if let Some(from) = &mail.from {
            let text = match &from.name {
                Some(name) => format!("\"{}\" <{}>", name.replace('\\', "\\\\").replace('"', "\\\""), from.address),
                None => from.address.clone(),
            };
            table.insert("from".into(), Value::from(text));
        }
        if let Some(domain) = &mail.domain {
            table.insert("domain".into(), Value::from(domain.as_str()));
        }
        table
    }

    fn transports_table(&self) -> Table {
        let transports = self.mail.transports.iter().map(|transport| {
            let keys = keys([
                ("url", Value::from(transport_url(transport.url.reveal()))),
                ("allow_plain_auth", Value::from(transport.allow_plain_auth)),
                ("idle_connections", number(transport.idle_connections)),
            ]);
            (transport.name.clone(), keys)
        });
        transports.collect()
    }
}

/// The address of a transport with its login hidden.
fn transport_url(url: &str) -> String {
    match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1))) {
        Some((scheme, rest)) => format!("{scheme}://***:***@{rest}"),
        None => url.to_owned(),
    }
}

fn rate(rate: Rate) -> Value {
    keys([("max_requests", number(rate.max_requests)), ("per", duration(rate.per()))])
}
