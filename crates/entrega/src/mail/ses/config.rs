//! How SES is reached: from an operator's URL and the usual AWS variables to values that can be used.
//! Invariant: a [`SesConfig`] that [`SesConfig::from_url`] gives was checked; its texts fit into a URL and a header.
//! Never: reads the environment by itself, or repeats a credential in an error.

use std::borrow::Cow;
use std::time::Duration;

use entrega_call::{AddressFilter, ClientConfig, UrlProblem};
use http::Uri;
use http::uri::Scheme;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use thiserror::Error;

use crate::secret::Secret;

const SCHEME: &str = "ses://";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// More than mails that leave at once.
const CONNECTIONS_MAX: usize = 64;
const ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";
const REGION_LENGTH_MAX: usize = 32;
const CONFIGURATION_SET_LENGTH_MAX: usize = 64;
/// A session token has one or two thousand characters.
const CREDENTIAL_LENGTH_MAX: usize = 8192;

/// Where SES is and who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SesConfig {
    /// `eu-west-1`, …
    pub region: String,
    /// Another address than the public one of the region: a VPC endpoint or an emulator.
    pub endpoint: Option<String>,
    /// The configuration set that every mail names.
    pub configuration_set: Option<String>,
    /// Who asks.
    pub credentials: SesCredentials,
}

/// A key of AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SesCredentials {
    /// Names the key.
    pub access_key_id: String,
    /// Signs.
    pub secret_access_key: Secret,
    /// Belongs to a key that was lent for a time.
    pub session_token: Option<Secret>,
}

/// Why a URL and the environment do not say how to reach SES.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadSesUrl {
    /// It names another kind of transport.
    #[error("the URL of an SES transport begins with ses://, such as ses://eu-west-1")]
    Scheme,
    /// Something stands before an `@`.
    #[error("the URL carries user info; give the key as {ACCESS_KEY_ID} and {SECRET_ACCESS_KEY} in the environment")]
    UserInfo,
    /// Not the name of a region.
    #[error("'{region}' is not a region of AWS; write one such as ses://eu-west-1")]
    Region {
        /// As given.
        region: String,
    },
    /// A setting that does not exist.
    #[error("there is no setting '{name}' in the URL of an SES transport; there are endpoint and configuration_set")]
    Unknown {
        /// As given.
        name: String,
    },
    /// A setting that is given twice.
    #[error("the setting {name} is given twice; keep one")]
    Twice {
        /// Its name.
        name: &'static str,
    },
    /// An endpoint that cannot be called.
    #[error("endpoint cannot be called: {problem}")]
    Endpoint {
        /// The problem.
        problem: UrlProblem,
    },
    /// An endpoint that is more than scheme, host and port, or no URL at all.
    #[error("endpoint must be scheme, host and port alone, such as http://127.0.0.1:5000")]
    NotAnOrigin,
    /// Not the name of a configuration set.
    #[error("configuration_set must be 1 to {CONFIGURATION_SET_LENGTH_MAX} characters of A-Z a-z 0-9 _ -")]
    ConfigurationSet,
    /// No key.
    #[error("SES needs a key: set {} in the environment", names.join(" and "))]
    MissingCredentials {
        /// The variables that are not set.
        names: Vec<&'static str>,
    },
    /// A variable whose text cannot be a key.
    #[error("{name} holds a space, a line break or another character that no key has; set it again")]
    Credential {
        /// The variable.
        name: &'static str,
    },
}

impl SesConfig {
    /// Reads `ses://eu-west-1?endpoint=http://127.0.0.1:5000&configuration_set=x`, and the key from the variables that
    /// other programs read it from.
    ///
    /// # Errors
    /// The first [`BadSesUrl`] found.
    pub fn from_url(url: &str, env: &[(String, String)]) -> Result<SesConfig, BadSesUrl> {
        let rest = url.strip_prefix(SCHEME).ok_or(BadSesUrl::Scheme)?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if place.contains('@') {
            return Err(BadSesUrl::UserInfo);
        }
        let region = read_region(place.strip_suffix('/').unwrap_or(place))?;
        let (mut endpoint, mut configuration_set) = (None, None);
        for (name, text) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "endpoint" => set_once(&mut endpoint, "endpoint", read_endpoint(&text)?)?,
                "configuration_set" => {
                    set_once(&mut configuration_set, "configuration_set", read_configuration_set(text)?)?;
                }
                _ => return Err(BadSesUrl::Unknown { name: name.chars().take(64).collect() }),
            }
        }
        Ok(SesConfig { region, endpoint, configuration_set, credentials: SesCredentials::from_env(env)? })
    }

    /// What the client for this transport may do. An endpoint that the operator named may be anywhere; the public one is
    /// called like any other destination.
    pub fn client_config(&self) -> ClientConfig {
        let filter = match &self.endpoint {
            Some(endpoint) => AddressFilter { allow_http: endpoint.starts_with("http://"), ..everywhere() },
            None => AddressFilter::default(),
        };
        // Soon enough for another transport to have its turn within the same attempt.
        let (connect_timeout, connections_max) = (CONNECT_TIMEOUT, CONNECTIONS_MAX);
        ClientConfig { filter, connect_timeout, connections_max, ..ClientConfig::default() }
    }

    /// Scheme, host and port.
    pub(super) fn origin(&self) -> Cow<'_, str> {
        match &self.endpoint {
            Some(endpoint) => Cow::Borrowed(endpoint.strip_suffix('/').unwrap_or(endpoint)),
            None => Cow::Owned(format!("https://email.{}.amazonaws.com", self.region)),
        }
    }
}

