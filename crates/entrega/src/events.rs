//! Events: what is told of a mail, numbered without gaps.
//! Invariant: a settled attempt of a mail tells exactly one event where somebody listens, in the same write; its number
//! follows from the attempts alone, and its id from its number, so that nothing has to be counted or looked up.
//! Never: shows an address in full.

use entrega_core::decide::Transition;
use entrega_core::email::{Email, FailureCode, Mailed};
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, Body, EventBody, Job, Payload, Priority};
use entrega_core::mask::{mask_address, mask_text};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::Protocol;
use entrega_core::time::Time;
use entrega_core::trace::TRACEPARENT;
use serde::Serialize;

use crate::intake::EXTERNAL_ID;

/// The lane in which events are handed on.
pub const EVENTS_LANE: &str = "events";
/// The lane in which they are delivered.
pub const WEBHOOK_LANE: &str = "webhook";

/// The most events of one mail that are looked for: no mail is attempted as often, replays included.
pub const EVENTS_MAX: u32 = 1000;

/// An event as receivers get it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Told<'a, D: Serialize> {
    event_type: &'a str,
    event_id: &'a str,
    timestamp: Time,
    sequence_number: u32,
    data: D,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MailData<'a> {
    outbox_id: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    external_id: Option<&'a str>,
    company_id: &'a TenantName,
    recipient: String,
    #[serde(flatten)]
    rest: MailNews,
}

/// What is told of a mail, by what became of it.
#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum MailNews {
    Sent {
        status: &'static str,
        message_id: Option<String>,
        sent_at: Time,
        attempts: u32,
        processing_time_ms: u64,
    },
    Failed {
        status: &'static str,
        failure_reason: String,
        failure_code: FailureCode,
        #[serde(skip_serializing_if = "Option::is_none")]
        ses_error: Option<String>,
        attempts: u32,
        failed_at: Time,
    },
    RetryScheduled {
        status: &'static str,
        retry_attempt: u32,
        next_retry_at: Time,
        last_error: String,
        attempts: u32,
    },
}

impl MailNews {
    fn event_type(&self) -> &'static str {
        match self {
            MailNews::Sent { .. } => "email.sent",
            MailNews::Failed { .. } => "email.failed",
            MailNews::RetryScheduled { .. } => "email.retry_scheduled",
        }
    }
}

/// The id of the job that hands the n-th event of a mail on; the event's own id is made of the same bits.
pub fn event_job(mail: JobId, sequence: u32) -> JobId {
    mail.derive(format!("event {sequence}").as_bytes())
}

/// `evt_…`, from the id of the job that hands it on.
pub fn event_id(job: JobId) -> String {
    job.to_string().replacen("job_", "evt_", 1)
}

/// The event that the end of an attempt tells, as a job; `attempts` are all of this generation.
pub(crate) fn of_attempt(job: &Job, email: &Email, attempts: &[Attempt], transition: &Transition, now: Time) -> Job {
    let count = u32::try_from(attempts.len()).unwrap_or(u32::MAX);
    let sequence = email.events.saturating_add(count);
    let last = attempts.iter().rev().find_map(|attempt| attempt.mail.as_deref());
    let news = match transition {
        Transition::Done => MailNews::Sent {
            status: "SENT",
            message_id: last.and_then(|mailed| mailed.message_id.clone()),
            sent_at: now,
            attempts: count,
            processing_time_ms: u64::try_from(now.since(job.accepted_at).as_millis()).unwrap_or(u64::MAX),
        },
        Transition::Retry { at, failure } => MailNews::RetryScheduled {
            status: "RETRY_SCHEDULED",
            retry_attempt: count.saturating_add(1),
            next_retry_at: *at,
            last_error: mask_text(&failure.reason),
            attempts: count,
        },
        Transition::DeadLetter { failure } | Transition::Blocked { failure } => MailNews::Failed {
            status: "FAILED",
            failure_reason: mask_text(&failure.reason),
            failure_code: FailureCode::named(&failure.code).unwrap_or(FailureCode::InternalError),
            ses_error: last.and_then(ses_error),
            attempts: count,
            failed_at: now,
        },
    };
    let external_id = job.labels.get(EXTERNAL_ID).map(String::as_str);
    let event = of_mail(job.id, &job.tenant, recipient(email), external_id, sequence, news, now);
    in_trace(event, job.traceparent(count))
}

