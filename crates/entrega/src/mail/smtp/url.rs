//! The configuration of an SMTP transport, and how it is read from a URL.
//! Invariant: no error repeats a part of the URL: where one is malformed, any part may be the password.
//! Never: looks up or connects.

use std::net::Ipv6Addr;
use std::str::Utf8Error;

use percent_encoding::percent_decode_str;

use crate::secret::Secret;

/// Idle connections that are kept unless something else is said.
const IDLE_MAX: usize = 20;
const HOST_BYTES_MAX: usize = 253;

/// Whether and how a connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmtpTls {
    /// STARTTLS, or nothing is sent.
    Required,
    /// STARTTLS where it is offered; the certificate is checked then too.
    IfOffered,
    /// From the first byte (`smtps`).
    Implicit,
    /// Not at all; for development.
    Never,
}

/// One server, and how to speak with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmtpConfig {
    /// Its name or address.
    pub host: String,
    /// 25 between servers, 587 with a login, 465 with TLS from the first byte.
    pub port: u16,
    /// Whether it is encrypted.
    pub tls: SmtpTls,
    /// User and password.
    pub credentials: Option<(String, Secret)>,
    /// What we call ourselves; our address if nothing is given.
    pub hello: Option<String>,
    /// Whether a password may go over a connection that is not encrypted.
    pub allow_plain_auth: bool,
    /// Connections that are kept for the next mail.
    pub idle_max: usize,
    /// Certificates to trust beside the public roots.
    pub extra_ca_pem: Option<Vec<u8>>,
}

/// What is wrong with a URL.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSmtpUrl {
    /// It is for something else.
    #[error("the URL does not begin with smtp:// or smtps://")]
    Scheme,
    /// It does not say where.
    #[error("the URL names no host; write smtp://host:port or smtp://user:password@host:port")]
    NoHost,
    /// No name has that form.
    #[error("the host in the URL is neither a name nor an address; an IPv6 address stands in brackets, as in [::1]")]
    Host,
    /// No port has that number.
    #[error("the port in the URL is not a number from 1 to 65535 (encode '@' and ':' in a user as %40 and %3A)")]
    Port,
    /// There is more than a server.
    #[error("the URL has a path; only settings such as ?tls=required may follow the host and port")]
    Path,
    /// A user alone cannot log in.
    #[error("the URL has a user without a password; write smtp://user:password@host")]
    NoPassword,
    /// A password alone cannot either.
    #[error("the URL has a password without a user; write smtp://user:password@host")]
    NoUser,
    /// A percent sign that leads nowhere.
    #[error("the {part} in the URL is not percent-encoded: write '%' as %25")]
    Encoding {
        /// Which part.
        part: &'static str,
    },
    /// What they decode to is no text.
    #[error("the {part} in the URL is not UTF-8 once it is decoded")]
    NotUtf8 {
        /// Which part.
        part: &'static str,
        /// Where it ends to be.
        #[source]
        source: Utf8Error,
    },
    /// It would end a line of the protocol.
    #[error("the {part} in the URL has a NUL in it, which no login can carry")]
    Nul {
        /// Which part.
        part: &'static str,
    },
    /// Something else is set.
    #[error("the URL sets something unknown after '?'; known: tls=required, tls=if_offered, tls=never")]
    Setting,
    /// There is no such way.
    #[error("tls in the URL is none of required, if_offered, never")]
    Tls,
    /// It is encrypted already.
    #[error("smtps:// is encrypted from the first byte; leave tls out, or write smtp://")]
    TlsTwice,
}

