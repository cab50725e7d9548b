//! Destinations that misbehave: they fail, hang, answer late, ask for patience, or take what is then forgotten.
//! Invariant: after the world has healed they take everything at once.
//! Never: decides what an answer means.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use entrega::channel::Channel;
use entrega::mail::Mail;
use entrega::store::ClaimedJob;
use entrega::webhook::WEBHOOK;
use entrega_core::mail::{MailRefusal, Mailed, Recipient};
use entrega_core::outcome::{Answer, Fault, FaultKind, Outcome, Protocol};
use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use crate::life::Life;

/// The way out of every simulated lane.
#[derive(Clone)]
pub struct Destination {
    /// The life that calls it.
    pub life: Arc<Life>,
}

/// What a destination does with one call.
pub enum Mood {
    /// As it should.
    Takes,
    /// Takes it, and then the process is killed.
    TakesAndIsForgotten,
    /// Takes it just before nobody waits any more.
    TakesLate,
    /// Answers with this status.
    Fails(u16),
    /// Answers that it wants to be left alone for so long.
    AsksForPatience(Duration),
    /// Does not answer at all, at once.
    RefusesConnection,
    /// Says nothing until the deadline; the channel notices.
    Hangs,
    /// Says nothing at all; only the worker can notice.
    NeverReturns,
}

impl Mood {
    /// What chance says, until the world has healed.
    pub fn draw(life: &Life) -> Mood {
        if life.moment() >= life.world.plan.heal_at {
            return Mood::Takes;
        }
        let mut rng = life.world.rng.lock();
        match rng.u32(0..100) {
            0..45 => Mood::Takes,
            45..50 => Mood::TakesAndIsForgotten,
            50..56 => Mood::TakesLate,
            56..72 => Mood::Fails(503),
            72..76 => Mood::Fails(404),
            76..84 => Mood::AsksForPatience(Duration::from_secs(rng.u64(1..3))),
            84..92 => Mood::RefusesConnection,
            92..97 => Mood::Hangs,
            _ => Mood::NeverReturns,
        }
    }
}

#[async_trait]
impl Channel for Destination {
    async fn attempt(&self, job: &ClaimedJob, deadline: Instant) -> Outcome {
        let life = &self.life;
        life.reach().await;
        match life.stands_still_with(job) {
            true => tokio::task::yield_now().await,
            false => life.world.witness.lock().started(life.clock.now(), life.number(), job),
        }
        let mood = Mood::draw(life);
        let takes_ms = life.world.rng.lock().u64(0..300);
        let rest = life.clock.until(deadline);
        let takes = Duration::from_millis(takes_ms).min(rest / 2);
        match mood {
            Mood::TakesLate => life.wait(rest.saturating_sub(Duration::from_millis(1))).await,
            Mood::Hangs => life.wait(rest).await,
            Mood::NeverReturns => {
                life.world.witness.lock().troubles.hung += 1;
                std::future::pending::<()>().await;
            }
            _ => life.wait(takes).await,
        }
        life.reach().await;
        if matches!(mood, Mood::TakesAndIsForgotten) {
            life.hurry_crash(2);
        }
        if let Mood::AsksForPatience(length) = mood {
            life.world.witness.lock().asked(job, life.clock.now() + length);
        }
        if job.job.payload.kind() == WEBHOOK.name {
            life.world.witness.lock().troubles.events += 1;
        }
        match job.job.payload.read::<Mail>() {
            Ok(mail) => mailed(&mail.to[0].address, &mood),
            Err(_) => outcome(&mood),
        }
    }
}

fn outcome(mood: &Mood) -> Outcome {
    let (status, retry_after) = match mood {
        Mood::RefusesConnection => return fault(FaultKind::Connect, "connection refused"),
        Mood::Hangs | Mood::NeverReturns => return fault(FaultKind::Timeout, "no answer in time"),
        Mood::Takes | Mood::TakesAndIsForgotten | Mood::TakesLate => (200, None),
        Mood::Fails(status) => (*status, None),
        Mood::AsksForPatience(length) => (429, Some(*length)),
    };
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    Outcome::Answer(Answer { status, headers: HeaderMap::new(), body: Bytes::new(), truncated: false, retry_after })
}

fn fault(kind: FaultKind, message: &str) -> Outcome {
    Outcome::Fault(Fault { kind, message: message.into() })
}

fn mailed(address: &str, mood: &Mood) -> Outcome {
    let refused = |status: u16, message: &str| MailRefusal {
        status: Some(status),
        code: format!("smtp_{status}"),
        enhanced: None,
        message: message.into(),
    };
    let refusal = match mood {
        Mood::Takes | Mood::TakesAndIsForgotten | Mood::TakesLate => None,
        Mood::Fails(404) => Some(refused(550, "no such user")),
        Mood::Fails(_) | Mood::AsksForPatience(_) => Some(refused(450, "try again later")),
        Mood::RefusesConnection => Some(MailRefusal::fault("connect", "connection refused")),
        Mood::Hangs | Mood::NeverReturns => Some(MailRefusal::fault("timeout", "no answer in time")),
    };
    let recipient = match refusal {
        Some(refusal) => Recipient::refused(address, refusal),
        None => Recipient::accepted(address),
    };
    Outcome::Mail(Box::new(Mailed {
        protocol: Protocol::Smtp,
        transport: "simulated".into(),
        message_id: None,
        ambiguous: false,
        recipients: vec![recipient],
    }))
}
