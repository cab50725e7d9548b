//! Settings: who mails are from, the ways they leave, and whose reports of them are heard.
//! Invariant: every transport can be set up as it stands here; the order is the order in which they are tried.
//! Never: shows a password.

use std::sync::Arc;

use entrega_call::{ClientConfig, Clock};

use super::Senders;
use super::content::Mailbox;
#[cfg(feature = "ses")]
use super::ses::{SesConfig, SesTransport};
use super::smtp::{SmtpConfig, SmtpTransport};
use super::transport::Transport;
use crate::secret::Secret;

/// How mails leave and come back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailConfig {
    /// Who a mail is from that does not say.
    pub from: Option<Mailbox>,
    /// Whom tenants may send as; those that are not here as the store says.
    pub senders: Senders,
    /// The right side of Message-IDs; the sender's domain if `None`.
    pub domain: Option<String>,
    /// The ways out, the first one first.
    pub transports: Vec<TransportConfig>,
    /// Topics of SNS whose notifications are heard.
    pub topics: Vec<String>,
    /// Hosts beside Amazon's whose signing certificates are trusted.
    pub certificate_hosts: Vec<String>,
}

/// A way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportConfig {
    /// Its name.
    pub name: String,
    /// As it was written; may hold a password.
    pub url: Secret,
    /// Whether a login may cross the network in the clear.
    pub allow_plain_auth: bool,
    /// How many idle connections are kept.
    pub idle_connections: usize,
    /// What is spoken.
    pub kind: TransportKind,
}

/// What a transport speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// SMTP.
    Smtp(SmtpConfig),
    /// Amazon SES.
    #[cfg(feature = "ses")]
    Ses(SesConfig),
}

/// A way out for mails that cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("the transport '{name}' cannot be set up")]
pub struct TransportError {
    /// Which one.
    pub name: String,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl MailConfig {
    /// The ways out, in order. They look names up and trust certificates as calls with `client` do.
    ///
    /// # Errors
    /// The first that cannot be set up.
    pub fn transports(&self, client: &ClientConfig, clock: &Clock) -> Result<Vec<Box<dyn Transport>>, TransportError> {
        let set_up = |config: &TransportConfig| {
            let failed = |source| TransportError { name: config.name.clone(), source };
            config.transport(client, clock).map_err(failed)
        };
        self.transports.iter().map(set_up).collect()
    }
}

impl TransportConfig {
    #[cfg_attr(not(feature = "ses"), expect(unused_variables, reason = "only SES signs with the time"))]
    fn transport(
        &self,
        client: &ClientConfig,
        clock: &Clock,
    ) -> Result<Box<dyn Transport>, Box<dyn std::error::Error + Send + Sync>> {
        let (extra_ca_pem, resolver) = (client.extra_ca_pem.clone(), Arc::clone(&client.resolver));
        match &self.kind {
            TransportKind::Smtp(smtp) => {
                let transport = SmtpTransport::new(&self.name, SmtpConfig { extra_ca_pem, ..smtp.clone() })?;
                Ok(Box::new(transport.with_resolver(resolver)))
            }
            #[cfg(feature = "ses")]
            TransportKind::Ses(ses) => {
                let config = ClientConfig { extra_ca_pem, resolver, ..ses.client_config() };
                let client = entrega_call::Client::new(config)?;
                Ok(Box::new(SesTransport::new(&self.name, ses.clone(), client, clock.clone())))
            }
        }
    }
}
