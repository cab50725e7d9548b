//! A mail as shown to people: its job, read as a mail.
//! Invariant: the status follows from where the job stands and what was reported later; nothing else is kept.

use entrega_core::classify::Verdict;
use entrega_core::id::JobId;
use entrega_core::job::{Attempt, JobState};
use entrega_core::mail::{FailureCode, Mailed, Recipient};
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use entrega::mail::EXTERNAL_ID;
use entrega::store::{Feedback, JobView};

/// How a mail stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum MailStatus {
    /// It waits for its first attempt.
    Queued,
    /// An attempt is under way.
    Sending,
    /// It failed for now.
    RetryScheduled,
    /// Every recipient's server took it.
    Sent,
    /// It failed for good, bounced, or was reported as spam.
    Failed,
}

/// A mail.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MailView {
    /// Its id; also the job's.
    #[schema(value_type = String, example = "out_01J9Z3K5V8N4QW6R7T2Y0X1ABC")]
    outbox_id: JobId,
    /// The tenant that it belongs to.
    #[schema(value_type = String)]
    company_id: TenantName,
    /// Your own name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    external_id: Option<String>,
    /// How it stands.
    pub(super) status: MailStatus,
    /// Why it failed, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "INVALID_RECIPIENT")]
    failure_code: Option<FailureCode>,
    /// Why it failed, or did not succeed yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure_reason: Option<String>,
    /// The name that it has at the other side.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_id: Option<String>,
    /// When it was taken.
    #[schema(value_type = String, format = DateTime)]
    queued_at: Time,
    /// When it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    next_retry_at: Option<Time>,
    /// When the last recipient's server took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    sent_at: Option<Time>,
    /// When it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    failed_at: Option<Time>,
    /// Every attempt, oldest first.
    attempts: Vec<MailAttempt>,
    /// What was reported after it was sent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    feedback: Vec<FeedbackRow>,
}

/// One try of a mail.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct MailAttempt {
    /// From 1; it starts again with each replay.
    number: u32,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    started_at: Time,
    /// How long it took.
    duration_ms: u64,
    /// `ok`, or why it failed.
    code: String,
    /// The same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Which way it went.
    #[serde(skip_serializing_if = "Option::is_none")]
    transport: Option<String>,
    /// Whether the connection was lost when the mail may have been taken already.
    ambiguous: bool,
    /// Everybody; those who were settled by an earlier attempt as they were then.
    recipients: Vec<RecipientRow>,
}

/// What came of a mail for one recipient.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecipientRow {
    /// The address.
    address: String,
    /// `accepted`, `deferred` or `refused`.
    result: &'static str,
    /// The server's reply, or what came instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<String>,
}

/// What was reported of a mail after it was sent.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct FeedbackRow {
    /// Whose report.
    recipient: String,
    /// `BOUNCE_PERMANENT`, `BOUNCE_TEMPORARY` or `COMPLAINT`.
    #[schema(value_type = String)]
    code: FailureCode,
    /// In words.
    detail: String,
    /// When it was heard.
    #[schema(value_type = String, format = DateTime)]
    at: Time,
}

impl MailView {
    /// A mail's job, and what was reported of it.
    pub(super) fn of(mut job: JobView, feedback: Vec<Feedback>) -> MailView {
        let reported = feedback.first();
        let status = match job.state {
            JobState::Idle | JobState::Queued | JobState::Replaying => MailStatus::Queued,
            JobState::Running => MailStatus::Sending,
            JobState::RetryWait => MailStatus::RetryScheduled,
            JobState::Done if reported.is_none() => MailStatus::Sent,
            JobState::Done | JobState::Dlq | JobState::Dropped | JobState::Cancelled | JobState::Blocked => {
                MailStatus::Failed
            }
        };
        let last = job.attempts.iter().rev().find_map(|attempt| attempt.mail.as_deref());
        let is_sent = job.state == JobState::Done;
        // An attempt that reached nobody gave it no name.
        let names: Vec<String> =
            job.attempts.iter().filter_map(|attempt| attempt.mail.as_ref()?.message_id.clone()).collect();
        let unsent = || last.and_then(Mailed::failure_code).unwrap_or(FailureCode::InternalError);
        let failure_code = match status {
            MailStatus::Failed => Some(reported.map_or_else(unsent, |feedback| feedback.code)),
            _ => None,
        };
        let last_reason = job.attempts.last().and_then(|attempt| attempt.reason.clone());
        let failure_reason = reported.map(|feedback| feedback.detail.clone());
        let failed_at = reported.map(|feedback| feedback.at).or(job.ended_at);
        MailView {
            outbox_id: job.job_id,
            company_id: job.company_id,
            external_id: job.labels.remove(EXTERNAL_ID),
            failure_code,
            failure_reason: failure_reason.or(job.reason).or(last_reason.filter(|_| !is_sent)),
            message_id: names.last().cloned(),
            queued_at: job.accepted_at,
            next_retry_at: job.due_at.filter(|_| status == MailStatus::RetryScheduled),
            sent_at: job.ended_at.filter(|_| is_sent),
            failed_at: failed_at.filter(|_| status == MailStatus::Failed),
            attempts: job.attempts.into_iter().map(MailAttempt::from).collect(),
            feedback: feedback.into_iter().map(FeedbackRow::from).collect(),
            status,
        }
    }
}

impl From<Attempt> for MailAttempt {
    fn from(attempt: Attempt) -> MailAttempt {
        let mail = attempt.mail;
        MailAttempt {
            number: attempt.number,
            started_at: attempt.started_at,
            duration_ms: attempt.duration_ms,
            code: attempt.code,
            reason: attempt.reason,
            transport: mail.as_ref().map(|mailed| mailed.transport.clone()).filter(|name| !name.is_empty()),
            ambiguous: mail.as_ref().is_some_and(|mailed| mailed.ambiguous),
            recipients: mail.map_or_else(Vec::new, |mailed| mailed.recipients.iter().map(RecipientRow::from).collect()),
        }
    }
}

impl From<&Recipient> for RecipientRow {
    fn from(recipient: &Recipient) -> RecipientRow {
        RecipientRow {
            address: recipient.address.clone(),
            result: match recipient.verdict {
                Verdict::Success => "accepted",
                Verdict::Retry | Verdict::Hold => "deferred",
                Verdict::Permanent => "refused",
            },
            reply: recipient.refusal.as_ref().map(entrega_core::mail::MailRefusal::reason),
        }
    }
}

impl From<Feedback> for FeedbackRow {
    fn from(feedback: Feedback) -> FeedbackRow {
        FeedbackRow { recipient: feedback.recipient, code: feedback.code, detail: feedback.detail, at: feedback.at }
    }
}
