//! Log lines of calls, with the messages operators search for.
//! Invariant: a message is always the same text; what differs is in the fields.
//! Never: a secret, a body, a query or an error that nobody described.

use std::time::Duration;

use super::classifier::Description;
use super::end::Stopped;
use super::operation::LogFields;

/// What every line of one run says.
pub(super) struct Subject<'a> {
    pub(super) operation: &'a str,
    pub(super) idempotency_key: &'a str,
    pub(super) fields: &'a LogFields,
    pub(super) attempts_max: u32,
}

/// Whether an attempt ended with an answer or without.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EndedWith {
    Response,
    Exception,
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// One line with the subject's fields and some of its own.
macro_rules! line {
    ($level:ident, $subject:expr, $message:literal, $($own:tt)*) => {{
        let subject: &Subject<'_> = $subject;
        let fields = subject.fields;
        tracing::$level!(
            operation = subject.operation,
            idempotencyKey = subject.idempotency_key,
            maxAttempts = subject.attempts_max,
            requestId = fields.request_id.as_deref(),
            traceId = fields.trace_id.as_deref(),
            userId = fields.user_id.as_deref(),
            orgId = fields.org_id.as_deref(),
            companyId = fields.company_id.as_deref(),
            lane = fields.lane.as_deref(),
            jobId = fields.job_id.as_deref(),
            eventId = fields.event_id.as_deref(),
            connector_id = fields.connector_id.as_deref(),
            method = fields.method.as_deref(),
            path = fields.path.as_deref(),
            $($own)*
            $message
        )
    }};
}

pub(super) fn attempt_ended(subject: &Subject<'_>, attempt: u32, took: Duration, retryable: bool, about: &Description) {
    line!(
        info,
        subject,
        "Outbound attempt ended",
        attempt,
        latencyMs = millis(took),
        httpStatus = about.http_status,
        errorCode = about.error_code.as_deref(),
        isRetryable = retryable,
    );
}

pub(super) fn retrying(subject: &Subject<'_>, with: EndedWith, attempt: u32, delay: Duration, about: &Description) {
    let (status, code, reason) = (about.http_status, about.error_code.as_deref(), about.error_reason.as_deref());
    let delay_ms = millis(delay);
    match with {
        EndedWith::Response => line!(
            warn,
            subject,
            "Retrying request due to retriable response",
            attempt,
            httpStatus = status,
            errorCode = code,
            isRetryable = true,
            nextRetryDelay = delay_ms,
        ),
        EndedWith::Exception => line!(
            warn,
            subject,
            "Retrying request due to retriable exception",
            attempt,
            errorCode = code,
            errorReason = reason,
            isRetryable = true,
            nextRetryDelay = delay_ms,
        ),
    }
}

pub(super) fn waiting(subject: &Subject<'_>, attempt: u32, base: Duration, wait: Duration) {
    let (base, wait) = (millis(base), millis(wait));
    line!(debug, subject, "Waiting before retry", attempt, base_delay_ms = base, final_delay_ms = wait,);
}

pub(super) fn gave_up(subject: &Subject<'_>, with: EndedWith, attempt: u32, stopped: Stopped, about: &Description) {
    let (status, code, reason) = (about.http_status, about.error_code.as_deref(), about.error_reason.as_deref());
    match with {
        EndedWith::Response => line!(error, subject, "API request failed after all retries (response)",
            attempt, httpStatus = status, errorCode = code, stopped = %stopped,
        ),
        EndedWith::Exception => line!(error, subject, "API request failed after all retries (exception)",
            attempt, errorCode = code, errorReason = reason, stopped = %stopped,
        ),
    }
}

pub(super) fn throttle_timed_out(
    subject: &Subject<'_>,
    attempt: u32,
    took: Duration,
    max_wait: Duration,
    proceeds: bool,
) {
    line!(
        warn,
        subject,
        "Throttle wait timeout exceeded",
        attempt,
        wait_seconds = took.as_secs_f64(),
        max_wait_seconds = max_wait.as_secs_f64(),
        action = if proceeds { "proceeding_anyway" } else { "failing" },
    );
}
