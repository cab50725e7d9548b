//! URLs: which ones a call may name.
//! Invariant: a host that some resolver could read as an address other than the one it shows is
//! refused, so what was checked is what is called.
//! Never: resolves a name; a name is judged by its addresses when it is connected to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;
use http::uri::{Authority, Scheme};
use thiserror::Error;

use crate::address::{AddressFilter, ForbiddenAddress};

/// The longest URL that may be called, in bytes.
pub const URL_BYTES_MAX: usize = 2048;

/// The longest name DNS can hold, in its written form.
const HOST_BYTES_MAX: usize = 253;

/// A URL that must not be called.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum UrlProblem {
    /// Longer than [`URL_BYTES_MAX`].
    #[error("the URL has {bytes} bytes; at most {URL_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Neither `http` nor `https`.
    #[error("the URL must begin with https://, not {}", if scheme.is_empty() { "without a scheme" } else { scheme })]
    Scheme {
        /// The scheme it has, empty when it has none.
        scheme: String,
    },
    /// `http` while only `https` is allowed.
    #[error(
        "plain http is refused: use https, or set `[outbound] allow_http = true` (`entrega serve --dev` does, for destinations on this machine)"
    )]
    PlainHttp,
    /// No host to connect to.
    #[error("the URL names no host; write it as https://host/path")]
    NoHost,
    /// A user name or password before the host.
    #[error("the URL carries user info (`user:password@`); send credentials as a header instead")]
    UserInfo,
    /// A host that is neither a name nor an address.
    #[error("`{host}` is neither a host name nor an IP address; write other scripts as punycode")]
    Host {
        /// The host as given.
        host: String,
    },
    /// A host that resolvers read as an IPv4 address, each in its own way.
    #[error("`{host}` is an ambiguous way to write an IPv4 address; write four decimal numbers")]
    AmbiguousHost {
        /// The host as given.
        host: String,
    },
    /// A port that does not exist.
    #[error("the port in `{authority}` is not a number from 1 to 65535")]
    Port {
        /// Host and port as given.
        authority: String,
    },
    /// The host is, or always means, an address that calls must not reach.
    #[error(transparent)]
    Forbidden(#[from] ForbiddenAddress),
}

impl AddressFilter {
    /// Says whether `url` may be called, as far as can be told without resolving its name.
    ///
    /// # Errors
    /// The first [`UrlProblem`] found.
    pub fn check_url(&self, url: &Uri) -> Result<(), UrlProblem> {
        let bytes = url_bytes(url);
        if bytes > URL_BYTES_MAX {
            return Err(UrlProblem::TooLong { bytes });
        }
        self.check_scheme(url)?;
        let authority = url.authority().ok_or(UrlProblem::NoHost)?;
        if authority.as_str().contains('@') {
            return Err(UrlProblem::UserInfo);
        }
        check_port(authority)?;
        self.check_host(authority.host())
    }

    fn check_scheme(&self, url: &Uri) -> Result<(), UrlProblem> {
        match url.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => Ok(()),
            Some(scheme) if *scheme == Scheme::HTTP && self.allow_http => Ok(()),
            Some(scheme) if *scheme == Scheme::HTTP => Err(UrlProblem::PlainHttp),
            other => Err(UrlProblem::Scheme { scheme: other.map(Scheme::to_string).unwrap_or_default() }),
        }
    }

    fn check_host(&self, host: &str) -> Result<(), UrlProblem> {
        if host.is_empty() {
            return Err(UrlProblem::NoHost);
        }
        if let Some(address) = literal_ip(host) {
            return Ok(self.check_ip(address)?);
        }
        if ends_in_number(host) {
            return Err(UrlProblem::AmbiguousHost { host: host.into() });
        }
        if !is_host_name(host) {
            return Err(UrlProblem::Host { host: host.into() });
        }
        if is_localhost(host) {
            // Such a name means loopback of either family: one that is open is enough.
            let v4 = self.check_ip(Ipv4Addr::LOCALHOST.into());
            let v6 = self.check_ip(Ipv6Addr::LOCALHOST.into());
            v4.or(v6)?;
        }
        Ok(())
    }
}

/// The address a host spells out, with or without brackets around IPv6.
pub(crate) fn literal_ip(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[') {
        Some(rest) => {
            let inner = rest.strip_suffix(']')?;
            inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
        }
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

fn url_bytes(url: &Uri) -> usize {
    let scheme = url.scheme_str().map_or(0, |scheme| scheme.len() + 3);
    let authority = url.authority().map_or(0, |it| it.as_str().len());
    let path = url.path_and_query().map_or(0, |it| it.as_str().len());
    scheme + authority + path
}

/// `http` keeps a port it cannot read as part of the text and reports none, which would quietly
/// become the default port.
fn check_port(authority: &Authority) -> Result<(), UrlProblem> {
    let readable = match authority.port_u16() {
        Some(port) => port != 0,
        None => authority.as_str().len() == authority.host().len(),
    };
    if readable { Ok(()) } else { Err(UrlProblem::Port { authority: authority.to_string() }) }
}

/// Whether resolvers would try to read `host` as an IPv4 address: its last label is a decimal,
/// octal or hexadecimal number (the rule of the WHATWG URL standard).
fn ends_in_number(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    let hex = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    match hex {
        Some(digits) => digits.bytes().all(|b| b.is_ascii_hexdigit()),
        None => !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()),
    }
}

fn is_host_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    host.len() <= HOST_BYTES_MAX
        && host.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        })
}