/// The event that a report of a mail tells after it was sent.
pub(crate) fn of_report(
    mail: JobId,
    tenant: &TenantName,
    external_id: Option<&str>,
    report: &crate::store::Feedback,
    attempts: u32,
    sequence: u32,
) -> Job {
    let news = MailNews::Failed {
        status: "FAILED",
        failure_reason: mask_text(&report.detail),
        failure_code: report.code,
        ses_error: Some(mask_text(&report.detail)),
        attempts,
        failed_at: report.at,
    };
    of_mail(mail, tenant, mask_address(&report.recipient), external_id, sequence, news, report.at)
}

fn of_mail(
    mail: JobId,
    tenant: &TenantName,
    recipient: String,
    external_id: Option<&str>,
    sequence: u32,
    news: MailNews,
    now: Time,
) -> Job {
    let id = event_job(mail, sequence);
    let event_type = news.event_type();
    let data = MailData { outbox_id: mail, external_id, company_id: tenant, recipient, rest: news };
    let told = Told { event_type, event_id: &event_id(id), timestamp: now, sequence_number: sequence, data };
    job(id, tenant, EVENTS_LANE, Payload::Event(body(&told)), now)
}

/// A job that is part of this trace.
fn in_trace(mut job: Job, traceparent: String) -> Job {
    job.labels.insert(TRACEPARENT.to_owned(), traceparent);
    job
}

/// A `webhook.test` for one endpoint, as a job.
pub(crate) fn of_test(id: JobId, tenant: &TenantName, endpoint: &str, now: Time) -> Job {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Test<'a> {
        company_id: &'a TenantName,
        endpoint: &'a str,
        message: &'static str,
    }
    let data = Test { company_id: tenant, endpoint, message: "This is a test of your endpoint." };
    let event_type = "webhook.test";
    let told = Told { event_type, event_id: &event_id(id), timestamp: now, sequence_number: 1, data };
    job(id.derive(endpoint.as_bytes()), &tenant.endpoint(endpoint), WEBHOOK_LANE, Payload::Webhook(body(&told)), now)
}

/// The job that delivers an event to one endpoint.
pub(crate) fn delivery(event: &Job, body: &EventBody, endpoint: &str, now: Time) -> Job {
    let whose = event.tenant.endpoint(endpoint);
    let job = job(event.id.derive(endpoint.as_bytes()), &whose, WEBHOOK_LANE, Payload::Webhook(body.clone()), now);
    in_trace(job, event.traceparent(1))
}

fn body<D: Serialize>(told: &Told<'_, D>) -> EventBody {
    // Texts, numbers and moments always encode.
    let bytes = serde_json::to_vec(told).expect("plain data encodes");
    EventBody { event_id: told.event_id.to_owned(), event_type: told.event_type.to_owned(), body: Body(bytes.into()) }
}

fn job(id: JobId, tenant: &TenantName, lane: &str, payload: Payload, now: Time) -> Job {
    Job {
        id,
        lane: LaneName::new(lane).expect("a lane name"),
        tenant: tenant.clone(),
        priority: Priority::Normal,
        payload,
        labels: Default::default(),
        idempotency_key: None,
        accepted_at: now,
        due_at: now,
        expires_at: None,
    }
}

fn recipient(email: &Email) -> String {
    email.recipients().first().map_or_else(String::new, |address| mask_address(address))
}

fn ses_error(mailed: &Mailed) -> Option<String> {
    let is_ses = mailed.protocol == Protocol::Ses;
    let refusal = mailed.recipients.iter().find_map(|recipient| recipient.refusal.as_ref()).filter(|_| is_ses)?;
    Some(mask_text(&format!("{}: {}", refusal.code, refusal.message)))
}
