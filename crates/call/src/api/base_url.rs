//! Base URLs: where an API begins, and what may be asked below it.
//! Invariant: a path that was joined lies below the base, however a server reads it.
//! Never: mends a path; one that could leave the base is refused with what would be right.

use std::borrow::Cow;
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, PathAndQuery, Scheme};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use thiserror::Error;

/// Servers in a row that each decode a path once are not more than this.
const DECODINGS_MAX: usize = 3;

/// Where an API begins: scheme, host and perhaps a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    scheme: Scheme,
    authority: Authority,
    /// Without a slash at its end.
    path: String,
}

/// Why a text is no base URL.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadBaseUrl {
    /// Not a URL with scheme and host.
    #[error("the base URL must be written as https://host/path")]
    NotAbsolute,
    /// Something after its path.
    #[error("the base URL has a query or a fragment; give parameters with each request instead")]
    NotBare,
    /// A user name or password before the host.
    #[error("the base URL carries user info (`user:password@`); give credentials instead")]
    UserInfo,
    /// A path that does not stay where it is.
    #[error("the path of the base URL cannot be used")]
    Path(#[source] PathProblem),
}

/// Why a path may not be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PathProblem {
    /// It names a host or a scheme.
    #[error("the path must be relative to the base URL: leave out scheme and host, and begin with one slash at most")]
    Absolute,
    /// `.` or `..`, in some spelling.
    #[error("the path must not have . or .. as a segment, encoded or not")]
    DotSegment,
    /// A backslash, which some servers take for a slash.
    #[error("the path must not have a backslash; separate its segments with /")]
    Backslash,
    /// Something after `#`, which is never sent.
    #[error("the path must not have a fragment; write # as %23")]
    Fragment,
    /// A space, a control character, something beyond ASCII, or a percent sign without two hex digits.
    #[error("the path may hold only visible ASCII characters; percent-encode all others")]
    Character,
}

impl FromStr for BaseUrl {
    type Err = BadBaseUrl;
    fn from_str(text: &str) -> Result<BaseUrl, BadBaseUrl> {
        if text.contains(['?', '#']) {
            return Err(BadBaseUrl::NotBare);
        }
        let parts = text.parse::<Uri>().map_err(|_| BadBaseUrl::NotAbsolute)?.into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(BadBaseUrl::NotAbsolute);
        };
        if authority.as_str().contains('@') {
            return Err(BadBaseUrl::UserInfo);
        }
        let path = parts.path_and_query.as_ref().map_or("", PathAndQuery::path).trim_end_matches('/').to_owned();
        check_path(path.trim_start_matches('/')).map_err(BadBaseUrl::Path)?;
        Ok(BaseUrl { scheme, authority, path })
    }
}

impl BaseUrl {
    /// The URL of `relative`, a path with or without a slash before it and a query after it, below this one.
    ///
    /// # Errors
    /// [`PathProblem`] when it could lead elsewhere.
    pub fn join(&self, relative: &str) -> Result<Uri, PathProblem> {
        let (path, query) = match relative.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (relative, None),
        };
        let below = path.strip_prefix('/').unwrap_or(path);
        check_path(below)?;
        if let Some(query) = query {
            check_characters(query)?;
        }
        let whole = match (below, query) {
            ("", None) => format!("{}/", self.path),
            (below, None) => format!("{}/{below}", self.path),
            (below, Some(query)) => format!("{}/{below}?{query}", self.path),
        };
        let path_and_query = PathAndQuery::try_from(whole).map_err(|_| PathProblem::Character)?;
        let url = Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone());
        url.path_and_query(path_and_query).build().map_err(|_| PathProblem::Character)
    }

    /// Whether what is sent here goes to the same server in the same way: scheme, host and port.
    #[must_use]
    pub fn has_origin_of(&self, other: &BaseUrl) -> bool {
        let port =
            |base: &BaseUrl| base.authority.port_u16().unwrap_or(if base.scheme == Scheme::HTTPS { 443 } else { 80 });
        let is_same_host = self.authority.host().eq_ignore_ascii_case(other.authority.host());
        self.scheme == other.scheme && is_same_host && port(self) == port(other)
    }

    /// The base itself.
    #[must_use]
    pub fn to_uri(&self) -> Uri {
        self.join("").expect("the path was checked when the base was made")
    }
}

