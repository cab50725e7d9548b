//! Credentials: how a client shows who it is.
//! Invariant: a credential is a header that nothing prints.
//! Never: appears in an error, a log line or `Debug`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use thiserror::Error;

use crate::headers::{HeaderProblem, check_headers};

/// What a client sends with every request to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    name: HeaderName,
    /// Marked as sensitive, so that `Debug` hides it.
    value: HeaderValue,
}

/// Why credentials cannot be sent. What they were is not said.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadCredentials {
    /// Characters that no header can carry, or none at all.
    #[error("the {what} must be visible ASCII characters, at least one")]
    Text {
        /// `token` or `value`.
        what: &'static str,
    },
    /// A user name with a colon in it.
    #[error("the user name of basic authentication must not have a colon")]
    UserName,
    /// A header that cannot be given.
    #[error(transparent)]
    Header(#[from] HeaderProblem),
}

impl Credentials {
    /// `Authorization: Bearer <token>`.
    ///
    /// # Errors
    /// [`BadCredentials`] when the token cannot stand in a header.
    pub fn bearer(token: &str) -> Result<Credentials, BadCredentials> {
        let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let value = is_token.then(|| HeaderValue::from_str(&format!("Bearer {token}")).ok()).flatten();
        Credentials::hidden(AUTHORIZATION, value.ok_or(BadCredentials::Text { what: "token" })?)
    }

    /// `Authorization: Basic …` of a user name and a password.
    ///
    /// # Errors
    /// [`BadCredentials`] when the user name has a colon.
    pub fn basic(user: &str, password: &str) -> Result<Credentials, BadCredentials> {
        if user.contains(':') {
            return Err(BadCredentials::UserName);
        }
        let value = format!("Basic {}", BASE64.encode(format!("{user}:{password}")));
        Credentials::hidden(AUTHORIZATION, HeaderValue::try_from(value).expect("base64 is visible ASCII"))
    }

    /// A header of the API's own, such as `x-api-key`.
    ///
    /// # Errors
    /// [`BadCredentials`] when that header cannot be given or its value cannot be sent.
    pub fn header(name: &str, value: &str) -> Result<Credentials, BadCredentials> {
        if value.is_empty() {
            return Err(BadCredentials::Text { what: "value" });
        }
        let checked = check_headers([(name, value)])?;
        let (name, value) = checked.into_iter().next().expect("one header was checked");
        Credentials::hidden(name.expect("a first header has its name"), value)
    }

    fn hidden(name: HeaderName, mut value: HeaderValue) -> Result<Credentials, BadCredentials> {
        value.set_sensitive(true);
        Ok(Credentials { name, value })
    }

    pub(super) fn as_header(&self) -> (HeaderName, HeaderValue) {
        (self.name.clone(), self.value.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_its_header_and_none_is_printed() {
        for (made, name, value) in [
            (Credentials::bearer("s3cret"), "authorization", "Bearer s3cret"),
            (Credentials::basic("Aladdin", "open sesame"), "authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
            (Credentials::header("X-Api-Key", "s3cret"), "x-api-key", "s3cret"),
        ] {
            let made = made.unwrap();
            let (sent_name, sent) = made.as_header();
            assert_eq!((sent_name.as_str(), sent.to_str().unwrap()), (name, value));
            let shown = format!("{made:?} {sent:?}");
            assert!(!shown.contains("s3cret") && !shown.contains("QWxh"), "{shown}");
        }
    }

    #[test]
    fn what_cannot_be_sent_is_refused_and_not_repeated() {
        for bad in [
            Credentials::bearer(""),
            Credentials::bearer("s3cret\r\nx: y"),
            Credentials::bearer("s3cret s3cret"),
            Credentials::basic("s3cret:x", "y"),
            Credentials::header("x-api-key", ""),
            Credentials::header("x-api-key", "s3cret\n"),
            Credentials::header("host", "s3cret"),
        ] {
            let problem = bad.unwrap_err();
            assert!(!format!("{problem} {problem:?}").contains("s3cret"), "{problem}");
        }
    }
}
