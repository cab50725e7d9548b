//! Callers: what reaches the API, as bodies, queries and paths, and as raw bytes.
//! Invariant: whatever is sent, the answer is no mistake of the server's own, and a refusal is a problem document.

use serde_json::Value;

use crate::world::World;
use crate::{Target, result};

/// Where the rest of the input goes, by its first letter: `a`, `b`, …
const CALLS: [(&str, &str, Place); 19] = [
    ("POST", "/v1/jobs", Place::Body),
    ("POST", "/v1/email/send", Place::Body),
    ("PUT", "/v1/tenants/ours/endpoints/main", Place::Body),
    ("POST", "/v1/keys", Place::Body),
    ("POST", "/v1/suppressions", Place::Body),
    ("POST", "/v1/dlq/replay", Place::Body),
    ("POST", "/v1/ses/notifications", Place::Body),
    ("PUT", "/v1/tenants/ours", Place::Body),
    ("GET", "/v1/jobs?", Place::Address),
    ("GET", "/v1/dlq?", Place::Address),
    ("GET", "/v1/emails?", Place::Address),
    ("GET", "/v1/jobs/", Place::Address),
    ("POST", "/v1/jobs", Place::Idempotency),
    ("PUT", "/v1/connectors/api", Place::Body),
    ("POST", "/v1/connectors/erp/requests", Place::LaterBody),
    ("POST", "/v1/proxy/score", Place::Body),
    ("GET", "/proxy/score?", Place::Address),
    ("GET", "/v1/events?", Place::Address),
    ("POST", "/v1/tenants/ours/endpoints/main/discard", Place::Body),
];

#[derive(Clone, Copy)]
enum Place {
    Body,
    /// Of a call that is made later, here never.
    LaterBody,
    Address,
    Idempotency,
}

/// Calls with the right key and anything else.
pub fn api_call() -> Target {
    let world = World::new();
    let attempt = move |input: &[u8]| {
        let (first, rest) = input.split_first().map_or((b'a', input), |(first, rest)| (*first, rest));
        let (method, path, place) = CALLS[usize::from(first.wrapping_sub(b'a')) % CALLS.len()];
        let (status, answer) = match place {
            Place::Body => world.call(method, path, b"", rest),
            Place::LaterBody => world.call(method, path, b"prefer: respond-async\r\n", rest),
            Place::Address => world.call(method, &format!("{path}{}", encoded(rest)), b"", b""),
            Place::Idempotency => {
                let more = [b"idempotency-key: ", one_line(rest).as_slice(), b"\r\n"].concat();
                world.call(method, path, &more, br#"{"request":{"url":"https://example.com"}}"#)
            }
        };
        judge(method, path, status, &answer)
    };
    Target { name: "api-call", seeds: Vec::new(), attempt: Box::new(attempt) }
}

fn judge(method: &str, path: &str, status: u16, answer: &[u8]) -> u64 {
    let shown = String::from_utf8_lossy(answer);
    // A full lane is refused with 503, a header that is none before there is a caller.
    assert!(status != 0 && (status < 500 || status == 503), "{method} {path}: {status} {shown}");
    let Ok(json) = serde_json::from_slice::<Value>(answer) else {
        assert!(answer.is_empty(), "{method} {path}: {status} is not JSON: {shown}");
        return result((method, path, status));
    };
    let problem = &json["errors"][0]["field"];
    if status >= 400 {
        assert_eq!(json["status"], status, "{method} {path}: {shown}");
        assert!(json["detail"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}: {shown}");
    }
    // The first part of a path is enough: the rest may be a key that was made up.
    let field = problem.as_str().and_then(|field| field.split(['.', '[']).next()).filter(|field| field.len() < 20);
    result((method, path, status, field))
}

/// Raw bytes, where a request should be.
pub fn http_request() -> Target {
    let world = World::new();
    let attempt = move |input: &[u8]| {
        let answer = world.say(input, true);
        let text = String::from_utf8_lossy(&answer);
        let statuses: Vec<&str> = text.split("HTTP/1.1 ").skip(1).filter_map(|answer| answer.get(..3)).collect();
        assert!(!statuses.contains(&"500"), "{text}");
        result(statuses.iter().take(3).collect::<Vec<_>>())
    };
    Target { name: "http-request", seeds: Vec::new(), attempt: Box::new(attempt) }
}

/// So that it is one address, whatever it holds; what is encoded already stays so.
fn encoded(bytes: &[u8]) -> String {
    let keep = |byte: &u8| byte.is_ascii_alphanumeric() || b"=&%._-:+".contains(byte);
    bytes.iter().map(|byte| if keep(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn one_line(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().filter(|byte| !b"\r\n\0".contains(byte)).collect()
}