/// Refuses a path, without the slash it begins with, that could lead elsewhere, however a server reads it.
///
/// # Errors
/// [`PathProblem`] that says how.
pub fn check_path(path: &str) -> Result<(), PathProblem> {
    if path.starts_with('/') || has_scheme(path) {
        return Err(PathProblem::Absolute);
    }
    check_characters(path)?;
    let mut seen = Cow::Borrowed(path.as_bytes());
    // As often as servers on the way may decode it: what a later one makes of it must not leave the base either.
    for _ in 0..=DECODINGS_MAX {
        if seen.iter().any(|&byte| byte < 0x20 || byte == 0x7f) {
            return Err(PathProblem::Character);
        }
        if seen.split(|&byte| byte == b'/' || byte == b'\\').any(is_dots) {
            return Err(PathProblem::DotSegment);
        }
        let decoded = decoded(&seen);
        if decoded == *seen {
            return Ok(());
        }
        seen = Cow::Owned(decoded);
    }
    // Whoever encodes so often has something to hide.
    Err(PathProblem::DotSegment)
}

/// `https:` or `data:`, as opposed to a colon in a later segment.
fn has_scheme(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or_default();
    first.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

fn check_characters(text: &str) -> Result<(), PathProblem> {
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'\\' => return Err(PathProblem::Backslash),
            b'#' => return Err(PathProblem::Fragment),
            b'%' if hex_pair(text.as_bytes(), index + 1).is_none() => return Err(PathProblem::Character),
            byte if !byte.is_ascii_graphic() => return Err(PathProblem::Character),
            _ => {}
        }
    }
    Ok(())
}

/// A segment that means "here" or "up". Some servers drop what follows a semicolon before they look.
fn is_dots(segment: &[u8]) -> bool {
    let name = segment.split(|&byte| byte == b';').next().unwrap_or_default();
    name == b"." || name == b".."
}

fn decoded(text: &[u8]) -> Vec<u8> {
    percent_decode(text).collect()
}

fn hex_pair(text: &[u8], at: usize) -> Option<u8> {
    let digit = |index: usize| char::from(*text.get(index)?).to_digit(16);
    Some((digit(at)? * 16 + digit(at + 1)?) as u8)
}

