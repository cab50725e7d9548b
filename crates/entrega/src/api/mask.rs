//! Secrets in what a job carries, hidden from whoever looks.
//! Invariant: an answer of the API shows no value of a header that proves who somebody is.
//! Never: touches what is stored; a replay sends the values as they were given.

use entrega_core::dead_letter::DeadLetter;
use entrega_core::job::Payload;

const MASK: &str = "***";
const SECRET_NAMES: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];
const SECRET_WORDS: [&str; 2] = ["token", "secret"];

/// The entry as it may be shown.
pub(super) fn masked(mut dead: DeadLetter) -> DeadLetter {
    let headers = match &mut dead.original_data.payload {
        Payload::Http(request) => &mut request.headers[..],
        Payload::Connector(call) => &mut call.headers[..],
        Payload::Email(_) | Payload::Event(_) | Payload::Webhook(_) | Payload::Proxy(_) | Payload::Opaque(_) => &mut [],
    };
    let secret = headers.iter_mut().filter(|(name, _)| is_secret(name));
    secret.for_each(|(_, value)| MASK.clone_into(value));
    dead
}

fn is_secret(header: &str) -> bool {
    let name = header.to_ascii_lowercase();
    SECRET_NAMES.contains(&name.as_str()) || SECRET_WORDS.iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_prove_who_somebody_is_are_secret() {
        for name in ["authorization", "PROXY-Authorization", "Cookie", "X-Api-Key", "x-csrf-Token", "My-SECRET-1"] {
            assert!(is_secret(name), "{name}");
        }
        for name in ["content-type", "x-event-id", "x-signature", "www-authenticate", "idempotency-key", ""] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