impl SesCredentials {
    /// The key in the usual variables. One that is empty counts as not set.
    fn from_env(env: &[(String, String)]) -> Result<SesCredentials, BadSesUrl> {
        let find = |name: &'static str| {
            let text =
                env.iter().find(|(found, text)| found == name && !text.is_empty()).map(|(_, text)| text.as_str());
            match text {
                Some(text) if !is_credential(text) => Err(BadSesUrl::Credential { name }),
                text => Ok(text),
            }
        };
        match (find(ACCESS_KEY_ID)?, find(SECRET_ACCESS_KEY)?) {
            (Some(id), Some(secret)) => Ok(SesCredentials {
                access_key_id: id.to_owned(),
                secret_access_key: Secret::new(secret),
                session_token: find(SESSION_TOKEN)?.map(Secret::new),
            }),
            (id, secret) => {
                let both = [(ACCESS_KEY_ID, id), (SECRET_ACCESS_KEY, secret)];
                let missing = both.into_iter().filter(|(_, text)| text.is_none());
                Err(BadSesUrl::MissingCredentials { names: missing.map(|(name, _)| name).collect() })
            }
        }
    }
}

/// They stand in headers, where anything else could end one and begin another.
fn is_credential(text: &str) -> bool {
    text.len() <= CREDENTIAL_LENGTH_MAX && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// It becomes a part of a host name.
fn read_region(text: &str) -> Result<String, BadSesUrl> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_framed = |text: &str| text.starts_with(|c: char| c.is_ascii_lowercase()) && !text.ends_with('-');
    match text.len() <= REGION_LENGTH_MAX && is_framed(text) && text.bytes().all(is_allowed) {
        true => Ok(text.to_owned()),
        false => Err(BadSesUrl::Region { region: text.chars().take(REGION_LENGTH_MAX).collect() }),
    }
}

fn read_endpoint(text: &str) -> Result<String, BadSesUrl> {
    let url: Uri = text.parse().map_err(|_| BadSesUrl::NotAnOrigin)?;
    let filter = AddressFilter { allow_http: true, ..everywhere() };
    filter.check_url(&url).map_err(|problem| BadSesUrl::Endpoint { problem })?;
    let is_origin = url.path() == "/" && url.query().is_none() && !text.contains('#');
    match (is_origin, url.scheme().map(Scheme::as_str), url.authority()) {
        (true, Some(scheme), Some(authority)) => Ok(format!("{scheme}://{authority}")),
        _ => Err(BadSesUrl::NotAnOrigin),
    }
}

fn read_configuration_set(text: Cow<'_, str>) -> Result<String, BadSesUrl> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    match (1..=CONFIGURATION_SET_LENGTH_MAX).contains(&text.len()) && text.bytes().all(is_allowed) {
        true => Ok(text.into_owned()),
        false => Err(BadSesUrl::ConfigurationSet),
    }
}

fn set_once(setting: &mut Option<String>, name: &'static str, text: String) -> Result<(), BadSesUrl> {
    match setting.replace(text) {
        None => Ok(()),
        Some(_) => Err(BadSesUrl::Twice { name }),
    }
}

