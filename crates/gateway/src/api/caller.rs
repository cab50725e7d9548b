//! What a caller says beside the body: the key that makes its call happen once, the trace it is in, the user it acts for.
//! Invariant: a key goes with what was called and sent; under the same key anything else is refused.
//! Never: trusts a trace that is none; the standard asks to begin a new one then.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::header::{HeaderName, HeaderValue};
use axum::http::request::Parts;
use entrega_call::TraceParent;
use entrega_core::idempotency::IdempotencyKey;
use entrega_core::trace::TRACEPARENT;
use utoipa::IntoParams;

use super::Api;
use super::problem::ApiError;
use entrega::store::{IDEMPOTENCY_KEY_RULE, Idempotency};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const USER_BYTES_MAX: usize = 255;

/// The key that makes a call happen once, as the document shows it.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(super) struct IdempotencyHeader {
    /// Makes the call happen once: 1 to 255 visible ASCII characters
    #[param(rename = "Idempotency-Key")]
    _key: Option<String>,
}

/// What a caller says beside the body.
pub(super) struct Caller {
    path: String,
    key: Option<HeaderValue>,
    trace: Option<String>,
    user_header: HeaderName,
    user: Option<String>,
}

impl FromRequestParts<Arc<Api>> for Caller {
    type Rejection = ApiError;
    async fn from_request_parts(parts: &mut Parts, api: &Arc<Api>) -> Result<Caller, ApiError> {
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let user_header = api.user_header.clone();
        let user = parts.headers.get(&user_header).map(|value| {
            let user = value.to_str().ok().filter(|user| (1..=USER_BYTES_MAX).contains(&user.len()));
            let rule = format!("use 1 to {USER_BYTES_MAX} visible ASCII characters");
            user.map(str::to_owned).ok_or_else(|| ApiError::invalid(user_header.as_str(), rule))
        });
        Ok(Caller {
            path: parts.uri.path().to_owned(),
            key: parts.headers.get(IDEMPOTENCY_KEY).cloned(),
            trace: text(TRACEPARENT).filter(|trace| trace.parse::<TraceParent>().is_ok()),
            user: user.transpose()?,
            user_header,
        })
    }
}

impl Caller {
    /// The key that makes this call happen once, where the caller gave one.
    pub(super) fn idempotency(&self, body: &[u8]) -> Result<Option<Idempotency>, ApiError> {
        let Some(key) = &self.key else { return Ok(None) };
        // A value that is no text keeps no rule either.
        let key = Idempotency::new(key.to_str().unwrap_or_default(), &[self.path.as_bytes(), b"\n", body]);
        key.map(Some).ok_or_else(|| ApiError::invalid("Idempotency-Key", IDEMPOTENCY_KEY_RULE))
    }

    /// The trace that the caller is in, as a job carries it.
    pub(super) fn trace(&self) -> Option<(String, String)> {
        self.trace.clone().map(|trace| (TRACEPARENT.to_owned(), trace))
    }

    /// Names the user in the headers of a call to make, unless they do: the user that the caller names, or else the one in
    /// its key.
    pub(super) fn add_user(&self, headers: &mut Vec<(String, String)>, key: Option<&str>) {
        let key = key.or_else(|| self.key.as_ref()?.to_str().ok());
        let in_key = || Some(key?.parse::<IdempotencyKey>().ok()?.user().to_owned());
        if let Some(user) = self.user.clone().or_else(in_key)
            && !has(headers, self.user_header.as_str())
        {
            headers.push((self.user_header.to_string(), user));
        }
    }
}

/// Whether a header is among these.
pub(super) fn has(headers: &[(String, String)], name: &str) -> bool {
    headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name))
}
