//! Origins: what a connection leads to, and whose it may serve.
//! Invariant: two origins are equal only where their URLs spell scheme, host and port alike; what was made for one, its
//! connections and its `Host` header, is right for the other.
//! Never: judges a URL; see `url`.

use std::hash::{Hash, Hasher};

use http::uri::{Authority, Parts, Scheme};
use http::{HeaderValue, Uri};

use crate::url::UrlProblem;

/// The part of a URL that names a connection.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    is_tls: bool,
    authority: Authority,
}

impl Origin {
    /// Splits a URL that [`check_url`](crate::AddressFilter::check_url) let pass into its origin and the rest: the path and
    /// query that a request names.
    pub(crate) fn split(url: Uri) -> Result<(Origin, Uri), UrlProblem> {
        let Parts { scheme, authority, path_and_query, .. } = url.into_parts();
        let origin = Origin { is_tls: scheme != Some(Scheme::HTTP), authority: authority.ok_or(UrlProblem::NoHost)? };
        let target = match path_and_query {
            Some(path) if path != "/" => {
                let mut parts = Parts::default();
                parts.path_and_query = Some(path);
                Uri::from_parts(parts).expect("a path alone is a URL")
            }
            _ => Uri::default(),
        };
        Ok((origin, target))
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The host as the URL spells it, an IPv6 address in its brackets.
    pub(crate) fn host(&self) -> &str {
        self.authority.host()
    }

    pub(crate) fn port(&self) -> u16 {
        self.authority.port_u16().unwrap_or(self.default_port())
    }

    /// What the `Host` header says: the port only where it is not the scheme's own.
    pub(crate) fn host_header(&self) -> HeaderValue {
        let (host, port) = (self.host(), self.port());
        let text = if port == self.default_port() { host.to_owned() } else { format!("{host}:{port}") };
        HeaderValue::try_from(text).expect("a URL's host and port are visible ASCII")
    }

    fn default_port(&self) -> u16 {
        if self.is_tls { 443 } else { 80 }
    }
}

impl PartialEq for Origin {
    /// `Authority` itself compares without regard to case, but the `Host` header is sent as its URL spells it.
    fn eq(&self, other: &Origin) -> bool {
        self.is_tls == other.is_tls && self.authority.as_str() == other.authority.as_str()
    }
}

impl Eq for Origin {}

impl Hash for Origin {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.is_tls.hash(state);
        self.authority.as_str().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Origin {
        Origin::split(url.parse().unwrap()).unwrap().0
    }

    #[test]
    fn the_host_header_names_a_port_that_is_not_the_schemes_own() {
        for (url, port, header) in [
            ("http://a/", 80, "a"),
            ("http://a:80/", 80, "a"),
            ("http://a:443/", 443, "a:443"),
            ("https://A.example/", 443, "A.example"),
            ("https://a:443/", 443, "a"),
            ("https://a:80/", 80, "a:80"),
            ("https://a:8443/x?y", 8443, "a:8443"),
            ("https://[::1]/", 443, "[::1]"),
            ("https://[::1]:8443/", 8443, "[::1]:8443"),
        ] {
            let origin = origin(url);
            assert_eq!((origin.port(), origin.host_header()), (port, HeaderValue::from_static(header)), "{url}");
        }
    }

    #[test]
    fn scheme_host_and_port_tell_origins_apart_and_the_path_does_not() {
        assert_eq!(origin("https://a/x"), origin("https://a/y?z"));
        for other in ["http://a/", "https://b/", "https://a:8443/", "https://A/"] {
            assert_ne!(origin("https://a/"), origin(other), "{other}");
        }
    }
}