/// Every address, https only.
fn everywhere() -> AddressFilter {
    let allow_networks = vec![IpNet::from(Ipv4Net::default()), IpNet::from(Ipv6Net::default())];
    AddressFilter { allow_http: false, allow_networks }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    fn key() -> Vec<(String, String)> {
        env(&[(ACCESS_KEY_ID, "AKIDEXAMPLE"), (SECRET_ACCESS_KEY, "wJalr/EXAMPLE+KEY")])
    }

    fn refusal(url: &str) -> String {
        SesConfig::from_url(url, &key()).expect_err(url).to_string()
    }

    #[test]
    fn a_region_alone_is_enough() {
        let config = SesConfig::from_url("ses://eu-west-1", &key()).unwrap();
        assert_eq!(config, SesConfig::from_url("ses://eu-west-1/", &key()).unwrap());
        assert_eq!((config.endpoint.as_deref(), config.configuration_set.as_deref()), (None, None));
        assert_eq!(config.origin(), "https://email.eu-west-1.amazonaws.com");
        assert_eq!(config.credentials.access_key_id, "AKIDEXAMPLE");
        assert_eq!(config.credentials.secret_access_key.reveal(), "wJalr/EXAMPLE+KEY");
        assert_eq!(config.credentials.session_token, None);
    }

    #[test]
    fn the_settings_of_the_url_are_read() {
        let url = "ses://us-east-1?endpoint=http%3A%2F%2F127.0.0.1:5000/&configuration_set=main_set-1";
        let config = SesConfig::from_url(url, &key()).unwrap();
        assert_eq!(config.configuration_set.as_deref(), Some("main_set-1"));
        assert_eq!(config.endpoint.as_deref(), Some("http://127.0.0.1:5000"));
        assert_eq!(config.origin(), "http://127.0.0.1:5000");
        let plain = SesConfig::from_url("ses://us-east-1?endpoint=http://127.0.0.1:5000", &key()).unwrap();
        assert_eq!(plain.endpoint, config.endpoint);
    }

    #[test]
    fn only_an_endpoint_that_the_operator_named_may_be_private_or_plain() {
        let may_call = |config: &str, url: &str| {
            let config = SesConfig::from_url(config, &key()).unwrap();
            config.client_config().filter.check_url(&url.parse().unwrap()).is_ok()
        };
        assert!(may_call("ses://eu-west-1?endpoint=http://10.0.0.7:5000", "http://10.0.0.7:5000/v2"));
        assert!(may_call("ses://eu-west-1?endpoint=https://[fd00::7]", "https://[fd00::7]/v2"));
        assert!(!may_call("ses://eu-west-1?endpoint=https://10.0.0.7", "http://10.0.0.7/v2"));
        assert!(!may_call("ses://eu-west-1", "https://10.0.0.7/v2"));
        assert!(may_call("ses://eu-west-1", "https://email.eu-west-1.amazonaws.com/v2"));
    }

    #[test]
    fn what_is_wrong_with_a_url_is_named_with_what_would_be_right() {
        for (url, what) in [
            ("smtp://mail.example.com", "begins with ses://"),
            ("ses://", "'' is not a region"),
            ("ses://EU", "'EU' is not a region"),
            ("ses://eu-west-1.evil.example", "is not a region"),
            ("ses://eu-west-1#x", "is not a region"),
            ("ses://eu-west-1?endpont=x", "no setting 'endpont'"),
            ("ses://eu-west-1?endpoint=", "scheme, host and port"),
            ("ses://eu-west-1?endpoint=127.0.0.1:5000", "endpoint cannot be called: the URL must begin with"),
            ("ses://eu-west-1?endpoint=ftp://a.example", "endpoint cannot be called: the URL must begin with"),
            ("ses://eu-west-1?endpoint=http://me:pw@a.example", "endpoint cannot be called: the URL carries user info"),
            ("ses://eu-west-1?endpoint=http://a.example/v2", "scheme, host and port"),
            ("ses://eu-west-1?endpoint=http://a.example&endpoint=http://b.example", "endpoint is given twice"),
            ("ses://eu-west-1?configuration_set=", "configuration_set must be 1 to 64"),
            ("ses://eu-west-1?configuration_set=a%0Ab", "configuration_set must be 1 to 64"),
        ] {
            assert!(refusal(url).contains(what), "{url}: {}", refusal(url));
        }
    }

    #[test]
    fn a_key_in_the_url_is_refused_and_not_repeated() {
        let refusal = refusal("ses://AKID:hushhush@eu-west-1");
        assert!(refusal.contains("AWS_ACCESS_KEY_ID") && !refusal.contains("hushhush"), "{refusal}");
    }

    #[test]
    fn missing_keys_are_named() {
        for (pairs, named) in [
            (&[][..], "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in"),
            (&[(ACCESS_KEY_ID, "AKID")][..], "set AWS_SECRET_ACCESS_KEY in"),
            (&[(ACCESS_KEY_ID, ""), (SECRET_ACCESS_KEY, "s")][..], "set AWS_ACCESS_KEY_ID in"),
        ] {
            let refusal = SesConfig::from_url("ses://eu-west-1", &env(pairs)).unwrap_err().to_string();
            assert!(refusal.contains(named), "{pairs:?}: {refusal}");
        }
    }

    #[test]
    fn a_key_that_cannot_stand_in_a_header_is_named_but_not_shown() {
        for name in [ACCESS_KEY_ID, SECRET_ACCESS_KEY, SESSION_TOKEN] {
            let mut env = key();
            env.insert(0, (name.to_owned(), "hush\r\nhush".to_owned()));
            let refusal = SesConfig::from_url("ses://eu-west-1", &env).unwrap_err().to_string();
            assert!(refusal.starts_with(name) && !refusal.contains("hush"), "{refusal}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let mut env = key();
        env.push((SESSION_TOKEN.to_owned(), "hushhush".to_owned()));
        let config = SesConfig::from_url("ses://eu-west-1", &env).unwrap();
        assert_eq!(config.credentials.session_token.as_ref().map(Secret::reveal), Some("hushhush"));
        let shown = format!("{config:?}");
        assert!(!shown.contains("hushhush") && !shown.contains("wJalr"), "{shown}");
    }
}
