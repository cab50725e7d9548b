//! Notifications of Amazon SES, through SNS.
//! Invariant: nothing is believed that is not signed by SNS for a configured topic.
//! Never: needs a key; SNS cannot send one.

use std::sync::Arc;
#[cfg(feature = "ses")]
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::Api;
use super::body::RawBytes;
use super::problem::{ApiError, Problem};
#[cfg(feature = "ses")]
use entrega::mail::FeedbackOutcome;
#[cfg(feature = "ses")]
use entrega::mail::sns::Message;

#[cfg(feature = "ses")]
/// Fetching a certificate or confirming a subscription takes no longer; SNS itself gives up after 15 s.
const READING_MAX: Duration = Duration::from_secs(10);

/// What became of a notification.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Noted {
    /// `kept`, `ignored`, `unmatched`, `confirmed` or `unsubscribed`.
    result: &'static str,
}

/// Hear a notification of SES
///
/// For SNS, which signs what it sends: the envelope's signature and topic are checked. Bounces and complaints set the
/// mail's status and suppress the address for its tenant.
#[utoipa::path(
    post, path = "/v1/ses/notifications", tag = "e-mail",
    request_body(content = String, content_type = "text/plain", description = "The envelope of SNS, in JSON"),
    responses(
        (status = 200, description = "FeedbackOutcome", body = Noted),
        (status = 403, description = "Not signed by SNS, or of another topic", body = Problem,
            content_type = "application/problem+json"),
    )
)]
pub(super) async fn hear(State(api): State<Arc<Api>>, RawBytes(body): RawBytes) -> Result<Json<Noted>, ApiError> {
    Ok(Json(Noted { result: read(&api, &body).await? }))
}

#[cfg(feature = "ses")]
async fn read(api: &Api, body: &[u8]) -> Result<&'static str, ApiError> {
    let clock = &api.engine.env().clock;
    let deadline = clock.instant(clock.now() + READING_MAX);
    let sns = api.engine.mail().sns().ok_or(ApiError::NoTopics)?;
    let result = match sns.read(body, deadline).await? {
        Message::Confirmed { topic } => {
            tracing::info!(target: "audit", topic, operation = "ses.confirm", "Subscription of SNS confirmed");
            "confirmed"
        }
        Message::Unsubscribed { topic } => {
            tracing::warn!(topic, "SNS will send no more notifications of this topic");
            "unsubscribed"
        }
        Message::Other { topic } => {
            tracing::warn!(topic, "A message of SNS that is not from SES; it is ignored");
            "ignored"
        }
        Message::Notification(notification) => match api.engine.mail().record_feedback(notification).await? {
            FeedbackOutcome::Kept => "kept",
            FeedbackOutcome::Nothing => "ignored",
            FeedbackOutcome::Unmatched => "unmatched",
        },
    };
    Ok(result)
}

/// Nobody listens in a program that was built without SES.
#[cfg(not(feature = "ses"))]
async fn read(_: &Api, _: &[u8]) -> Result<&'static str, ApiError> {
    Err(ApiError::NoTopics)
}
