//! The `email` channel: a mail, written out and handed to the first transport that can be reached.
//! Invariant: nobody gets a mail twice who was seen to get it: an attempt goes only to those who are left.
//! Never: judges a refusal; the rules do, recipient by recipient.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use entrega_call::Clock;
use entrega_core::classify::Verdict;
use entrega_core::mail::{FailureCode, MailRefusal, Mailed, Recipient};
use entrega_core::outcome::{Fault, FaultKind, Outcome, Protocol};
use tokio::time::Instant;

use super::content::Mail;
use super::message;
use super::route::Route;
use super::transport::{Limits, Outgoing, Sent, Transport};
use crate::channel::Channel;
use crate::store::{ClaimedJob, Store, Suppression};

/// An attempt ends this long before its deadline.
const MARGIN: Duration = Duration::from_millis(20);

/// Mails, over one transport or several.
pub struct MailChannel {
    routes: Vec<Route>,
    store: Arc<dyn Store>,
    clock: Clock,
    /// The right side of every Message-ID; the sender's own domain if `None`.
    domain: Option<String>,
}

impl MailChannel {
    /// Over these transports, the first that can be reached.
    pub fn new(
        transports: Vec<Box<dyn Transport>>,
        store: Arc<dyn Store>,
        clock: Clock,
        domain: Option<String>,
    ) -> MailChannel {
        let routes = transports.into_iter().map(|transport| Route::new(transport, clock.clone())).collect();
        MailChannel { routes, store, clock, domain }
    }

    /// What keeps addresses from being written to, as a refusal for those it concerns.
    async fn suppress(&self, claimed: &ClaimedJob, progress: &mut [Progress]) -> Result<(), Fault> {
        let left: Vec<&str> = progress.iter().filter_map(Progress::left).collect();
        let found = self.store.suppressed(&claimed.job.tenant, &left).await;
        let found = found.map_err(|error| Fault {
            kind: FaultKind::Crashed,
            message: format!("the list of suppressed addresses cannot be read: {error}"),
        })?;
        for (place, suppression) in progress.iter_mut().filter(|place| place.left().is_some()).zip(found) {
            if let Some(suppression) = suppression {
                place.result = Some(Recipient::refused(&place.address, suppressed(&suppression)));
            }
        }
        Ok(())
    }

    /// Hands a mail to the routes in order, until one takes it or has something against it. A server that is down, or wants
    /// nothing of us, is passed over as long as it has certainly taken nothing. Routes whose breaker is open come last:
    /// trying one of them is better than failing for nothing, and the lane's own breaker spares them while all are down.
    async fn send(&self, mail: &Outgoing<'_>, deadline: Instant) -> SendResult {
        let (ready, shut): (Vec<&Route>, Vec<&Route>) = self.routes.iter().partition(|route| route.is_ready());
        let order = if ready.is_empty() { shut } else { ready };
        let mut first_failed = None;
        for (tried, route) in order.iter().enumerate() {
            let sent = route.send(mail, Limits { reach_by: self.share(deadline, order.len() - tried), deadline }).await;
            let is_passed_over = route.is_passed_over(&sent);
            let attempted = SendResult { protocol: route.protocol(), transport: route.name().to_owned(), sent };
            if !is_passed_over {
                return attempted;
            }
            first_failed.get_or_insert(attempted);
        }
        first_failed.unwrap_or_else(|| SendResult {
            protocol: Protocol::Smtp,
            transport: String::new(),
            sent: no_transport(),
        })
    }

    /// A server that is not there must leave time for those behind it.
    fn share(&self, deadline: Instant, routes_left: usize) -> Instant {
        let now = self.clock.instant(self.clock.now());
        let left = deadline.saturating_duration_since(now);
        now + left / u32::try_from(routes_left).unwrap_or(u32::MAX).max(1)
    }
}

/// What came of handing a mail over.
struct SendResult {
    protocol: Protocol,
    transport: String,
    sent: Sent,
}

fn no_transport() -> Sent {
    let message = "no transport is configured; set SMTP_URL, or a url under [transports.main]";
    Sent::Unreached(MailRefusal::fault("connect", message))
}

/// How far a mail is with one recipient.
struct Progress {
    address: String,
    /// What is settled; `None` while it is left to do.
    result: Option<Recipient>,
}

impl Progress {
    fn left(&self) -> Option<&str> {
        self.result.is_none().then_some(self.address.as_str())
    }
}

