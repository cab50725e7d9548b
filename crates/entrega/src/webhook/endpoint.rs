//! Endpoints: what may be said of one, whoever says it.
//! Invariant: the configuration and the API keep the same rules; an endpoint that passes can be stored, shown and called.
//! Never: stores a secret that is not sealed.

use std::sync::Arc;

use entrega_call::{AddressFilter, UrlProblem};
use entrega_core::policy::LanePolicy;
use entrega_core::throttle::Rate;
use entrega_core::webhook::{SECRET_CHARS_MAX, SECRET_CHARS_MIN, WebhookSecret};
use http::Uri;

use crate::chance::secret_bytes;

/// Endpoints of one tenant.
pub const ENDPOINTS_MAX: usize = 100;
/// Characters of an endpoint's name.
pub const NAME_LENGTH_MAX: usize = 32;
/// Event types that one endpoint may name.
pub const EVENT_TYPES_MAX: usize = 20;
/// Calls that the throttle of an endpoint counts at most: each is remembered for as long as it counts.
pub const THROTTLE_REQUESTS_MAX: u32 = 10_000;
/// The longest interval in which they are counted: a day.
pub const THROTTLE_PER_MS_MAX: u64 = 86_400_000;
/// Characters of an event type.
pub const EVENT_TYPE_LENGTH_MAX: usize = 64;

/// What is wrong with an endpoint; reads well after "must be".
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BadEndpoint {
    /// A name that cannot stand in a path.
    #[error("1 to {NAME_LENGTH_MAX} characters of a-z, 0-9, _ and -")]
    Name,
    /// A secret that is easily guessed, or unfit for a file or a shell.
    #[error("{SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} visible ASCII characters without spaces")]
    Secret,
    /// No such event can be.
    #[error("1 to {EVENT_TYPE_LENGTH_MAX} characters of a-z, . and _, such as email.sent")]
    EventType,
    /// A list that is longer than what there is.
    #[error("a list of at most {EVENT_TYPES_MAX} event types; leave it out or empty for all")]
    EventTypes,
    /// A throttle that would hold everything, or remember too much.
    #[error("1 to {THROTTLE_REQUESTS_MAX} calls in 1 to {THROTTLE_PER_MS_MAX} ms")]
    Throttle,
    /// One queue for all cannot hold back one endpoint.
    #[error(
        "left out, because turns are off in the lane that calls endpoints; set fairness.enable_round_robin = true there"
    )]
    ThrottleNeedsTurns,
    /// Not a URL at all.
    #[error("an absolute URL, such as https://example.com/hooks")]
    NoUrl,
    /// A URL that would not be called.
    #[error("a URL that may be called: {0}")]
    Url(#[from] UrlProblem),
}

/// Refuses a name that breaks the rules.
pub fn check_name(name: &str) -> Result<(), BadEndpoint> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-');
    fits((1..=NAME_LENGTH_MAX).contains(&name.len()) && name.chars().all(is_allowed), BadEndpoint::Name)
}

/// Refuses a secret that somebody brought along and should not use.
pub fn check_secret(secret: &str) -> Result<(), BadEndpoint> {
    fits(secret.parse::<WebhookSecret>().is_ok(), BadEndpoint::Secret)
}

/// Refuses what cannot be the type of an event.
pub fn check_event_type(event_type: &str) -> Result<(), BadEndpoint> {
    let is_allowed = |c: char| c.is_ascii_lowercase() || matches!(c, '.' | '_');
    let length_fits = (1..=EVENT_TYPE_LENGTH_MAX).contains(&event_type.len());
    fits(length_fits && event_type.chars().all(is_allowed), BadEndpoint::EventType)
}

/// Refuses a throttle that cannot be kept, by itself or in one of these lanes.
pub fn check_throttle<'a>(rate: Rate, lanes: impl IntoIterator<Item = &'a Arc<LanePolicy>>) -> Result<(), BadEndpoint> {
    let has_turns = |policy: &Arc<LanePolicy>| policy.fairness.enable_round_robin || !policy.calls_endpoints;
    let is_in_range =
        (1..=THROTTLE_REQUESTS_MAX).contains(&rate.max_requests) && (1..=THROTTLE_PER_MS_MAX).contains(&rate.per_ms);
    fits(is_in_range, BadEndpoint::Throttle)?;
    fits(lanes.into_iter().all(has_turns), BadEndpoint::ThrottleNeedsTurns)
}