fn is_localhost(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let last = host.rsplit('.').next().unwrap_or(host);
    last.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(filter: &AddressFilter, url: &str) -> Result<(), UrlProblem> {
        filter.check_url(&url.parse().expect(url))
    }

    fn with_http() -> AddressFilter {
        AddressFilter { allow_http: true, ..AddressFilter::default() }
    }

    #[test]
    fn ordinary_urls_pass() {
        for url in [
            "https://example.com",
            "https://example.com/hook?x=1",
            "https://example.com:8443/hook",
            "https://example.com./hook",
            "https://a_b.example.com/",
            "https://xn--bcher-kva.example/",
            "https://1and1.com/",
            "https://8.8.8.8/",
            "https://[2606:4700:4700::1111]:443/",
            "https://notlocalhost/",
            "https://localhost.example.com/",
        ] {
            assert_eq!(check(&AddressFilter::default(), url), Ok(()), "{url}");
        }
    }

    #[test]
    fn only_https_unless_http_is_allowed() {
        let strict = AddressFilter::default();
        assert_eq!(check(&strict, "http://example.com/"), Err(UrlProblem::PlainHttp));
        assert_eq!(check(&with_http(), "http://example.com/"), Ok(()));
        for (url, scheme) in [("ftp://example.com/", "ftp"), ("/path", ""), ("example.com:80", "")] {
            let scheme = scheme.to_owned();
            assert_eq!(check(&with_http(), url), Err(UrlProblem::Scheme { scheme }), "{url}");
        }
    }

    #[test]
    fn user_info_is_refused() {
        for url in ["https://user@example.com/", "https://a:b@example.com/", "https://@example.com/"] {
            assert_eq!(check(&with_http(), url), Err(UrlProblem::UserInfo), "{url}");
        }
    }

    #[test]
    fn literal_addresses_are_judged() {
        for url in [
            "https://127.0.0.1/",
            "https://10.1.2.3:8443/",
            "https://169.254.169.254/latest",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]:80/",
            "https://[64:ff9b::7f00:1]/",
        ] {
            let problem = check(&with_http(), url);
            assert!(matches!(problem, Err(UrlProblem::Forbidden(_))), "{url}: {problem:?}");
        }
    }

    #[test]
    fn odd_spellings_of_an_address_are_ambiguous() {
        for host in [
            "2130706433",
            "0177.0.0.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "0X7F000001",
            "127.1",
            "127.0.1",
            "127.0.0.0x1",
            "127.0.0.01",
            "127.0.0.1.",
            "1.2.3.4.5",
            "256.256.256.256",
            "example.0x",
            "8.8.8.8.",
        ] {
            let problem = check(&with_http(), &format!("http://{host}/"));
            assert_eq!(problem, Err(UrlProblem::AmbiguousHost { host: host.into() }));
        }
    }

    #[test]
    fn localhost_follows_loopback() {
        let mut filter = with_http();
        for url in ["http://localhost/", "http://LocalHost.:80/", "http://api.localhost/"] {
            let problem = check(&filter, url);
            assert!(matches!(problem, Err(UrlProblem::Forbidden(_))), "{url}: {problem:?}");
        }
        for network in ["127.0.0.0/8", "::1/128"] {
            filter.allow_networks = vec![network.parse().unwrap()];
            assert_eq!(check(&filter, "http://api.localhost/"), Ok(()), "{network}");
        }
    }

    #[test]
    fn broken_hosts_and_ports_are_refused() {
        for url in ["https://ex..com/", "https://.com/", "https://a!b.com/", "https://[::zz]/"] {
            // Whatever `http` itself does not parse cannot reach the check.
            let Ok(parsed) = url.parse::<Uri>() else {
                continue;
            };
            let problem = AddressFilter::default().check_url(&parsed);
            assert!(matches!(problem, Err(UrlProblem::Host { .. })), "{url}: {problem:?}");
        }
        for url in ["https://example.com:0/", "https://example.com:99999/", "https://example.com:/"] {
            let problem = check(&AddressFilter::default(), url);
            assert!(matches!(problem, Err(UrlProblem::Port { .. })), "{url}: {problem:?}");
        }
    }

    #[test]
    fn length_is_limited_to_the_byte() {
        let longest = format!("https://example.com/{}", "x".repeat(URL_BYTES_MAX - 20));
        assert_eq!(longest.len(), URL_BYTES_MAX);
        assert_eq!(check(&AddressFilter::default(), &longest), Ok(()));
        let problem = check(&AddressFilter::default(), &format!("{longest}x"));
        assert_eq!(problem, Err(UrlProblem::TooLong { bytes: URL_BYTES_MAX + 1 }));
    }
}