impl SmtpConfig {
    /// Reads `smtp://user:password@host:587?tls=required` or `smtps://user:password@host:465`.
    ///
    /// Everything before the last `@` is user and password, so that of all signs only `%`, and `:` in the user, need
    /// to be encoded there.
    pub fn from_url(url: &str) -> Result<SmtpConfig, BadSmtpUrl> {
        let (scheme, rest) = url.split_once("://").ok_or(BadSmtpUrl::Scheme)?;
        let is_implicit = match scheme.to_ascii_lowercase().as_str() {
            "smtp" => false,
            "smtps" => true,
            _ => return Err(BadSmtpUrl::Scheme),
        };
        let (login, place) = match rest.rsplit_once('@') {
            Some((login, place)) => (Some(login), place),
            None => (None, rest),
        };
        let credentials = login.map(read_login).transpose()?;
        let (place, settings) = place.split_once('?').unwrap_or((place, ""));
        let place = place.strip_suffix('/').unwrap_or(place);
        if place.contains(['/', '#']) {
            return Err(BadSmtpUrl::Path);
        }
        let (host, port) = split_port(place)?;
        let tls = match (is_implicit, read_tls(settings)?, &credentials) {
            (true, None, _) => SmtpTls::Implicit,
            (true, Some(_), _) => return Err(BadSmtpUrl::TlsTwice),
            (false, Some(tls), _) => tls,
            (false, None, Some(_)) => SmtpTls::Required,
            (false, None, None) => SmtpTls::IfOffered,
        };
        let usual = match (is_implicit, &credentials) {
            (true, _) => 465,
            (false, Some(_)) => 587,
            (false, None) => 25,
        };
        Ok(SmtpConfig {
            host: read_host(host)?,
            port: port.map_or(Ok(usual), read_port)?,
            tls,
            credentials,
            hello: None,
            allow_plain_auth: false,
            idle_max: IDLE_MAX,
            extra_ca_pem: None,
        })
    }
}

fn read_login(login: &str) -> Result<(String, Secret), BadSmtpUrl> {
    let (user, password) = login.split_once(':').ok_or(BadSmtpUrl::NoPassword)?;
    let (user, password) = (decoded(user, "user")?, decoded(password, "password")?);
    match (user.is_empty(), password.is_empty()) {
        (true, _) => Err(BadSmtpUrl::NoUser),
        (_, true) => Err(BadSmtpUrl::NoPassword),
        (false, false) => Ok((user, Secret::new(password))),
    }
}

fn decoded(text: &str, part: &'static str) -> Result<String, BadSmtpUrl> {
    let is_code = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if !text.split('%').skip(1).all(is_code) {
        return Err(BadSmtpUrl::Encoding { part });
    }
    let text = percent_decode_str(text).decode_utf8().map_err(|source| BadSmtpUrl::NotUtf8 { part, source })?;
    match text.contains('\0') {
        true => Err(BadSmtpUrl::Nul { part }),
        false => Ok(text.into_owned()),
    }
}

/// The colons of an IPv6 address stand in brackets.
fn split_port(place: &str) -> Result<(&str, Option<&str>), BadSmtpUrl> {
    let Some(rest) = place.strip_prefix('[') else {
        return Ok(place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))));
    };
    let (host, rest) = rest.split_once(']').ok_or(BadSmtpUrl::Host)?;
    if host.parse::<Ipv6Addr>().is_err() {
        return Err(BadSmtpUrl::Host);
    }
    match rest.strip_prefix(':') {
        Some(port) => Ok((host, Some(port))),
        None if rest.is_empty() => Ok((host, None)),
        None => Err(BadSmtpUrl::Host),
    }
}

fn read_host(host: &str) -> Result<String, BadSmtpUrl> {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    match () {
        _ if host.is_empty() => Err(BadSmtpUrl::NoHost),
        _ if host.parse::<Ipv6Addr>().is_ok() => Ok(host.to_owned()),
        _ if host.len() <= HOST_BYTES_MAX && host.bytes().all(is_fit) => Ok(host.to_owned()),
        _ => Err(BadSmtpUrl::Host),
    }
}

fn read_port(port: &str) -> Result<u16, BadSmtpUrl> {
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port = port.parse().ok().filter(|port| is_number && *port > 0);
    port.ok_or(BadSmtpUrl::Port)
}

