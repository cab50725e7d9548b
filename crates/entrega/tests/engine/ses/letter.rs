//! A mail to send, and the transport to send it over.

use std::time::Duration;

use bytes::Bytes;
use entrega::mail::ses::{SesConfig, SesTransport};
use entrega::mail::transport::{Limits, Outgoing, Sent, Transport as _};
use entrega::secret::Secret;
use entrega_call::Client;
use entrega_call::Clock;
use entrega_core::id::JobId;
use entrega_core::mail::MailRefusal;
use entrega_core::name::TenantName;
use entrega_core::time::Time;

use entrega_testkit::moto::REGION;

pub const FROM: &str = "billing@example.com";
/// More than any answer takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A mail.
pub struct Letter {
    pub id: JobId,
    pub tenant: TenantName,
    pub message: Bytes,
}

impl Letter {
    pub fn of(tenant: &str) -> Letter {
        let message = "From: =?utf-8?q?Caf=C3=A9?= Billing <billing@example.com>\r\nTo: Ana <ana@example.org>\r\n\
            Subject: Your invoice\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\n\
            Content-Transfer-Encoding: 8bit\r\n\r\nOlá!\r\n.\r\nBye\r\n";
        Letter {
            id: JobId::from_parts(Time::from_millis(1_700_000_000_000), 7).of_mail(),
            tenant: TenantName::new(tenant).unwrap(),
            message: Bytes::from(message),
        }
    }

    pub async fn send(&self, transport: &SesTransport, recipients: &[&str]) -> Sent {
        self.send_within(transport, recipients, PATIENCE).await
    }

    pub async fn send_within(&self, transport: &SesTransport, recipients: &[&str], limit: Duration) -> Sent {
        let Letter { id, tenant, message } = self;
        let mail = Outgoing { id: *id, tenant, from: FROM, recipients, message: message.clone() };
        let clock = Clock::system();
        transport.send(&mail, Limits::until(clock.instant(clock.now() + limit))).await
    }
}

/// A configuration for a server on this machine.
pub fn config(endpoint: &str) -> SesConfig {
    let env =
        [("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLE")];
    let env: Vec<_> = env.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
    SesConfig::from_url(&format!("ses://{REGION}?endpoint={endpoint}"), &env).unwrap()
}

pub fn transport(config: SesConfig) -> SesTransport {
    transport_at(config, Clock::system())
}

pub fn transport_at(config: SesConfig, clock: Clock) -> SesTransport {
    let client = Client::new(config.client_config()).unwrap();
    SesTransport::new("main", config, client, clock)
}

/// The same key with another secret.
pub fn with_another_secret(mut config: SesConfig) -> SesConfig {
    config.credentials.secret_access_key = Secret::new("not the secret");
    config
}

/// Everybody was taken, under this name.
pub fn all_taken(recipients: usize, message_id: &str) -> Sent {
    Sent::Answered { refusals: vec![None; recipients], message_id: Some(message_id.to_owned()), ambiguous: false }
}

/// The refusals of an answer and whether it is ambiguous.
pub fn answered(sent: Sent) -> (Vec<Option<MailRefusal>>, bool) {
    match sent {
        Sent::Answered { refusals, ambiguous, .. } => (refusals, ambiguous),
        Sent::Unreached(refusal) => panic!("unreached: {refusal:?}"),
    }
}

/// The refusal of an attempt that reached nobody.
pub fn unreached(sent: Sent) -> MailRefusal {
    match sent {
        Sent::Unreached(refusal) => refusal,
        answered => panic!("answered: {answered:?}"),
    }
}
