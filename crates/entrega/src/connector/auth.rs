//! Credentials: a token, a name and a password, or a header of the API's own.
//! Invariant: its text form is JSON, and is only ever kept sealed.
//! Never: shows a secret.

use std::fmt;

use entrega_call::{BadCredentials, Credentials};
use serde::{Deserialize, Serialize};

/// The credentials of a connector.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Auth {
    /// `Authorization: Bearer …`.
    Bearer(String),
    /// `Authorization: Basic …`.
    Basic {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A header of the API's own.
    Header {
        /// Its name.
        name: String,
        /// Its value.
        value: String,
    },
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ***", self.kind())
    }
}

/// A text that is no such thing.
#[derive(Debug, thiserror::Error)]
#[error("the stored credentials cannot be read")]
pub struct BadAuth;

impl Auth {
    /// `bearer`, `basic` or `header`.
    pub fn kind(&self) -> &'static str {
        match self {
            Auth::Bearer(_) => "bearer",
            Auth::Basic { .. } => "basic",
            Auth::Header { .. } => "header",
        }
    }

    /// The same, to be sent.
    ///
    /// # Errors
    /// When it cannot stand in a header.
    pub fn credentials(&self) -> Result<Credentials, BadCredentials> {
        match self {
            Auth::Bearer(token) => Credentials::bearer(token),
            Auth::Basic { user, password } => Credentials::basic(user, password),
            Auth::Header { name, value } => Credentials::header(name, value),
        }
    }

    /// Its text form, to be sealed.
    pub fn write(&self) -> String {
        serde_json::to_string(self).expect("texts encode")
    }

    /// Reads its text form.
    pub fn read(text: &str) -> Result<Auth, BadAuth> {
        serde_json::from_str(text).map_err(|_| BadAuth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_back_and_shows_nothing() {
        for auth in [
            Auth::Bearer("s3cret".into()),
            Auth::Basic { user: "joe".into(), password: "s3cret".into() },
            Auth::Header { name: "x-key".into(), value: "s3cret".into() },
        ] {
            assert_eq!(Auth::read(&auth.write()).unwrap(), auth);
            assert!(!format!("{auth:?}").contains("s3cret"), "{auth:?}");
            assert!(auth.credentials().is_ok());
        }
        assert!(Auth::read("{}").is_err());
    }
}
