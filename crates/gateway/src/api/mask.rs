//! Dead letters as they may be shown: what the job carries can be read, and its secrets are hidden.
//! Invariant: an answer of the API shows no value of a header that proves who somebody is.
//! Never: touches what is stored; a replay sends the values as they were given.

use entrega::PRODUCTS;
use entrega::store::readable;
use entrega_core::dead_letter::DeadLetter;
use serde_json::Value;

const MASK: &str = "***";
/// What a header's name holds that proves who somebody is.
const SECRET_WORDS: [&str; 10] =
    ["auth", "cookie", "credential", "jwt", "key", "pass", "secret", "session", "ticket", "token"];
/// Names that hold such a word and prove nothing.
const OPEN_NAMES: [&str; 3] = ["idempotency-key", "www-authenticate", "proxy-authenticate"];

/// The entry as it may be shown.
pub(super) fn shown(dead: &DeadLetter) -> Value {
    let mut entry = readable(dead, |payload| PRODUCTS.show(payload));
    let payload = entry["originalData"]["payload"].as_object_mut();
    for carried in payload.into_iter().flat_map(|payload| payload.values_mut()) {
        mask_headers(carried);
    }
    entry
}

/// `[["authorization", "***"], …]`.
fn mask_headers(carried: &mut Value) {
    let headers = carried.get_mut("headers").and_then(Value::as_array_mut);
    for header in headers.into_iter().flatten() {
        if header[0].as_str().is_some_and(is_secret) {
            header[1] = MASK.into();
        }
    }
}

fn is_secret(header: &str) -> bool {
    let name = header.to_ascii_lowercase();
    !OPEN_NAMES.contains(&name.as_str()) && SECRET_WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_prove_who_somebody_is_are_secret() {
        for name in [
            "authorization",
            "PROXY-Authorization",
            "Cookie",
            "X-Api-Key",
            "x-csrf-Token",
            "My-SECRET-1",
            "x-auth",
            "api-key",
            "apikey",
            "Ocp-Apim-Subscription-Key",
            "x-functions-key",
            "x-password",
            "X-Session-Id",
            "x-amz-credential",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in ["content-type", "x-event-id", "x-signature", "www-authenticate", "idempotency-key", ""] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
