//! Texts: what callers and operators write by hand.

use std::net::IpAddr;

use entrega::mail::smtp::SmtpConfig;
use entrega_call::{
    AddressFilter, HEADERS_BYTES_MAX, HEADERS_MAX, RETRY_AFTER_MAX, TraceParent, URL_BYTES_MAX, check_headers,
    parse_retry_after,
};
use entrega_core::cpf::Cpf;
use entrega_core::id::JobId;
use entrega_core::idempotency::IdempotencyKey;
use entrega_core::mask::{mask_address, mask_text};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::sender::SenderRule;
use entrega_core::time::{Time, format_duration, parse_duration};
use entrega_core::webhook::{StandardHeaders, WebhookSecret, sign, sign_standard, verify, verify_standard};
use entrega_gateway::config::{Config, ConfigFile, ConfigSources};
use http::Uri;

use crate::{Target, result};

/// A target over texts; what is none is read with its bad bytes replaced.
pub(super) fn texts(name: &'static str, mut attempt: impl FnMut(&str) -> u64 + 'static) -> Target {
    let attempt = move |input: &[u8]| attempt(&String::from_utf8_lossy(input));
    Target { name, seeds: Vec::new(), attempt: Box::new(attempt) }
}

/// URLs that may be called.
pub fn url() -> Target {
    let strict = AddressFilter::default();
    texts("url", move |text| {
        let Ok(uri) = text.parse::<Uri>() else { return result("no URI") };
        match strict.check_url(&uri) {
            Ok(()) => {
                assert_eq!(uri.scheme_str(), Some("https"), "{text}");
                assert!(
                    uri.to_string().len() <= URL_BYTES_MAX && !uri.authority().unwrap().as_str().contains('@'),
                    "{text}"
                );
                let host = uri.host().unwrap().trim_start_matches('[').trim_end_matches(']');
                if let Ok(address) = host.parse::<IpAddr>() {
                    assert!(strict.check_ip(address).is_ok(), "{text} leads to {address}");
                }
                result("allowed")
            }
            Err(problem) => {
                assert!(!problem.to_string().is_empty());
                result(std::mem::discriminant(&problem))
            }
        }
    })
}

/// Headers that a caller sets, one `name: value` a line.
pub fn headers() -> Target {
    texts("headers", |text| {
        let pairs: Vec<(&str, &str)> = text.split('\n').filter_map(|line| line.split_once(": ")).collect();
        match check_headers(pairs.iter().copied()) {
            Ok(headers) => {
                let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
                assert!(headers.len() <= HEADERS_MAX && bytes <= HEADERS_BYTES_MAX, "{bytes} bytes");
                assert!(!headers.contains_key("host") && !headers.contains_key("transfer-encoding"));
                for value in headers.values() {
                    assert!(!value.as_bytes().iter().any(|byte| [b'\r', b'\n', 0].contains(byte)), "{value:?}");
                }
                result(headers.len().min(3))
            }
            Err(problem) => result((1, std::mem::discriminant(&problem))),
        }
    })
}

/// `Retry-After`, at any time.
pub fn retry_after() -> Target {
    texts("retry-after", |text| {
        let mut kinds = Vec::new();
        for now_ms in [0, 1_700_000_000_000, 253_402_300_799_999, u64::MAX] {
            let wait = parse_retry_after(text, now_ms);
            assert!(wait.is_none_or(|wait| wait <= RETRY_AFTER_MAX), "{text:?} at {now_ms}: {wait:?}");
            kinds.push(wait.map(|wait| (wait.is_zero(), wait == RETRY_AFTER_MAX)));
        }
        result(kinds)
    })
}

