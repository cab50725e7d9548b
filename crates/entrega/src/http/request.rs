//! An HTTP request that a caller wants made, and the rules for it.
//! Invariant: a request that passes can be sent as it stands; names are resolved and filtered again when it is.

use bytes::Bytes;
use entrega_call::{AddressFilter, check_headers};
use entrega_core::body::Body;
use entrega_core::payload::Content;
use http::{Method, Uri};
use serde::{Deserialize, Serialize};

use crate::content::JobContent;
use crate::refusal::Refusal;

/// An HTTP request to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HttpRequest {
    /// `GET`, `POST`, …
    pub method: String,
    /// Absolute, http or https.
    pub url: String,
    /// In the order given.
    pub headers: Vec<(String, String)>,
    /// Sent byte for byte.
    pub body: Body,
}

impl HttpRequest {
    /// A POST of JSON.
    pub fn post(url: &str, json: impl Into<Bytes>) -> HttpRequest {
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        HttpRequest { method: "POST".into(), url: url.to_owned(), headers, body: Body(json.into()) }
    }
}

/// The same, as it lies in a job's record.
#[derive(Deserialize)]
pub(super) struct HttpRequestView<'a> {
    pub(super) method: &'a str,
    pub(super) url: &'a str,
    #[serde(borrow)]
    pub(super) headers: Vec<(&'a str, &'a str)>,
    pub(super) body: &'a [u8],
}

impl Content for HttpRequest {
    const KIND: &'static str = "http";
}

impl JobContent for HttpRequest {
    fn destination(&self) -> String {
        format!("{} {}", self.method, self.url)
    }

    fn check(&self, filter: &AddressFilter) -> Result<(), Refusal> {
        check_request(filter, self)
    }
}

/// The largest body of a request.
pub const BODY_BYTES_MAX: usize = 1 << 20;

const METHODS: [Method; 6] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

fn check_request(filter: &AddressFilter, request: &HttpRequest) -> Result<(), Refusal> {
    if !METHODS.iter().any(|method| method.as_str() == request.method) {
        let known = METHODS.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
        let given: String = request.method.chars().take(32).collect();
        return Err(Refusal::invalid("request.method", format!("'{given}' is not one of {known}")));
    }
    let url: Uri = request.url.parse().map_err(|error: http::uri::InvalidUri| {
        let shown: String = request.url.chars().take(120).collect();
        Refusal::invalid(
            "request.url",
            format!("'{shown}' is not a URL ({error}); give an absolute one, such as https://example.com/path"),
        )
    })?;
    filter.check_url(&url).map_err(|problem| Refusal::invalid("request.url", problem.to_string()))?;
    let headers = request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    check_headers(headers).map_err(|problem| Refusal::invalid("request.headers", problem.to_string()))?;
    match request.body.0.len() > BODY_BYTES_MAX {
        true => Err(Refusal::invalid(
            "request.body",
            format!("{} bytes; at most {BODY_BYTES_MAX} (1 MiB)", request.body.0.len()),
        )),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use entrega_core::payload::Payload;

    use super::*;

    #[test]
    fn what_lies_in_a_record_is_seen_as_it_was_put_in() {
        let put = HttpRequest::post("https://example.com/orders", r#"{"order":17}"#);
        let payload = Payload::of(&put);
        let seen: HttpRequestView<'_> = payload.view(HttpRequest::KIND).unwrap();
        let headers: Vec<_> = seen.headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let body = Body(payload.bytes().slice_ref(seen.body));
        assert_eq!(HttpRequest { method: seen.method.into(), url: seen.url.into(), headers, body }, put);
    }
}
