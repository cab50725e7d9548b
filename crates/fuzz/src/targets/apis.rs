//! Third-party APIs: where a request below a base URL leads, what answers say of limits, what SES reports.

use entrega::mail::sns::{SesEvent, SesNotification};
use entrega_call::{BaseUrl, RateLimit};
use entrega_core::time::Time;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::texts::texts;
use crate::{Target, result};

const NOW: Time = Time::from_millis(1_769_851_800_000);

/// What callers ask of a connector: a path, perhaps with a query.
pub fn relative_url() -> Target {
    let base: BaseUrl = "https://api.example.com/v1".parse().expect("a base URL");
    texts("relative-url", move |text| match base.join(text) {
        Ok(url) => {
            assert_eq!(
                (url.scheme_str(), url.host(), url.port()),
                (Some("https"), Some("api.example.com"), None),
                "{url}"
            );
            assert!(url.path().starts_with("/v1/"), "{text:?} leads to {url}");
            // However often servers on the way decode it.
            let mut seen = url.path().to_owned();
            for _ in 0..6 {
                assert!(!seen.split(['/', '\\']).any(|part| part == ".." || part == "."), "{text:?} leads to {url}");
                assert!(!seen.chars().any(|c| c.is_ascii_control()), "{text:?} leads to {url}");
                seen = once_decoded(&seen);
            }
            result(("below", url.query().is_some(), url.path().len().min(8)))
        }
        Err(problem) => result(std::mem::discriminant(&problem)),
    })
}

/// Written for this check alone, so that it cannot be wrong in the same way.
fn once_decoded(text: &str) -> String {
    let mut decoded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        decoded += before;
        let byte = after.get(..2).filter(|pair| pair.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match byte.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            Some(byte) => decoded.push(char::from(byte)),
            None => decoded.push('%'),
        }
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    decoded + rest
}

/// `RateLimit` and its kin, one `name: value` a line.
pub fn rate_limit() -> Target {
    texts("rate-limit", |text| {
        let mut headers = HeaderMap::new();
        for (name, value) in text.split('\n').filter_map(|line| line.split_once(": ")).take(64) {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
                headers.append(name, value);
            }
        }
        let said = RateLimit::from_headers(&headers, NOW);
        if let Some(quota) = said.and_then(|said| said.quota) {
            assert!(!quota.window.is_zero(), "{text:?} has a window without length");
        }
        result(said.map(|said| (said.remaining.map(|left| left.min(2)), said.reset.is_some(), said.quota.is_some())))
    })
}

/// What is inside a notice that SNS has signed: its text is SES's, and partly whoever's answered the mail.
pub fn ses_report() -> Target {
    texts("ses-report", |text| match SesNotification::read("m-1", text) {
        Ok(Some(report)) => {
            let people = match &report.kind {
                SesEvent::Bounce { recipients, .. } | SesEvent::Complaint { recipients } => recipients.len(),
                SesEvent::Delivery { .. } | SesEvent::Other(_) => 0,
            };
            result((std::mem::discriminant(&report.kind), people.min(3), report.mail.is_some()))
        }
        Ok(None) => result("not from SES"),
        Err(error) => result((error.is_data(), error.is_syntax())),
    })
}