/// Small words: lengths of time, moments, ids, names, CPFs, traces, keys, and what is hidden of a text.
pub fn words() -> Target {
    texts("words", |text| {
        let length = parse_duration(text).ok();
        if let Some(length) = length {
            assert_eq!(parse_duration(&format_duration(length)).ok(), Some(length), "{text:?}");
        }
        let moment = text.parse::<Time>().ok();
        if let Some(moment) = moment {
            let shown = moment.to_string();
            assert_eq!(shown.parse::<Time>().ok().map(Time::as_millis), Some(moment.as_millis()), "{text:?}: {shown}");
        }
        let id = text.parse::<JobId>().ok();
        if let Some(id) = id {
            assert_eq!(id.to_string().parse::<JobId>().ok(), Some(id), "{text:?}");
        }
        let lane = LaneName::new(text).ok().map(|lane| assert_eq!(lane.as_str(), text));
        let tenant = TenantName::new(text).ok().map(|tenant| assert!(tenant.is_of(&tenant.company()), "{text:?}"));
        if let Ok(sender) = text.parse::<SenderRule>() {
            assert_eq!(sender.to_string().parse(), Ok(sender), "{text:?}");
        }
        let cpf = Cpf::parse(text).ok();
        if let Some(cpf) = &cpf {
            assert!(Cpf::parse(&cpf.digits()).is_ok_and(|again| again.digits() == cpf.digits()), "{text:?}");
        }
        let trace = text.parse::<TraceParent>().ok();
        if let Some(trace) = trace {
            assert_eq!(trace.to_string().parse(), Ok(trace), "{text:?}");
        }
        let key = text.parse::<IdempotencyKey>().ok();
        if let Some(key) = &key {
            assert_eq!(key.to_string(), text);
        }
        let hidden = mask_text(text);
        if text.contains('@') && text.len() > 8 {
            assert!(mask_address(text) != text, "{text:?} is not hidden");
        }
        let kinds = [length.is_some(), moment.is_some(), id.is_some(), lane.is_some(), tenant.is_some()];
        let kinds = (kinds, cpf.is_some(), trace.is_some(), key.is_some());
        result((kinds, hidden == text))
    })
}

/// Secrets of webhooks, and headers that claim to be signatures: a secret, a line break, a header.
pub fn webhook() -> Target {
    let known: WebhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse().expect("a secret");
    texts("webhook", move |text| {
        let (secret, header) = text.split_once('\n').unwrap_or((text, text));
        let body = b"{}";
        let secrets = match secret.parse::<WebhookSecret>() {
            Ok(secret) => vec![secret, known.clone()],
            Err(_) => vec![known.clone()],
        };
        let plain = verify(&secrets, body, Some(header));
        if plain.is_ok() {
            assert!(secrets.iter().any(|secret| sign(secret, body).eq_ignore_ascii_case(header.trim())), "{header:?}");
        }
        let mut parts = header.splitn(3, '\n');
        let standard =
            StandardHeaders { id: parts.next(), timestamp: parts.next(), signature: parts.next().or(Some(header)) };
        let judged = verify_standard(&secrets, &standard, body, None);
        if judged.is_ok() {
            let id = standard.id.unwrap_or_default().trim();
            let seconds = standard.timestamp.unwrap_or_default().trim().parse().expect("a verified time is a number");
            let signed = |secret| standard.signature.unwrap().contains(&sign_standard(secret, id, seconds, body));
            assert!(secrets.iter().any(signed), "{header:?}");
        }
        result((secrets.len(), format!("{plain:?}"), format!("{judged:?}")))
    })
}

/// `SMTP_URL`.
pub fn smtp_url() -> Target {
    texts("smtp-url", |text| match SmtpConfig::from_url(text) {
        Ok(config) => result(format!("{:?}", config.tls)),
        Err(problem) => result(std::mem::discriminant(&problem)),
    })
}

/// `entrega.toml`.
pub fn config() -> Target {
    let folder = tempfile::tempdir().expect("a folder for the file");
    let attempt = move |input: &[u8]| {
        let path = folder.path().join("entrega.toml");
        std::fs::write(&path, input).expect("the file can be written");
        match Config::load(ConfigSources { file: ConfigFile::At(path), ..ConfigSources::default() }) {
            Ok(config) => result(("taken", config.lanes.len())),
            Err(problem) => {
                let said = problem.to_string();
                assert!(!said.is_empty());
                // The kinds of problems, not every key that was made up.
                result((std::mem::discriminant(&problem), said.split(['`', '\'']).next().map(str::len)))
            }
        }
    };
    Target { name: "config", seeds: Vec::new(), attempt: Box::new(attempt) }
}
