//! Routes: a transport with the breaker that stands before it.
//! Invariant: a transport that failed several times in a row is left alone for a while, and then one mail probes it.
//! Never: holds a mail back; when every route is shut, the channel tries them all the same.

use std::time::Duration;

use entrega_core::breaker::{Breaker, BreakerPolicy, Pass, WhenOpen};
use entrega_core::mail::MailRefusal;
use entrega_core::outcome::{Lesson, Protocol};
use parking_lot::Mutex;

use super::transport::{Limits, Outgoing, Sent, Transport};
use entrega_call::Clock;

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
        let policy =
            BreakerPolicy { failures: FAILURES, open: OPEN, probe_timeout: PROBE_TIMEOUT, when_open: WhenOpen::Hold };
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

    pub(super) async fn send(&self, mail: &Outgoing<'_>, limits: Limits) -> Sent {
        self.breaker.lock().start(self.clock.now());
        let sent = self.transport.send(mail, limits).await;
        let now = self.clock.now();
        let mut breaker = self.breaker.lock();
        match self.lesson(&sent) {
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
            Lesson::Nothing | Lesson::Unused => breaker.give_up_probe(now),
            Lesson::Apart => {}
        }
        sent
    }

    /// Whether the mail can go on to another route: nobody got it, for certain, and what stood in the way was the way.
    pub(super) fn is_passed_over(&self, sent: &Sent) -> bool {
        match sent {
            Sent::Unreached(_) => true,
            Sent::Answered { ambiguous: true, .. } => false,
            Sent::Answered { refusals, .. } => refusals
                .iter()
                .all(|refusal| refusal.as_ref().is_some_and(|refusal| refusal.lesson(self.protocol()) == Lesson::Down)),
        }
    }

    /// What a result says of the transport: the best that one recipient says of it.
    fn lesson(&self, sent: &Sent) -> Lesson {
        let refusals = match sent {
            Sent::Unreached(refusal) => return refusal.lesson(self.protocol()),
            Sent::Answered { refusals, .. } => refusals,
        };
        let lesson = |refusal: &Option<MailRefusal>| {
            refusal.as_ref().map_or(Lesson::Up, |refusal| refusal.lesson(self.protocol()))
        };
        let lessons: Vec<Lesson> = refusals.iter().map(lesson).collect();
        match lessons.contains(&Lesson::Up) {
            true => Lesson::Up,
            false => lessons.first().copied().unwrap_or(Lesson::Nothing),
        }
    }
}
