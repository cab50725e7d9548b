//! Senders: whom a tenant may write mails as.
//! Invariant: a rule allows one address, or every address of one domain; case does not matter.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Rules of one tenant.
pub const SENDERS_MAX: usize = 100;
const SENDER_BYTES_MAX: usize = 320;

/// An address, or a domain all of whose addresses are meant; in lower case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SenderRule(String);

/// A text that is neither.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an address such as news@example.com, or a domain such as example.com")]
pub struct BadSender;

impl SenderRule {
    /// Whether a mail may be from this address.
    pub fn allows(&self, address: &str) -> bool {
        let address = address.to_lowercase();
        match self.0.contains('@') {
            true => address == self.0,
            false => address.rsplit_once('@').is_some_and(|(_, domain)| domain == self.0),
        }
    }

    /// As it is kept.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SenderRule {
    type Err = BadSender;
    fn from_str(text: &str) -> Result<SenderRule, BadSender> {
        let rule = text.to_lowercase();
        let (local, domain) =
            rule.rsplit_once('@').map_or((None, rule.as_str()), |(local, domain)| (Some(local), domain));
        let is_label = |label: &str| {
            !label.is_empty() && label.chars().all(|c| c.is_alphanumeric() || c == '-') && !label.starts_with('-')
        };
        let is_fine = rule.len() <= SENDER_BYTES_MAX
            && domain.split('.').all(is_label)
            && local.is_none_or(|local| {
                !local.is_empty() && !local.contains(|c: char| c.is_whitespace() || c.is_control())
            });
        if is_fine { Ok(SenderRule(rule)) } else { Err(BadSender) }
    }
}

impl TryFrom<String> for SenderRule {
    type Error = BadSender;
    fn try_from(text: String) -> Result<SenderRule, BadSender> {
        text.parse()
    }
}

impl From<SenderRule> for String {
    fn from(rule: SenderRule) -> String {
        rule.0
    }
}

impl fmt::Display for SenderRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_allows_an_address_or_a_domain_and_nothing_that_looks_like_it() {
        for (rule, address, is_allowed) in [
            ("example.com", "news@example.com", true),
            ("Example.COM", "News@EXAMPLE.com", true),
            ("example.com", "news@mail.example.com", false),
            ("example.com", "news@evilexample.com", false),
            ("example.com", "news@example.com.evil.test", false),
            ("example.com", "\"x@example.com\"@evil.test", false),
            ("news@example.com", "news@example.com", true),
            ("news@example.com", "boss@example.com", false),
        ] {
            assert_eq!(rule.parse::<SenderRule>().unwrap().allows(address), is_allowed, "{rule} {address}");
        }
        for bad in ["", "@", "@example.com", "a b@example.com", "example..com", "exa mple.com", "*.example.com", "a@"] {
            assert_eq!(bad.parse::<SenderRule>(), Err(BadSender), "{bad:?}");
        }
    }
}