/// Refuses a URL that the outbound filter would not let through; its name is resolved and filtered when it is called.
pub fn check_url(filter: &AddressFilter, url: &str) -> Result<(), BadEndpoint> {
    let url: Uri = url.parse().map_err(|_| BadEndpoint::NoUrl)?;
    Ok(filter.check_url(&url)?)
}

fn fits(it_does: bool, otherwise: BadEndpoint) -> Result<(), BadEndpoint> {
    if it_does { Ok(()) } else { Err(otherwise) }
}

/// A new secret: `whsec_` and 32 letters and digits that nobody can guess.
pub fn new_secret() -> String {
    WebhookSecret::from_random(secret_bytes()).expose().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn names_secrets_and_event_types_keep_their_rules() {
        for (name, is_good) in
            [("default", true), ("a-1_b", true), ("", false), ("A", false), ("a.b", false), ("a/b", false)]
        {
            assert_eq!(check_name(name).is_ok(), is_good, "{name}");
        }
        assert!(check_name(&"x".repeat(32)).is_ok() && check_name(&"x".repeat(33)).is_err());
        for (secret, is_good) in
            [(&*"x".repeat(15), false), (&"x".repeat(16), true), (&"x".repeat(128), true), (&"x".repeat(129), false)]
        {
            assert_eq!(check_secret(secret).is_ok(), is_good, "{secret}");
        }
        assert!(check_secret("sixteen with room").is_err() && check_secret("não-é-um-segredo!").is_err());
        for (event_type, is_good) in [("email.retry_scheduled", true), ("", false), ("Email", false), ("a b", false)] {
            assert_eq!(check_event_type(event_type).is_ok(), is_good, "{event_type}");
        }
        assert!(check_event_type(&"a".repeat(64)).is_ok() && check_event_type(&"a".repeat(65)).is_err());
    }

    #[test]
    fn a_throttle_is_bounded_and_needs_turns() {
        let lanes = [Arc::new(LanePolicy::http()), Arc::new(LanePolicy::webhook())];
        for (max_requests, per_ms, is_good) in [
            (1, 1, true),
            (10_000, 86_400_000, true),
            (0, 1, false),
            (10_001, 1, false),
            (1, 0, false),
            (1, 86_400_001, false),
        ] {
            let checked = check_throttle(Rate { max_requests, per_ms }, &lanes);
            assert_eq!(checked.is_ok(), is_good, "{max_requests} in {per_ms} ms");
        }
        let mut without_turns = LanePolicy::webhook();
        without_turns.fairness.enable_round_robin = false;
        let lanes = [Arc::new(without_turns)];
        let checked = check_throttle(Rate { max_requests: 1, per_ms: 1 }, &lanes);
        assert_eq!(checked, Err(BadEndpoint::ThrottleNeedsTurns));
    }

    #[test]
    fn a_url_is_https_unless_more_is_open() {
        let open = AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse().unwrap()] };
        let closed = AddressFilter::default();
        for (url, when_closed, when_open) in [
            ("https://m2.example.com/hooks", true, true),
            ("http://m2.example.com/hooks", false, true),
            ("https://127.0.0.1:9000/hooks", false, true),
            ("https://user:pw@example.com/", false, false),
            ("ftp://example.com/", false, false),
            ("/hooks", false, false),
            ("a b", false, false),
        ] {
            assert_eq!(check_url(&closed, url).is_ok(), when_closed, "{url}");
            assert_eq!(check_url(&open, url).is_ok(), when_open, "{url}");
        }
    }

    #[test]
    fn a_new_secret_is_a_prefix_and_32_letters_and_digits_each_as_likely() {
        let mut counts: BTreeMap<char, u32> = BTreeMap::new();
        for _ in 0..2000 {
            let secret = new_secret();
            let chars = secret.strip_prefix("whsec_").unwrap();
            assert_eq!((chars.len(), check_secret(&secret)), (32, Ok(())), "{secret}");
            chars.chars().for_each(|c| *counts.entry(c).or_default() += 1);
        }
        assert_eq!(counts.len(), 62);
        // About 1032 each; eight standard deviations either way. A byte modulo 62 would give the first eight 1250.
        assert!(counts.values().all(|count| (780..1290).contains(count)), "{counts:?}");
        let (first, rest): (Vec<_>, Vec<_>) = counts.iter().partition(|(c, _)| ('A'..='H').contains(*c));
        let mean =
            |part: &[(&char, &u32)]| part.iter().map(|(_, count)| f64::from(**count)).sum::<f64>() / part.len() as f64;
        assert!((mean(&first) / mean(&rest) - 1.0).abs() < 0.1, "{} {}", mean(&first), mean(&rest));
    }
}
