//! Headers: which ones a caller may set on an outbound request.
//! Invariant: what passes cannot change how the message is framed, routed or where it goes.
//! Never: shows a header's value in an error; it may be a credential.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use thiserror::Error;

/// The most headers a request may bring.
pub const HEADERS_MAX: usize = 64;

/// The most bytes that all names and values may have together.
pub const HEADERS_BYTES_MAX: usize = 16 * 1024;

/// How much of an unusable name is repeated in the error.
const NAME_SHOWN_CHARS: usize = 64;

/// A header that must not be sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderProblem {
    /// Not a header name.
    #[error("{name:?} is not a valid header name")]
    Name {
        /// The name, cut to a readable length.
        name: String,
    },
    /// A value with bytes other than visible ASCII, space and tab.
    #[error("the value of header `{name}` may hold only visible ASCII characters, spaces and tabs")]
    Value {
        /// The header's name.
        name: HeaderName,
    },
    /// A header that belongs to the connection or the client itself.
    #[error("header `{name}` is set by the client itself and cannot be given; leave it out")]
    Reserved {
        /// The header's name.
        name: HeaderName,
    },
    /// More than [`HEADERS_MAX`].
    #[error("at most {HEADERS_MAX} headers are allowed; `{name}` is one too many")]
    TooMany {
        /// The first header over the limit.
        name: HeaderName,
    },
    /// More than [`HEADERS_BYTES_MAX`].
    #[error("headers may have {HEADERS_BYTES_MAX} bytes in all; `{name}` goes over that")]
    TooLarge {
        /// The first header over the limit.
        name: HeaderName,
    },
}

/// Turns names and values into headers that are safe to send. A repeated name is kept each time.
///
/// # Errors
/// The first [`HeaderProblem`] found.
pub fn check_headers<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<HeaderMap, HeaderProblem> {
    let mut checked = HeaderMap::new();
    let mut bytes = 0;
    for (name, value) in headers {
        bytes += name.len() + value.len();
        let name = check_name(name)?;
        if checked.len() == HEADERS_MAX {
            return Err(HeaderProblem::TooMany { name });
        }
        if bytes > HEADERS_BYTES_MAX {
            return Err(HeaderProblem::TooLarge { name });
        }
        if is_reserved(&name) {
            return Err(HeaderProblem::Reserved { name });
        }
        match check_value(value) {
            Some(value) => checked.append(name, value),
            None => return Err(HeaderProblem::Value { name }),
        };
    }
    Ok(checked)
}

fn check_name(name: &str) -> Result<HeaderName, HeaderProblem> {
    HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| HeaderProblem::Name { name: name.chars().take(NAME_SHOWN_CHARS).collect() })
}

/// Receivers disagree on what bytes beyond ASCII mean in a header, so they are kept out.
fn check_value(value: &str) -> Option<HeaderValue> {
    if value.is_ascii() { HeaderValue::from_str(value).ok() } else { None }
}

fn is_reserved(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("proxy-")
        || matches!(
            name,
            "connection"
                | "content-length"
                | "host"
                | "keep-alive"
                | "te"
                | "trailer"
                | "transfer-encoding"
                | "upgrade"
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn problem_with(name: &str, value: &str) -> HeaderProblem {
        check_headers([("x-before", "1"), (name, value)]).expect_err(name)
    }

    #[test]
    fn ordinary_headers_pass_and_repeats_are_kept() {
        let given = [("X-Event-Id", "evt_1"), ("accept", "a"), ("Accept", "b\tc"), ("x-empty", "")];
        let headers = check_headers(given).unwrap();
        assert_eq!(headers.len(), 4);
        assert_eq!(headers["x-event-id"], "evt_1");
        let accepts: Vec<_> = headers.get_all("accept").iter().collect();
        assert_eq!(accepts, ["a", "b\tc"]);
    }

    #[test]
    fn headers_of_the_connection_are_reserved() {
        for name in [
            "Connection",
            "Keep-Alive",
            "Proxy-Authorization",
            "proxy-connection",
            "TE",
            "Trailer",
            "Transfer-Encoding",
            "Upgrade",
            "Host",
            "Content-Length",
        ] {
            let problem = problem_with(name, "x");
            assert!(matches!(problem, HeaderProblem::Reserved { .. }), "{name}: {problem}");
            assert!(problem.to_string().contains(&name.to_lowercase()), "{problem}");
        }
    }

    #[test]
    fn bad_names_and_values_are_refused_by_name() {
        for name in ["", "a b", "a:b", "é", "x\r\ny"] {
            let shown = name.to_owned();
            assert_eq!(problem_with(name, "x"), HeaderProblem::Name { name: shown });
        }
        for value in ["a\r\nb", "a\nb", "a\0b", "é", "\u{7f}"] {
            let problem = problem_with("x-secret", value);
            assert!(matches!(problem, HeaderProblem::Value { .. }), "{value:?}: {problem}");
            assert!(problem.to_string().contains("x-secret"));
        }
    }

    #[test]
    fn number_and_size_have_limits() {
        let names: Vec<_> = (0..=HEADERS_MAX).map(|n| format!("x-{n}")).collect();
        let all = || names.iter().map(|name| (name.as_str(), "1"));
        assert_eq!(check_headers(all().take(HEADERS_MAX)).unwrap().len(), HEADERS_MAX);
        let name = HeaderName::from_static("x-64");
        assert_eq!(check_headers(all()), Err(HeaderProblem::TooMany { name }));

        let value = "v".repeat(HEADERS_BYTES_MAX - 1);
        assert!(check_headers([("a", value.as_str())]).is_ok());
        let name = HeaderName::from_static("bb");
        assert_eq!(check_headers([("bb", value.as_str())]), Err(HeaderProblem::TooLarge { name }));
    }

    proptest! {
        #[test]
        fn what_passes_holds_no_line_break(name: String, value: String) {
            if let Ok(headers) = check_headers([(name.as_str(), value.as_str())]) {
                for (name, value) in &headers {
                    prop_assert!(!name.as_str().contains(['\r', '\n']));
                    prop_assert!(!value.as_bytes().contains(&b'\r') && !value.as_bytes().contains(&b'\n'));
                }
            }
        }
    }
}
