//! The call: one `SendEmail` of SES v2, written out and signed (Signature Version 4).
//! Invariant: the recipients are those of the call, whatever the message's own header says; nothing but the call decides
//! who gets the mail.
//! Never: shows a secret; the signature and the session token are marked as not to be logged.

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4::SigningParams;
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderStringWriter;
use bytes::Bytes;
use entrega_core::time::Time;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request};
use serde::Serialize;
use thiserror::Error;

use super::config::{SesConfig, SesCredentials};
use crate::mail::transport::Outgoing;

/// What signatures call the service, for both versions of its API.
const SIGNING_NAME: &str = "ses";
const PATH: &str = "/v2/email/outbound-emails";
const TAG_LENGTH_MAX: usize = 256;
static JSON: HeaderValue = HeaderValue::from_static("application/json");
static OUR_NAME: HeaderValue = HeaderValue::from_static(concat!("Entrega/", env!("CARGO_PKG_VERSION")));

/// Why a call could not be written out.
#[derive(Debug, Error)]
pub(super) enum Unsendable {
    /// The endpoint, or what a signature brings, does not fit into a request.
    #[error("the request cannot be built")]
    Request(#[from] http::Error),
    /// The mail does not fit into JSON.
    #[error("the mail cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// The signer wants what it was not given.
    #[error("the request cannot be signed")]
    Parameters(#[from] aws_sigv4::sign::v4::signing_params::BuildError),
    /// The signer refused.
    #[error("the request cannot be signed")]
    Signature(#[from] aws_sigv4::http_request::SigningError),
}

/// Writes out calls to one place, in one name.
pub(super) struct Caller {
    url: String,
    region: String,
    configuration_set: Option<String>,
    credentials: Credentials,
}

impl Caller {
    pub(super) fn new(config: SesConfig) -> Caller {
        let url = format!("{}{PATH}", config.origin());
        let SesConfig { region, configuration_set, credentials, .. } = config;
        let SesCredentials { access_key_id, secret_access_key, session_token } = credentials;
        let session_token = session_token.map(|token| token.reveal().to_owned());
        let credentials = Credentials::new(access_key_id, secret_access_key.reveal(), session_token, None, "entrega");
        Caller { url, region, configuration_set, credentials }
    }

    /// The call that hands `raw`, made of this mail by [`raw_message`], to some of its recipients.
    pub(super) fn request(
        &self,
        mail: &Outgoing<'_>,
        raw: &str,
        recipients: &[&str],
        now: Time,
    ) -> Result<Request<Bytes>, Unsendable> {
        let id = mail.id.to_string();
        let call = SendEmail {
            destination: Destination { to_addresses: recipients },
            content: Content { raw: Raw { data: raw } },
            configuration_set_name: self.configuration_set.as_deref(),
            email_tags: tags(&id, mail.tenant.as_str()),
        };
        let body = Bytes::from(serde_json::to_vec(&call)?);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&self.url)
            .header(CONTENT_TYPE, &JSON)
            .header(USER_AGENT, &OUR_NAME)
            .body(body)?;
        self.sign(&mut request, now)?;
        Ok(request)
    }

    fn sign(&self, request: &mut Request<Bytes>, now: Time) -> Result<(), Unsendable> {
        let identity = self.credentials.clone().into();
        let params = SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(SIGNING_NAME)
            .time(SystemTime::UNIX_EPOCH + Duration::from_micros(now.as_micros()))
            .settings(SigningSettings::default())
            .build()?
            .into();
        let headers = [(CONTENT_TYPE.as_str(), "application/json")];
        let body = SignableBody::Bytes(request.body());
        let signable = SignableRequest::new(Method::POST.as_str(), &self.url, headers.into_iter(), body)?;
        let (instructions, _signature) = sign(signable, &params)?.into_parts();
        let (headers, _no_query) = instructions.into_parts();
        for header in headers {
            let mut value = HeaderValue::from_str(header.value()).map_err(http::Error::from)?;
            value.set_sensitive(header.sensitive());
            request.headers_mut().insert(HeaderName::from_static(header.name()), value);
        }
        Ok(())
    }
}

/// The message as SES takes it: with a line at its top by which notifications that quote the header can be matched, and
/// in base64.
pub(super) fn raw_message(mail: &Outgoing<'_>) -> String {
    let line = format!("X-Entrega-Mail: {} {}\r\n", mail.id, mail.tenant);
    let room = (line.len() + mail.message.len()).div_ceil(3) * 4;
    let mut raw = EncoderStringWriter::from_consumer(String::with_capacity(room), &STANDARD);
    for part in [line.as_bytes(), &mail.message] {
        raw.write_all(part).expect("writing to a String never fails");
    }
    raw.into_inner()
}

/// SES refuses a mail for a tag that it cannot keep, so such a one is left out: the line at the top of the message says
/// the same.
fn tags<'a>(id: &'a str, tenant: &'a str) -> Vec<Tag<'a>> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    let fits = |tag: &Tag<'_>| tag.value.len() <= TAG_LENGTH_MAX && tag.value.bytes().all(is_allowed);
    let both = [Tag { name: "outboxId", value: id }, Tag { name: "tenant", value: tenant }];
    both.into_iter().filter(fits).collect()
}

/// The sender is not named here: SES would put that in place of the message's `From` and lose the name beside the
/// address.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct SendEmail<'a> {
    destination: Destination<'a>,
    content: Content<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration_set_name: Option<&'a str>,
    email_tags: Vec<Tag<'a>>,
}

/// With a raw message it says who gets the mail, not what the message's header says, so all can stand in one list.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Destination<'a> {
    to_addresses: &'a [&'a str],
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Content<'a> {
    raw: Raw<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Raw<'a> {
    data: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Tag<'a> {
    name: &'a str,
    value: &'a str,
}
