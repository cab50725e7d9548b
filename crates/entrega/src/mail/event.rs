//! What is told of a mail, numbered without gaps.
//! Invariant: a settled attempt of a mail tells exactly one event where somebody listens, in the same write; its number
//! follows from the attempts alone.
//! Never: shows an address in full.

use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::Job;
use entrega_core::mail::{FailureCode, Mailed};
use entrega_core::mask::{mask_address, mask_text};
use entrega_core::name::TenantName;
use entrega_core::outcome::Protocol;
use entrega_core::time::Time;
use serde::Serialize;

use super::EXTERNAL_ID;
use super::content::Mail;
use crate::env::Env;
use crate::events::{self, event_job, has_listeners};
use crate::product::AttemptEnd;
#[cfg(feature = "ses")]
use crate::store::Feedback;
use crate::webhook::event::{Event, event_id, in_trace};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MailData<'a> {
    outbox_id: JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    external_id: Option<&'a str>,
    company_id: &'a TenantName,
    recipient: String,
    #[serde(flatten)]
    rest: MailEventData,
}

/// What is told of a mail, by what became of it.
#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum MailEventData {
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

impl MailEventData {
    fn event_type(&self) -> &'static str {
        match self {
            MailEventData::Sent { .. } => "email.sent",
            MailEventData::Failed { .. } => "email.failed",
            MailEventData::RetryScheduled { .. } => "email.retry_scheduled",
        }
    }
}

/// The event that follows from the end of an attempt, if somebody listens.
pub(super) fn follow_ups(env: &Env, ended: &AttemptEnd<'_>) -> Vec<Job> {
    if !has_listeners(env, &ended.job.tenant) {
        return Vec::new();
    }
    vec![of_attempt(ended)]
}

fn of_attempt(ended: &AttemptEnd<'_>) -> Job {
    let AttemptEnd { job, attempts, transition, now } = *ended;
    let count = u32::try_from(attempts.len()).unwrap_or(u32::MAX);
    let sequence = job.earlier.attempts.saturating_add(count);
    let last = attempts.iter().rev().find_map(|attempt| attempt.mail.as_deref());
    let news = match transition {
        Transition::Done => MailEventData::Sent {
            status: "SENT",
            message_id: last.and_then(|mailed| mailed.message_id.clone()),
            sent_at: now,
            attempts: count,
            processing_time_ms: u64::try_from(now.since(job.accepted_at).as_millis()).unwrap_or(u64::MAX),
        },
        Transition::Retry { at, failure } => MailEventData::RetryScheduled {
            status: "RETRY_SCHEDULED",
            retry_attempt: count.saturating_add(1),
            next_retry_at: *at,
            last_error: mask_text(&failure.reason),
            attempts: count,
        },
        Transition::DeadLetter { failure } | Transition::Blocked { failure } | Transition::Dropped { failure } => {
            MailEventData::Failed {
                status: "FAILED",
                failure_reason: mask_text(&failure.reason),
                failure_code: FailureCode::named(&failure.code).unwrap_or(FailureCode::InternalError),
                ses_error: last.and_then(ses_error),
                attempts: count,
                failed_at: now,
            }
        }
    };
    let external_id = job.labels.get(EXTERNAL_ID).map(String::as_str);
    let event = of_mail(job.id, &job.tenant, recipient(ended), external_id, sequence, news, now);
    in_trace(event, job.traceparent(count))
}

#[cfg(feature = "ses")]
/// The event that a report of a mail tells after it was sent.
pub(super) fn of_report(
    mail: JobId,
    tenant: &TenantName,
    external_id: Option<&str>,
    report: &Feedback,
    attempts: u32,
    sequence: u32,
) -> Job {
    let news = MailEventData::Failed {
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
    news: MailEventData,
    now: Time,
) -> Job {
    let id = event_job(mail, sequence);
    let event_type = news.event_type();
    let data = MailData { outbox_id: mail, external_id, company_id: tenant, recipient, rest: news };
    let event = Event { event_type, event_id: &event_id(id), timestamp: now, sequence_number: sequence, data };
    events::event(id, tenant, &event)
}

/// The first recipient. Attempts name everybody; only one that never got that far leaves it to the mail itself.
fn recipient(ended: &AttemptEnd<'_>) -> String {
    let attempted = ended.attempts.iter().rev().find_map(|attempt| attempt.mail.as_deref()?.recipients.first());
    match attempted {
        Some(recipient) => mask_address(&recipient.address),
        None => {
            let mail: Result<Mail, _> = ended.job.payload.read();
            mail.ok()
                .and_then(|mail| mail.recipients().first().map(|address| mask_address(address)))
                .unwrap_or_default()
        }
    }
}

fn ses_error(mailed: &Mailed) -> Option<String> {
    let is_ses = mailed.protocol == Protocol::Ses;
    let refusal = mailed.recipients.iter().find_map(|recipient| recipient.refusal.as_ref()).filter(|_| is_ses)?;
    Some(mask_text(&format!("{}: {}", refusal.code, refusal.message)))
}
