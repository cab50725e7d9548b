//! Routes: a transport with the breaker that stands before it.
//! Invariant: a transport that failed several times in a row is left alone for a while, and then one mail probes it.
//! Never: holds a mail back; when every route is shut, the channel tries them all the same.

use std::time::Duration;

use entrega_core::breaker::{Breaker, BreakerPolicy, Pass};
use entrega_core::email::{Mailed, Recipient};
use entrega_core::outcome::{Lesson, Protocol};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::transport::{Outgoing, Sent, Transport};
use crate::clock::Clock;

const FAILURES: u32 = 5;
const OPEN: Duration = Duration::from_secs(30);
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Route {
    transport: Box<dyn Transport>,
    breaker: Mutex<Breaker>,
    clock: Clock,
}

impl Route {
    pub(super) fn new(transport: Box<dyn Transport>, clock: Clock) -> Route {
        let policy = BreakerPolicy { failures: FAILURES, open: OPEN, probe_timeout: PROBE_TIMEOUT };
        Route { transport, breaker: Mutex::new(Breaker::new(policy)), clock }
    }

    pub(super) fn name(&self) -> &str {
        self.transport.name()
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.transport.protocol()
    }

    /// Whether a mail may take this route now.
    pub(super) fn is_ready(&self) -> bool {
        // How many are under way is the lane's concern: its own breaker lets it come back gently.
        self.breaker.lock().pass(self.clock.now(), 0) == Pass::Free
    }

    pub(super) async fn send(&self, mail: &Outgoing<'_>, deadline: Instant) -> Sent {
        self.breaker.lock().start(self.clock.now());
        let sent = self.transport.send(mail, deadline).await;
        let now = self.clock.now();
        let mut breaker = self.breaker.lock();
        match self.lesson(mail, &sent) {
            Lesson::Down => {
                if breaker.fail(now) {
                    tracing::warn!(
                        transport = self.name(),
                        openForMs = OPEN.as_millis() as u64,
                        "Transport fails; the next one is used"
                    );
                }
            }
            Lesson::Up | Lesson::Slower(_) => breaker.succeed(),
            Lesson::Nothing => breaker.give_up_probe(now),
        }
        sent
    }

    /// What a result says of the transport: the same as it says of a lane.
    fn lesson(&self, mail: &Outgoing<'_>, sent: &Sent) -> Lesson {
        let refusals = match sent {
            Sent::Unreached(refusal) if refusal.is_ours() => return Lesson::Nothing,
            Sent::Unreached(_) => return Lesson::Down,
            Sent::Answered { refusals, .. } => refusals,
        };
        let recipients = mail.recipients.iter().zip(refusals).map(|(address, refusal)| match refusal {
            None => Recipient::accepted(address),
            Some(refusal) => Recipient::refused(address, refusal.clone()),
        });
        let mailed = Mailed {
            protocol: self.protocol(),
            transport: String::new(),
            message_id: None,
            ambiguous: false,
            recipients: recipients.collect(),
        };
        mailed.lesson()
    }
}
