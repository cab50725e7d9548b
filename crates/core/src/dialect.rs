//! Dialects: the rules that hold where nobody says otherwise.
//! Invariant: a dialect's last rule matches everything.

use serde::{Deserialize, Serialize};

use crate::classify::{Rule, Statuses, Verdict};
use crate::facts::{FaultKind, Protocol};
use crate::mail::{AUTH, SES_SHUT, SES_THROTTLES, SUPPRESSED, TURNED_AWAY};

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
    #[serde(rename = "email")]
    Mail,
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
            Dialect::Mail => mail_rules(),
        }
    }
}

/// An address that is not written to any more is final. A login that was refused is the operator's to mend, not the
/// mail's end, although its reply is a 5yz.
fn mail_rules() -> Vec<Rule> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::{Answer, Fault, FaultKind, Outcome};
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
                assert_eq!(answer(status).verdict(&dialect.rules()), verdict, "{dialect:?} {status}");
            }
        }
    }

    #[test]
    fn network_faults_are_retried_and_our_own_refusals_are_not() {
        for dialect in [Dialect::Http, Dialect::Connector, Dialect::Webhook] {
            for kind in [FaultKind::Resolve, FaultKind::Connect, FaultKind::Tls, FaultKind::Timeout, FaultKind::Aborted]
            {
                assert_eq!(fault(kind).verdict(&dialect.rules()), Verdict::Retry, "{dialect:?} {kind:?}");
            }
            for kind in [FaultKind::Forbidden, FaultKind::Invalid] {
                assert_eq!(fault(kind).verdict(&dialect.rules()), Verdict::Permanent, "{dialect:?} {kind:?}");
            }
        }
    }

    #[test]
    fn a_rule_needs_all_its_conditions() {
        let rule = Rule { message: Some("quota".into()), ..Rule::status(&[Statuses::range(403, 403)], Verdict::Retry) };
        let mut rules = vec![rule];
        rules.extend(Dialect::Http.rules());
        assert_eq!(answer(403).verdict(&rules), Verdict::Retry);
        assert_eq!(answer(404).verdict(&rules), Verdict::Permanent);
        rules[0].message = Some("another text".into());
        assert_eq!(answer(403).verdict(&rules), Verdict::Permanent);
        rules[0] = Rule { header: Some("x-retry".into()), ..Rule::always(Verdict::Retry) };
        assert_eq!(answer(403).verdict(&rules), Verdict::Permanent);
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