fn read_tls(settings: &str) -> Result<Option<SmtpTls>, BadSmtpUrl> {
    match settings.split_once('=') {
        None if settings.is_empty() => Ok(None),
        Some(("tls", "required")) => Ok(Some(SmtpTls::Required)),
        Some(("tls", "if_offered")) => Ok(Some(SmtpTls::IfOffered)),
        Some(("tls", "never")) => Ok(Some(SmtpTls::Never)),
        Some(("tls", _)) => Err(BadSmtpUrl::Tls),
        _ => Err(BadSmtpUrl::Setting),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> SmtpConfig {
        SmtpConfig::from_url(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    #[test]
    fn port_and_encryption_follow_from_what_is_given() {
        use SmtpTls::*;
        let table = [
            ("smtp://mail.example.com", "mail.example.com", 25, IfOffered),
            ("SMTP://mail.example.com/", "mail.example.com", 25, IfOffered),
            ("smtp://mail.example.com:2525", "mail.example.com", 2525, IfOffered),
            ("smtp://u:p@mail.example.com", "mail.example.com", 587, Required),
            ("smtp://u:p@mail.example.com:25?tls=if_offered", "mail.example.com", 25, IfOffered),
            ("smtp://u:p@mail.example.com?tls=never", "mail.example.com", 587, Never),
            ("smtp://10.0.0.1/?tls=required", "10.0.0.1", 25, Required),
            ("smtps://u:p@mail.example.com", "mail.example.com", 465, Implicit),
            ("smtps://[::1]", "::1", 465, Implicit),
            ("smtp://[2001:db8::1]:587", "2001:db8::1", 587, IfOffered),
        ];
        for (url, host, port, tls) in table {
            let config = read(url);
            assert_eq!((config.host.as_str(), config.port, config.tls), (host, port, tls), "{url}");
        }
    }

    #[test]
    fn user_and_password_are_decoded() {
        let table = [
            ("smtp://u:p@h", "u", "p"),
            ("smtp://joe%40example.com:s%3Acr%25t@h", "joe@example.com", "s:cr%t"),
            ("smtp://joe@example.com:p@h", "joe@example.com", "p"),
            ("smtp://AKIA:a+b/c?d#e@f:g@h", "AKIA", "a+b/c?d#e@f:g"),
            ("smtp://u:senha%C3%A7@h", "u", "senhaç"),
        ];
        for (url, user, password) in table {
            let (found, secret) = read(url).credentials.unwrap();
            assert_eq!((found.as_str(), secret.reveal()), (user, password), "{url}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        use BadSmtpUrl::*;
        let table = [
            ("mail.example.com:25", Scheme),
            ("http://u:s3cret@h", Scheme),
            ("smtp://", NoHost),
            ("smtp://u:s3cret@", NoHost),
            ("smtp://u:s3cret@:25", NoHost),
            ("smtp://u:s3cret", Port),
            ("smtp://u:s3cret@h:", Port),
            ("smtp://u:s3cret@h:0", Port),
            ("smtp://u:s3cret@h:+25", Port),
            ("smtp://u:s3cret@h:65536", Port),
            ("smtp://u:s3cret@h/path", Path),
            ("smtp://u:s3cret@h#part", Path),
            ("smtp://u:s3cret@h h", Host),
            ("smtp://u:s3cret@[::1", Host),
            ("smtp://u:s3cret@[x]", Host),
            ("smtp://u:s3cret@[::1]x", Host),
            ("smtp://s3cret@h", NoPassword),
            ("smtp://u:@h", NoPassword),
            ("smtp://:s3cret@h", NoUser),
            ("smtp://u:s3cret%@h", Encoding { part: "password" }),
            ("smtp://u%zz:s3cret@h", Encoding { part: "user" }),
            ("smtp://u:s3cret%00@h", Nul { part: "password" }),
            ("smtp://h?s3cret", Setting),
            ("smtp://h?tsl=s3cret", Setting),
            ("smtp://h?tls=s3cret", Tls),
            ("smtps://h?tls=required", TlsTwice),
        ];
        for (url, expected) in table {
            let error = SmtpConfig::from_url(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{url}: {error:?}");
            assert_eq!(error, expected, "{url}");
        }
        assert!(matches!(SmtpConfig::from_url("smtp://u:%FF@h"), Err(NotUtf8 { part: "password", .. })));
    }

    #[test]
    fn the_password_is_not_shown() {
        assert!(!format!("{:?}", read("smtp://u:s3cret@h")).contains("s3cret"));
    }
}