/// What may stand anywhere in a URL as it is.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Writes a query parameter's name or value so that it means itself.
pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, UNRESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn base() -> BaseUrl {
        "https://api.example.com/v1/".parse().unwrap()
    }

    #[test]
    fn a_path_goes_below_the_base() {
        for (relative, url) in [
            ("", "https://api.example.com/v1/"),
            ("users", "https://api.example.com/v1/users"),
            ("/users/17/", "https://api.example.com/v1/users/17/"),
            ("users?next=../x//y&u=https://z", "https://api.example.com/v1/users?next=../x//y&u=https://z"),
            ("?a=1", "https://api.example.com/v1/?a=1"),
            ("a//b", "https://api.example.com/v1/a//b"),
            ("files/..hidden/a..b/...", "https://api.example.com/v1/files/..hidden/a..b/..."),
            ("users/urn:x:1", "https://api.example.com/v1/users/urn:x:1"),
            ("name%2Fwith%20slash", "https://api.example.com/v1/name%2Fwith%20slash"),
        ] {
            assert_eq!(base().join(relative).map(|url| url.to_string()), Ok(url.to_owned()), "{relative}");
        }
        let bare: BaseUrl = "http://127.0.0.1:8080".parse().unwrap();
        assert_eq!(bare.join("x").unwrap(), "http://127.0.0.1:8080/x");
        assert_eq!(bare.to_uri(), "http://127.0.0.1:8080/");
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        for (other, is_same) in [
            ("https://API.example.com:443/v2", true),
            ("http://api.example.com/v1", false),
            ("https://api.example.com:8443/v1", false),
            ("https://api.example.com.evil.test/v1", false),
        ] {
            assert_eq!(base().has_origin_of(&other.parse().unwrap()), is_same, "{other}");
        }
    }

    #[test]
    fn nothing_leads_out_of_the_base() {
        use PathProblem::*;
        for (relative, problem) in [
            ("https://evil.example/", Absolute),
            ("HTTPS:evil.example", Absolute),
            ("//evil.example/x", Absolute),
            ("///evil.example/x", Absolute),
            ("javascript:x", Absolute),
            ("../admin", DotSegment),
            ("/../admin", DotSegment),
            ("users/../../admin", DotSegment),
            ("users/..", DotSegment),
            ("./users", DotSegment),
            ("%2e%2e/admin", DotSegment),
            ("users/.%2E/admin", DotSegment),
            ("users/%2E", DotSegment),
            ("..%2fadmin", DotSegment),
            ("x%2f..%2f..%2fadmin", DotSegment),
            ("..%5cadmin", DotSegment),
            ("%252e%252e/admin", DotSegment),
            ("%25252e%25252e%25252fadmin", DotSegment),
            ("%2525252525252e", DotSegment),
            ("..;x=1/admin", DotSegment),
            ("%2e%2e%3bx/admin", DotSegment),
            ("..\\admin", Backslash),
            ("\\\\evil.example", Backslash),
            ("users#x", Fragment),
            ("users?a=b#x", Fragment),
            ("a b", Character),
            ("a\r\nhost: evil", Character),
            ("a%0d%0ahost", Character),
            ("a%00", Character),
            ("a%zz", Character),
            ("a%2", Character),
            ("é", Character),
            ("a?b=\n", Character),
        ] {
            assert_eq!(base().join(relative), Err(problem), "{relative}");
        }
        // What looks like user info is a path here, for the host is fixed.
        let url = base().join("@evil.example/x").unwrap();
        assert_eq!((url.host(), url.path()), (Some("api.example.com"), "/v1/@evil.example/x"));
        let url = base().join("user:secret@evil.example/x");
        assert_eq!(url, Err(Absolute));
    }

    #[test]
    fn a_bad_base_says_what_would_be_right() {
        for (text, problem) in [
            ("/v1", BadBaseUrl::NotAbsolute),
            ("api.example.com", BadBaseUrl::NotAbsolute),
            ("", BadBaseUrl::NotAbsolute),
            ("https://api.example.com/v1?key=1", BadBaseUrl::NotBare),
            ("https://api.example.com/#x", BadBaseUrl::NotBare),
            ("https://user:pw@api.example.com/", BadBaseUrl::UserInfo),
            ("https://api.example.com/v1/../v2", BadBaseUrl::Path(PathProblem::DotSegment)),
        ] {
            assert_eq!(text.parse::<BaseUrl>(), Err(problem), "{text}");
        }
    }

    #[test]
    fn parameters_mean_themselves() {
        assert_eq!(encode("a b&c=d/é?#~"), "a%20b%26c%3Dd%2F%C3%A9%3F%23~");
    }

    proptest! {
        #[test]
        fn whatever_joins_stays_on_the_host_and_below_the_path(relative in "[a.%/2eEfF5cC;:@?\\\\#-]{0,24}") {
            if let Ok(url) = base().join(&relative) {
                prop_assert_eq!((url.scheme_str(), url.host()), (Some("https"), Some("api.example.com")));
                prop_assert_eq!(url.authority().map(Authority::as_str), Some("api.example.com"));
                prop_assert!(url.path().starts_with("/v1/"));
                let mut seen = url.path().as_bytes().to_vec();
                for _ in 0..10 {
                    let steps = seen.split(|byte| *byte == b'/' || *byte == b'\\');
                    prop_assert!(!steps.into_iter().any(|step| step == b".." || step == b"."), "{}", url.path());
                    seen = decoded(&seen);
                }
            }
        }
    }
}
