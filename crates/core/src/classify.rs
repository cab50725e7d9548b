//! Classification: which outcomes are successes, which are tried again, which are final.
//! Invariant: rules are data; the first that matches wins; a dialect's last rule matches everything.
//! Never: branches on a message outside a rule that says so.

use serde::{Deserialize, Serialize};

use crate::email::{AUTH, SES_SHUT, SES_THROTTLES, SUPPRESSED, TURNED_AWAY};
use crate::outcome::{Facts, FaultKind, Outcome, Protocol};

/// What an outcome means for its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Delivered.
    Success,
    /// Failed for now.
    Retry,
    /// Failed for good; no further attempt is used up.
    Permanent,
    /// Not tried: it waits until somebody lets it go on, with all its attempts.
    Hold,
}

/// An inclusive range of HTTP statuses or SMTP replies, written `503` or `500-599`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Statuses {
    first: u16,
    last: u16,
}

impl Statuses {
    /// From `first` to `last`, both included.
    pub const fn range(first: u16, last: u16) -> Statuses {
        Statuses { first, last }
    }

    fn contains(self, status: u16) -> bool {
        (self.first..=self.last).contains(&status)
    }
}

/// A text that is no range of statuses.
#[derive(Debug, thiserror::Error)]
#[error("'{text}' is not an HTTP status or a range of them; write 503 or 500-599")]
pub struct BadStatuses {
    text: String,
}

impl TryFrom<String> for Statuses {
    type Error = BadStatuses;
    fn try_from(text: String) -> Result<Statuses, BadStatuses> {
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 100 <= first && first <= last && last <= 999 => Ok(Statuses { first, last }),
            _ => Err(BadStatuses { text }),
        }
    }
}

impl From<Statuses> for String {
    fn from(statuses: Statuses) -> String {
        match statuses.first == statuses.last {
            true => statuses.first.to_string(),
            false => format!("{}-{}", statuses.first, statuses.last),
        }
    }
}

/// One rule. Every condition that is given must hold; within a list, one is enough; with none it always matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The answer's status.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub status: Vec<Statuses>,
    /// The outcome's code, such as `timeout`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub code: Vec<String>,
    /// A header field of the answer that must be present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// A text that the answer's body or the fault's message contains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What was spoken with the destination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// What it then means.
    pub verdict: Verdict,
}

impl Rule {
    /// A rule over statuses.
    pub fn status(status: &[Statuses], verdict: Verdict) -> Rule {
        Rule { status: status.to_vec(), ..Rule::always(verdict) }
    }

    /// A rule over codes.
    pub fn code(code: &[&str], verdict: Verdict) -> Rule {
        Rule { code: code.iter().map(|&code| code.to_owned()).collect(), ..Rule::always(verdict) }
    }

    /// A rule that matches everything.
    pub fn always(verdict: Verdict) -> Rule {
        Rule { status: Vec::new(), code: Vec::new(), header: None, message: None, protocol: None, verdict }
    }

    /// The rule for what is spoken in one protocol only.
    fn only(self, protocol: Protocol) -> Rule {
        Rule { protocol: Some(protocol), ..self }
    }

    fn matches(&self, facts: &Facts<'_>) -> bool {
        let status_fits =
            self.status.is_empty() || facts.status.is_some_and(|found| self.status.iter().any(|s| s.contains(found)));
        let code_fits = self.code.is_empty() || self.code.iter().any(|code| *code == facts.code);
        let header_fits =
            self.header.as_deref().is_none_or(|name| facts.headers.is_some_and(|headers| headers.contains_key(name)));
        let says = |wanted: &str| String::from_utf8_lossy(facts.message).contains(wanted);
        let message_fits = self.message.as_deref().is_none_or(says);
        let protocol_fits = self.protocol.is_none_or(|protocol| protocol == facts.protocol);
        status_fits && code_fits && header_fits && message_fits && protocol_fits
    }
}

/// A named set of default rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// Plain HTTP jobs, the library, events.
    #[default]
    Http,
    /// The call inside a connector.
    Connector,
    /// Signed webhooks: everything but a 2xx is tried again.
    Webhook,
    /// Mail, over SMTP or SES.
    Email,
}

const NETWORK: [&str; 5] = ["resolve", "connect", "tls", "timeout", "aborted"];

impl Dialect {
    /// The rules, most specific first.
    pub fn rules(self) -> Vec<Rule> {
        use Verdict::*;
        let one = |status| Statuses::range(status, status);
        let success = Rule::status(&[Statuses::range(200, 299)], Success);
        match self {
            Dialect::Http => vec![
                success,
                Rule::code(&NETWORK, Retry),
                Rule::status(&[one(408), one(425), one(429), Statuses::range(500, 599)], Retry),
                Rule::always(Permanent),
            ],
            Dialect::Connector => vec![
                success,
                Rule::code(&NETWORK, Retry),
                // Nobody was called: it is down, or busy with others.
                Rule::code(
                    &[FaultKind::BreakerOpen, FaultKind::Throttled, FaultKind::Requeued].map(FaultKind::code),
                    Retry,
                ),
                Rule::status(&[one(429), one(500), Statuses::range(502, 504)], Retry),
                Rule::always(Permanent),
            ],
            Dialect::Webhook => {
                let held = Rule::code(&[FaultKind::Held.code()], Hold);
                vec![success, held, Rule::code(&["forbidden_address", "invalid"], Permanent), Rule::always(Retry)]
            }
            Dialect::Email => email_rules(),
        }
    }
}

