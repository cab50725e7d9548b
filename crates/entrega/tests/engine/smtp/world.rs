//! A transport, and mails to send through it.

use std::time::Duration;

use bytes::Bytes;
use entrega::mail::smtp::{SmtpConfig, SmtpTransport};
use entrega::mail::transport::{Limits, Outgoing, Sent, Transport};
use entrega_call::Clock;
use entrega_core::id::JobId;
use entrega_core::mail::MailRefusal;
use entrega_core::name::TenantName;
use tokio::time::Instant;

use entrega_testkit::smtp_server::SmtpServer;

pub(super) const FROM: &str = "shop@example.com";
pub(super) const MESSAGE: &str = "Subject: Hello\r\n\r\nHello.\r\n";
/// For a test that is not about time.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn transport(server: &SmtpServer) -> SmtpTransport {
    transport_by(server, |_| {})
}

/// One whose configuration is changed first.
pub(super) fn transport_by(server: &SmtpServer, change: impl FnOnce(&mut SmtpConfig)) -> SmtpTransport {
    let mut config = SmtpConfig::from_url(&server.url()).unwrap();
    change(&mut config);
    SmtpTransport::new("main", config).unwrap()
}

pub(super) fn after(wait: Duration) -> Instant {
    let clock = Clock::system();
    clock.instant(clock.now() + wait)
}

pub(super) async fn send(transport: &SmtpTransport, recipients: &[&str]) -> Sent {
    send_as(transport, FROM, recipients, MESSAGE, PATIENCE).await
}

pub(super) async fn send_within(transport: &SmtpTransport, recipients: &[&str], wait: Duration) -> Sent {
    send_as(transport, FROM, recipients, MESSAGE, wait).await
}

pub(super) async fn send_text(transport: &SmtpTransport, message: &str) -> Sent {
    send_as(transport, FROM, &["ann@example.org"], message, PATIENCE).await
}

/// Fails where the transport would have been cut off by whoever waits for it.
pub(super) async fn send_as(
    transport: &SmtpTransport,
    from: &str,
    recipients: &[&str],
    message: &str,
    wait: Duration,
) -> Sent {
    let tenant: TenantName = "acme".parse().unwrap();
    let message = Bytes::copy_from_slice(message.as_bytes());
    let mail = Outgoing { id: JobId::from_parts(Clock::system().now(), 0), tenant: &tenant, from, recipients, message };
    let deadline = after(wait);
    let sent = tokio::time::timeout_at(deadline, transport.send(&mail, Limits::until(deadline))).await;
    sent.expect("it answers before the deadline")
}

/// Everybody got it.
pub(super) fn taken(recipients: usize) -> Sent {
    answered(vec![None; recipients])
}

pub(super) fn answered(refusals: Vec<Option<MailRefusal>>) -> Sent {
    Sent::Answered { refusals, message_id: None, ambiguous: false }
}

pub(super) fn refused(status: u16, enhanced: Option<&str>, message: &str) -> MailRefusal {
    MailRefusal {
        status: Some(status),
        code: format!("smtp_{status}"),
        enhanced: enhanced.map(str::to_owned),
        message: message.to_owned(),
    }
}

/// Why no server took part.
pub(super) fn unreached(sent: Sent) -> MailRefusal {
    match sent {
        Sent::Unreached(refusal) => refusal,
        answered => panic!("a server took part: {answered:?}"),
    }
}
