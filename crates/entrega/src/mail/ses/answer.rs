//! What a call to SES came to: an answer read, or a fault named.
//! Invariant: a mail counts as taken only when SES says so in its own words; a fault that came before the request could
//! leave is told apart from one after which the mail may have been taken.
//! Never: judges; a refusal carries the facts, shortened, and the rules decide.

use entrega_call::{Answer, CallError};
use entrega_core::mail::MailRefusal;
use entrega_core::outcome::FaultKind;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;

const ERROR_TYPE: &str = "x-amzn-errortype";
const CODE_LENGTH_MAX: usize = 64;
const MESSAGE_LENGTH_MAX: usize = 500;

/// What one call came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// SES took the mail over, and named it.
    Taken { message_id: Option<String> },
    /// SES did not take it.
    Refused(MailRefusal),
    /// SES may have taken it; nobody said.
    Lost(MailRefusal),
    /// Nothing left.
    Unreached(MailRefusal),
}

impl Reply {
    pub(super) fn of(called: Result<Answer, CallError>) -> Reply {
        match called {
            Ok(answer) if answer.status.is_success() => taken(&answer),
            Ok(answer) => Reply::Refused(refusal(answer.status, &answer.headers, &answer.body)),
            Err(error) => fault(&error),
        }
    }
}

/// A 2xx in other words than those of SES, from something in between, must not pass for a mail that was sent.
fn taken(answer: &Answer) -> Reply {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Receipt {
        message_id: Option<String>,
    }
    match serde_json::from_slice(&answer.body) {
        Ok(Receipt { message_id }) => Reply::Taken { message_id },
        Err(_) => {
            let message = format!("a {} without the JSON that SES sends", answer.status);
            Reply::Lost(unanswered(FaultKind::Aborted, message))
        }
    }
}

/// The fields in which services of AWS put an error, by their various names.
#[derive(Default, Deserialize)]
struct ErrorBody {
    #[serde(rename = "__type")]
    kind: Option<String>,
    code: Option<String>,
    message: Option<String>,
    #[serde(rename = "Message")]
    message_capital: Option<String>,
}

