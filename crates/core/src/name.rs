//! Names that people give: lanes and tenants.
//! Invariant: a name that exists is valid, so it can stand in a key, a metric label or a log line as it is.
//! Never: changes a name to make it fit; a bad one is refused with what would be right.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest name, in characters.
pub const NAME_LENGTH_MAX: usize = 64;

/// A name that breaks the rules for its kind.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("'{name}' is not a {kind} name: use 1 to {NAME_LENGTH_MAX} characters of {allowed}")]
pub struct BadName {
    name: String,
    kind: &'static str,
    allowed: &'static str,
}

/// A name that no tenant can be given.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum BadTenant {
    /// It breaks the rules.
    #[error(transparent)]
    Name(#[from] BadName),
    /// It means something else.
    #[error("'{name}' is reserved for questions without a key; use another name")]
    Reserved {
        /// The name.
        name: String,
    },
}

macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident, $kind:literal, $allowed:literal, $is_allowed:expr, $kept:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Arc<str>);

        impl $type {
            /// The name, if it keeps the rules.
            pub fn new(name: &str) -> Result<$type, BadName> {
                let is_allowed: fn(char) -> bool = $is_allowed;
                let fits = !name.is_empty() && name.len() <= NAME_LENGTH_MAX && name.chars().all(is_allowed);
                match fits {
                    true => Ok($type(name.into())),
                    false => Err(BadName { name: name.chars().take(NAME_LENGTH_MAX).collect(), kind: $kind, allowed: $allowed }),
                }
            }

            /// The name, out of a record that was written from a good one.
            pub fn kept(name: &str) -> Result<$type, BadName> {
                let kept: fn(&str) -> Result<$type, BadName> = $kept;
                kept(name)
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $type {
            type Err = BadName;
            fn from_str(name: &str) -> Result<$type, BadName> {
                $type::new(name)
            }
        }

        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $type;
                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        write!(f, "a {} name", $kind)
                    }
                    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<$type, E> {
                        $type::kept(name).map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text).map_err(D::Error::custom)
            }
        }
    };
}

name_type!(
    /// Names a lane: `http`, `email:send`, `connector:netsuite`.
    LaneName, "lane", "a-z 0-9 : _ . -",
    |c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, ':' | '_' | '.' | '-'),
    LaneName::new
);
name_type!(
    /// Names a tenant: who the work is for. Work for one of a tenant's endpoints is named `tenant/endpoint`, so that each
    /// endpoint takes turns and has gates of its own; nobody can give such a name, only [`TenantName::endpoint`] makes it.
    TenantName, "tenant", "A-Z a-z 0-9 _ . -",
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'),
    |name| match name.split_once('/') {
        Some((company, endpoint)) if !endpoint.contains('/') => Ok(TenantName::new(company)?.endpoint(endpoint)),
        _ => TenantName::new(name),
    }
);

/// The tenant of questions that are asked without a key; nobody can be given its name.
pub const PUBLIC_TENANT: &str = "public";

/// What the lanes of proxy routes begin with.
pub const PROXY_LANES: &str = "proxy:";

impl LaneName {
    /// The proxy route that this lane belongs to, if it does.
    pub fn proxy_route(&self) -> Option<&str> {
        self.as_str().strip_prefix(PROXY_LANES)
    }
}

impl TenantName {
    /// The name, if whoever names a tenant may use it: an endpoint's is none, and one means something else.
    pub fn given(name: &str) -> Result<TenantName, BadTenant> {
        let tenant = TenantName::new(name)?;
        match name.eq_ignore_ascii_case(PUBLIC_TENANT) {
            true => Err(BadTenant::Reserved { name: name.to_owned() }),
            false => Ok(tenant),
        }
    }

    /// The name under which work for one of the tenant's endpoints takes turns.
    pub fn endpoint(&self, endpoint: &str) -> TenantName {
        TenantName(format!("{}/{endpoint}", self.company()).into())
    }

    /// The tenant itself.
    pub fn company(&self) -> TenantName {
        match self.0.split_once('/') {
            Some((company, _)) => TenantName(company.into()),
            None => self.clone(),
        }
    }

    /// Which of the tenant's endpoints this names, if it names one.
    pub fn endpoint_name(&self) -> Option<&str> {
        self.0.split_once('/').map(|(_, endpoint)| endpoint)
    }

    /// Whether this is an endpoint's name.
    pub fn is_endpoint(&self) -> bool {
        self.endpoint_name().is_some()
    }

    /// Whether it is `whose`, or one of their endpoints.
    pub fn is_of(&self, whose: &TenantName) -> bool {
        let rest = self.0.strip_prefix(whose.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_rules() {
        for good in ["http", "email:send", "proxy:score", "events:q_score.v2", "connector:net-suite"] {
            assert!(LaneName::new(good).is_ok(), "{good}");
        }
        for bad in ["", "Http", "a b", "naïve", "x\n", "a/b"] {
            assert!(LaneName::new(bad).is_err(), "{bad}");
        }
        assert!(TenantName::new(&"x".repeat(64)).is_ok());
        assert!(TenantName::new(&"x".repeat(65)).is_err());
        assert!(TenantName::new("a:b").is_err());
    }

    #[test]
    fn the_work_of_an_endpoint_is_its_tenants() {
        let (m2, m22) = (TenantName::new("m2").unwrap(), TenantName::new("m22").unwrap());
        let hooks = m2.endpoint("hooks");
        assert_eq!((hooks.as_str(), hooks.company(), hooks.is_endpoint()), ("m2/hooks", m2.clone(), true));
        assert!(hooks.is_of(&m2) && hooks.is_of(&hooks) && m2.is_of(&m2));
        assert!(!m22.is_of(&m2) && !m2.is_of(&hooks) && !m2.endpoint("h").is_of(&hooks));
        // The longest of both fit, records read back, and nobody can pass such a name off as a tenant's.
        let long = TenantName::new(&"x".repeat(64)).unwrap().endpoint(&"y".repeat(32));
        assert_eq!(TenantName::kept(long.as_str()), Ok(long));
        for bad in ["m2/hooks", "a/b/c", "/b"] {
            assert!(TenantName::new(bad).is_err(), "{bad}");
        }
        assert!(TenantName::kept("a/b/c").is_err() && TenantName::kept("/b").is_err());
    }

    #[test]
    fn some_names_cannot_be_given() {
        for reserved in ["public", "Public"] {
            assert!(TenantName::given(reserved).unwrap_err().to_string().contains("reserved"), "{reserved}");
            assert!(TenantName::new(reserved).is_ok(), "{reserved}: records and questions without a key name it");
        }
        assert!(TenantName::given("acme").is_ok() && TenantName::given("acme/hooks").is_err());
    }

    #[test]
    fn a_bad_name_says_what_would_be_right() {
        let message = LaneName::new("Email Send").unwrap_err().to_string();
        assert!(message.contains("'Email Send'") && message.contains("a-z 0-9"), "{message}");
    }
}
