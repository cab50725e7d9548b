//! Classification: which outcomes are successes, which are tried again, which are final.
//! Invariant: rules are data; the first that matches wins; a dialect's last rule matches everything.
//! Never: branches on a message outside a rule that says so.

use serde::{Deserialize, Serialize};

use crate::facts::{Facts, Protocol};

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
    pub fn only(self, protocol: Protocol) -> Rule {
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

/// The verdict of the first rule that matches; `Permanent` if none does.
pub fn classify_facts(rules: &[Rule], facts: &Facts<'_>) -> Verdict {
    rules.iter().find(|rule| rule.matches(facts)).map_or(Verdict::Permanent, |rule| rule.verdict)
}