fn refusal(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> MailRefusal {
    // A body that is no JSON says nothing that could be used: the status and the header stand for it.
    let body: ErrorBody = serde_json::from_slice(body).unwrap_or_default();
    let header = headers.get(ERROR_TYPE).and_then(|value| value.to_str().ok());
    let named = [header, body.kind.as_deref(), body.code.as_deref()];
    let code = named.into_iter().flatten().find_map(short_name);
    let message = body.message.or(body.message_capital).filter(|message| !message.trim().is_empty());
    let reason = || status.canonical_reason().unwrap_or("no reason given").to_owned();
    MailRefusal {
        status: Some(status.as_u16()),
        code: code.map_or_else(|| format!("http_{}", status.as_u16()), str::to_owned),
        enhanced: None,
        message: message.map_or_else(reason, |message| shorten(&message)),
    }
}

/// `MessageRejected` of `com.amazonaws.sesv2#MessageRejected:http://…`.
fn short_name(text: &str) -> Option<&str> {
    let name = text.split(':').next().unwrap_or_default();
    let name = name.rsplit('#').next().unwrap_or_default().trim();
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
    (is_name && (1..=CODE_LENGTH_MAX).contains(&name.len())).then_some(name)
}

fn shorten(message: &str) -> String {
    message.trim().chars().take(MESSAGE_LENGTH_MAX).collect()
}

/// An address that must not be called is no fault of the mail: it counts like one that cannot be reached, so that the
/// mail waits until the operator has mended the name, the endpoint or the key.
fn fault(error: &CallError) -> Reply {
    let reason = error.reason();
    match error {
        CallError::Resolve { .. } => Reply::Unreached(unanswered(FaultKind::Resolve, reason)),
        CallError::Connect { .. } => Reply::Unreached(unanswered(FaultKind::Connect, reason)),
        CallError::Tls { .. } => Reply::Unreached(unanswered(FaultKind::Tls, reason)),
        CallError::Forbidden(_) | CallError::ForbiddenName { .. } => {
            let way_out = "if this is where SES is, name it as `endpoint` in the URL of the transport";
            Reply::Unreached(unanswered(FaultKind::Connect, format!("{reason}; {way_out}")))
        }
        CallError::BadRequest(_) => Reply::Unreached(unanswered(FaultKind::Invalid, reason)),
        CallError::ConnectTimeout { .. } => Reply::Unreached(unanswered(FaultKind::Timeout, reason)),
        CallError::Timeout => Reply::Lost(unanswered(FaultKind::Timeout, reason)),
        CallError::Aborted { .. } => Reply::Lost(unanswered(FaultKind::Aborted, reason)),
    }
}

/// A refusal that is not the words of SES.
pub(super) fn unanswered(kind: FaultKind, message: String) -> MailRefusal {
    MailRefusal { status: None, code: kind.code().to_owned(), enhanced: None, message }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use bytes::Bytes;
    use entrega_call::{AddressFilter, UrlProblem};

    use super::*;

    fn answer(status: u16, error_type: Option<&'static str>, body: &'static str) -> Answer {
        let mut headers = HeaderMap::new();
        if let Some(error_type) = error_type {
            headers.insert(ERROR_TYPE, error_type.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        Answer { status, headers, body: Bytes::from_static(body.as_bytes()), truncated: false, retry_after: None }
    }

    #[test]
    fn an_error_is_named_wherever_it_is_written() {
        let table = [
            (answer(400, Some("MessageRejected"), r#"{"message":"no"}"#), "MessageRejected", "no"),
            (
                answer(400, Some("MessageRejected:http://internal.amazon.com/coral/"), "{}"),
                "MessageRejected",
                "Bad Request",
            ),
            (
                answer(400, None, r#"{"__type":"com.amazonaws.sesv2#BadRequestException"}"#),
                "BadRequestException",
                "Bad Request",
            ),
            (answer(400, None, r#"{"code":"Throttling","Message":" Rate exceeded "}"#), "Throttling", "Rate exceeded"),
            (
                answer(429, Some("TooManyRequestsException"), r#"{"message":null}"#),
                "TooManyRequestsException",
                "Too Many Requests",
            ),
            (answer(503, None, "<html>later</html>"), "http_503", "Service Unavailable"),
            (answer(500, Some("a b"), r#"["x"]"#), "http_500", "Internal Server Error"),
            (answer(403, Some(""), r#"{"__type":"","message":""}"#), "http_403", "Forbidden"),
            (answer(302, None, ""), "http_302", "Found"),
        ];
        for (answer, code, message) in table {
            let about = format!("{answer:?}");
            let status = answer.status.as_u16();
            let Reply::Refused(refusal) = Reply::of(Ok(answer)) else { panic!("{about}") };
            let found = (refusal.status, refusal.code.as_str(), refusal.message.as_str());
            assert_eq!(found, (Some(status), code, message), "{about}");
        }
    }

    #[test]
    fn a_long_story_is_cut_and_a_long_name_is_none() {
        let long = "é".repeat(5000);
        let body = format!(r#"{{"__type":"{}","message":"{long}"}}"#, "X".repeat(65));
        let refusal = refusal(StatusCode::BAD_REQUEST, &HeaderMap::new(), body.as_bytes());
        assert_eq!((refusal.code.as_str(), refusal.message.chars().count()), ("http_400", MESSAGE_LENGTH_MAX));
    }

    #[test]
    fn a_mail_is_taken_only_in_the_words_of_ses() {
        let taken = |body| Reply::of(Ok(answer(200, None, body)));
        assert_eq!(taken(r#"{"MessageId":"01-a"}"#), Reply::Taken { message_id: Some("01-a".into()) });
        assert_eq!(taken("{}"), Reply::Taken { message_id: None });
        for foreign in ["", "<html>Welcome to our Wi-Fi</html>", "[]", r#"{"MessageId":7}"#] {
            let Reply::Lost(refusal) = taken(foreign) else { panic!("{foreign}") };
            assert_eq!((refusal.status, refusal.code.as_str()), (None, "aborted"), "{foreign}");
        }
    }

    #[test]
    fn a_fault_says_whether_the_mail_may_have_left() {
        let source = || Arc::new(io::Error::other("nobody home"));
        let forbidden = AddressFilter::default().check_ip([10, 0, 0, 1].into()).unwrap_err();
        let table = [
            (CallError::Resolve { host: "email".into(), source: source() }, "resolve", true),
            (CallError::Connect { address: ([192, 0, 2, 1], 443).into(), source: source() }, "connect", true),
            (CallError::Tls { host: "email".into(), source: source() }, "tls", true),
            (CallError::Forbidden(forbidden), "connect", true),
            (CallError::from(UrlProblem::NoHost), "invalid", true),
            (CallError::Timeout, "timeout", false),
            (CallError::Aborted { source: source() }, "aborted", false),
        ];
        for (error, code, is_unreached) in table {
            let (refusal, found) = match Reply::of(Err(error.clone())) {
                Reply::Unreached(refusal) => (refusal, true),
                Reply::Lost(refusal) => (refusal, false),
                reply => panic!("{reply:?}"),
            };
            assert_eq!((refusal.code.as_str(), refusal.status, found), (code, None, is_unreached), "{error}");
            assert!(refusal.message.contains(&error.reason()), "{refusal:?}");
        }
    }
}