/// An address that is not written to any more is final. A login that was refused is the operator's to mend, not the
/// mail's end, although its reply is a 5yz.
fn email_rules() -> Vec<Rule> {
    use Verdict::*;
    let one = |status| Statuses::range(status, status);
    let (smtp, ses) = (|rule: Rule| rule.only(Protocol::Smtp), |rule: Rule| rule.only(Protocol::Ses));
    vec![
        Rule::code(&SUPPRESSED.map(|(code, _)| code), Permanent),
        Rule::code(&[&NETWORK[..], &[AUTH, TURNED_AWAY, "crashed"]].concat(), Retry),
        smtp(Rule::status(&[one(421), Statuses::range(450, 452)], Retry)),
        smtp(Rule::status(&[one(500), one(550), one(554)], Permanent)),
        smtp(Rule::status(&[Statuses::range(400, 499)], Retry)),
        ses(Rule::code(&SES_THROTTLES, Retry)),
        ses(Rule::code(&SES_SHUT, Retry)),
        ses(Rule::code(&["ServiceUnavailable", "InternalFailure", "RequestTimeout", "RequestTimeoutException"], Retry)),
        ses(Rule::code(
            &["MessageRejected", "MailFromDomainNotVerified", "MailFromDomainNotVerifiedException"],
            Permanent,
        )),
        ses(Rule::status(&[one(403), one(408), one(429), Statuses::range(500, 599)], Retry)),
        Rule::always(Permanent),
    ]
}

/// The verdict of the first rule that matches. Nothing matching means `Permanent`: what nobody foresaw is looked at
/// by a person rather than repeated. The recipients of a mail were judged one by one.
pub fn classify(rules: &[Rule], outcome: &Outcome) -> Verdict {
    match (outcome.facts(), outcome) {
        (Some(facts), _) => classify_facts(rules, &facts),
        (None, Outcome::Mail(mailed)) => mailed.verdict(),
        (None, Outcome::Spread(_) | Outcome::Cached(_)) => Verdict::Success,
        (None, _) => Verdict::Permanent,
    }
}

/// The same for the facts alone.
pub fn classify_facts(rules: &[Rule], facts: &Facts<'_>) -> Verdict {
    rules.iter().find(|rule| rule.matches(facts)).map_or(Verdict::Permanent, |rule| rule.verdict)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Answer, Fault, FaultKind};
    use bytes::Bytes;
    use http::{HeaderMap, StatusCode};

    fn answer(status: u16) -> Outcome {
        let status = StatusCode::from_u16(status).unwrap();
        Outcome::Answer(Answer {
            status,
            headers: HeaderMap::new(),
            body: Bytes::from_static(b"quota"),
            truncated: false,
            retry_after: None,
        })
    }

    fn fault(kind: FaultKind) -> Outcome {
        Outcome::Fault(Fault { kind, message: "no route to host".into() })
    }

    #[test]
    fn each_dialect_reads_statuses_as_promised() {
        use Dialect::*;
        use Verdict::*;
        let table = [
            (Http, &[200, 201, 204][..], Success),
            (Http, &[408, 425, 429, 500, 502, 503, 504, 507][..], Retry),
            (Http, &[301, 302, 400, 401, 403, 404, 409, 410, 422][..], Permanent),
            (Connector, &[200, 202][..], Success),
            (Connector, &[429, 500, 502, 503, 504][..], Retry),
            (Connector, &[400, 404, 408, 425, 501][..], Permanent),
            (Webhook, &[200, 299][..], Success),
            (Webhook, &[302, 400, 404, 410, 500][..], Retry),
        ];
        for (dialect, statuses, verdict) in table {
            for &status in statuses {
                assert_eq!(classify(&dialect.rules(), &answer(status)), verdict, "{dialect:?} {status}");
            }
        }
    }

    #[test]
    fn network_faults_are_retried_and_our_own_refusals_are_not() {
        for dialect in [Dialect::Http, Dialect::Connector, Dialect::Webhook] {
            for kind in [FaultKind::Resolve, FaultKind::Connect, FaultKind::Tls, FaultKind::Timeout, FaultKind::Aborted]
            {
                assert_eq!(classify(&dialect.rules(), &fault(kind)), Verdict::Retry, "{dialect:?} {kind:?}");
            }
            for kind in [FaultKind::Forbidden, FaultKind::Invalid] {
                assert_eq!(classify(&dialect.rules(), &fault(kind)), Verdict::Permanent, "{dialect:?} {kind:?}");
            }
        }
    }

    #[test]
    fn a_rule_needs_all_its_conditions() {
        let rule = Rule { message: Some("quota".into()), ..Rule::status(&[Statuses::range(403, 403)], Verdict::Retry) };
        let mut rules = vec![rule];
        rules.extend(Dialect::Http.rules());
        assert_eq!(classify(&rules, &answer(403)), Verdict::Retry);
        assert_eq!(classify(&rules, &answer(404)), Verdict::Permanent);
        rules[0].message = Some("another text".into());
        assert_eq!(classify(&rules, &answer(403)), Verdict::Permanent);
        rules[0] = Rule { header: Some("x-retry".into()), ..Rule::always(Verdict::Retry) };
        assert_eq!(classify(&rules, &answer(403)), Verdict::Permanent);
    }

    #[test]
    fn ranges_are_read_and_written() {
        for text in ["503", "500-599"] {
            assert_eq!(String::from(Statuses::try_from(text.to_owned()).unwrap()), text);
        }
        for text in ["", "5xx", "599-500", "99", "1000"] {
            assert!(Statuses::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