/// How far a mail is: the last attempt that got anywhere names everybody, and a replayed mail says who got it before.
fn progress(mail: &Mail, claimed: &ClaimedJob) -> Vec<Progress> {
    let last = claimed.history.iter().rev().find_map(|attempt| attempt.mail.as_ref());
    let before = |address: &str| {
        let known = last.and_then(|mailed| mailed.recipients.iter().find(|known| known.address == address));
        let is_settled = |known: &&Recipient| known.verdict != Verdict::Retry;
        let before = known.filter(is_settled).cloned().or_else(|| {
            let got_it = claimed.job.earlier.accepted.iter().any(|accepted| accepted == address);
            got_it.then(|| Recipient::accepted(address))
        });
        before.map(Recipient::settled_before)
    };
    let of = |address: &str| Progress { result: before(address), address: address.to_owned() };
    mail.recipients().into_iter().map(of).collect()
}

fn suppressed(suppression: &Suppression) -> MailRefusal {
    let code = match suppression.code {
        FailureCode::Complaint => "suppressed_complaint",
        _ => "suppressed_bounce",
    };
    MailRefusal::fault(code, format!("the address is suppressed since {}: {}", suppression.since, suppression.reason))
}

/// Everybody's result: what was settled before, and now those who were left.
fn results(progress: Vec<Progress>, refusals: impl Fn(usize) -> Option<MailRefusal>) -> Vec<Recipient> {
    let mut tried = 0;
    let result = |place: Progress| {
        place.result.unwrap_or_else(|| {
            tried += 1;
            match refusals(tried - 1) {
                None => Recipient::accepted(&place.address),
                Some(refusal) => Recipient::refused(&place.address, refusal),
            }
        })
    };
    progress.into_iter().map(result).collect()
}

#[async_trait]
impl Channel for MailChannel {
    async fn attempt(&self, claimed: &ClaimedJob, deadline: Instant) -> Outcome {
        let mail: Mail = match claimed.job.payload.read() {
            Ok(mail) => mail,
            Err(error) => return Outcome::Fault(Fault { kind: FaultKind::Invalid, message: error.to_string() }),
        };
        let mut progress = progress(&mail, claimed);
        if let Err(fault) = self.suppress(claimed, &mut progress).await {
            return Outcome::Fault(fault);
        }
        let left: Vec<String> = progress.iter().filter_map(|place| place.left().map(str::to_owned)).collect();
        let nothing = Mailed {
            protocol: Protocol::Smtp,
            transport: String::new(),
            message_id: None,
            ambiguous: false,
            recipients: Vec::new(),
        };
        if left.is_empty() {
            return Outcome::Mail(Box::new(Mailed { recipients: results(progress, |_| None), ..nothing }));
        }
        let sender_domain = mail.from.address.rsplit_once('@').map_or("localhost", |(_, domain)| domain);
        let domain = self.domain.as_deref().unwrap_or(sender_domain);
        let message = match message::write_out(&claimed.job, &mail, domain) {
            Ok(message) => message,
            Err(error) => {
                let refusal = MailRefusal::fault("invalid", error.to_string());
                let recipients = results(progress, |_| Some(refusal.clone()));
                return Outcome::Mail(Box::new(Mailed { recipients, ..nothing }));
            }
        };
        let recipients: Vec<&str> = left.iter().map(String::as_str).collect();
        let outgoing = Outgoing {
            id: claimed.job.id,
            tenant: &claimed.job.tenant,
            from: &mail.from.address,
            recipients: &recipients,
            message,
        };
        // What is known by then is worth more than what the dispatcher would make of an attempt that it cut off.
        let deadline = deadline.checked_sub(MARGIN).unwrap_or(deadline);
        let SendResult { protocol, transport, sent } = self.send(&outgoing, deadline).await;
        Outcome::Mail(Box::new(match sent {
            Sent::Unreached(refusal) => {
                Mailed { protocol, transport, recipients: results(progress, |_| Some(refusal.clone())), ..nothing }
            }
            Sent::Answered { refusals, message_id, ambiguous } => {
                let ours = || message::message_id(claimed.job.id, domain);
                let message_id = Some(message_id.unwrap_or_else(ours));
                let recipients = results(progress, |index| refusals.get(index).cloned().flatten());
                Mailed { protocol, transport, message_id, ambiguous, recipients }
            }
        }))
    }
}
