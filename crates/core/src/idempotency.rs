//! Idempotency keys: the names under which repeating something is safe.
//! Invariant: a key that exists reads back as itself, and fits into a header as it is.
//! Never: makes a key up or mends one; a bad part is refused by name.
//!
//! A key is `<domain>:<user>:<entity>:<operation>:<version>`. Domain, user, entity and version are one segment each.
//! The operation is whatever stands between entity and version, in one segment or several: that of
//! `workflow:user_123:run_456:module:resume:v1` is `module:resume`.
//!
//! ```
//! use entrega_core::idempotency::IdempotencyKey;
//!
//! let key = IdempotencyKey::new("workflow", "user_123", "run_456", "module:resume", 1)?;
//! assert_eq!(key.to_string(), "workflow:user_123:run_456:module:resume:v1");
//! assert_eq!("event:user_9:evt_1:project:qscore:v1".parse::<IdempotencyKey>()?.operation(), "project:qscore");
//! # Ok::<(), entrega_core::idempotency::BadKey>(())
//! ```

use std::fmt;
use std::str::FromStr;

/// The longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 255;

/// How much of a bad text is repeated in its error.
const SHOWN_CHARS_MAX: usize = 64;

/// A key in its parts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    domain: String,
    user: String,
    entity: String,
    operation: String,
    version: u32,
}

/// A part of a key, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// What kind of work it is.
    Domain,
    /// Whom it is for.
    User,
    /// What it is done to.
    Entity,
    /// What is done.
    Operation,
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyPart::Domain => "domain",
            KeyPart::User => "user",
            KeyPart::Entity => "entity",
            KeyPart::Operation => "operation",
        })
    }
}

/// Why a text is no key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKey {
    /// A part that is empty or holds a character that keys cannot have.
    #[error("the {part} '{text}' cannot stand in an idempotency key: use visible ASCII characters, {}", colons(*part))]
    Part {
        /// The part.
        part: KeyPart,
        /// Its text, cut to a readable length.
        text: String,
    },
    /// The last segment is no version.
    #[error("'{text}' is no version of an idempotency key: end the key with v and a number from 0, such as v1")]
    Version {
        /// The segment, cut to a readable length.
        text: String,
    },
    /// Fewer than five segments.
    #[error(
        "an idempotency key has at least five parts, <domain>:<user>:<entity>:<operation>:<version>; this has {count}"
    )]
    TooFewParts {
        /// How many there are.
        count: usize,
    },
    /// Longer than [`KEY_BYTES_MAX`].
    #[error("the idempotency key has {bytes} bytes; at most {KEY_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
}

/// Only an operation may have several segments.
fn colons(part: KeyPart) -> &'static str {
    match part {
        KeyPart::Operation => "and a colon only between two of its words",
        KeyPart::Domain | KeyPart::User | KeyPart::Entity => "but no colon",
    }
}

impl IdempotencyKey {
    /// A key of these parts.
    ///
    /// # Errors
    /// [`BadKey`], for the first part that does not fit.
    pub fn new(
        domain: &str,
        user: &str,
        entity: &str,
        operation: &str,
        version: u32,
    ) -> Result<IdempotencyKey, BadKey> {
        let key = IdempotencyKey {
            domain: checked(KeyPart::Domain, domain)?,
            user: checked(KeyPart::User, user)?,
            entity: checked(KeyPart::Entity, entity)?,
            operation: checked(KeyPart::Operation, operation)?,
            version,
        };
        match key.to_string().len() {
            bytes if bytes > KEY_BYTES_MAX => Err(BadKey::TooLong { bytes }),
            _ => Ok(key),
        }
    }

    /// What kind of work it is: `workflow`, `event`.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Whom it is for.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// What it is done to.
    pub fn entity(&self) -> &str {
        &self.entity
    }

    /// What is done, with colons where it has several words.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// Which version of the operation's meaning.
    pub fn version(&self) -> u32 {
        self.version
    }
}

fn checked(part: KeyPart, text: &str) -> Result<String, BadKey> {
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
    let fits = match part {
        KeyPart::Operation => text.split(':').all(is_word),
        KeyPart::Domain | KeyPart::User | KeyPart::Entity => is_word(text),
    };
    if fits { Ok(text.to_owned()) } else { Err(BadKey::Part { part, text: shown(text) }) }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IdempotencyKey { domain, user, entity, operation, version } = self;
        write!(f, "{domain}:{user}:{entity}:{operation}:v{version}")
    }
}

impl FromStr for IdempotencyKey {
    type Err = BadKey;
    fn from_str(text: &str) -> Result<IdempotencyKey, BadKey> {
        if text.len() > KEY_BYTES_MAX {
            return Err(BadKey::TooLong { bytes: text.len() });
        }
        let count = text.split(':').count();
        let mut first = text.splitn(4, ':');
        let (Some(domain), Some(user), Some(entity), Some(rest)) =
            (first.next(), first.next(), first.next(), first.next())
        else {
            return Err(BadKey::TooFewParts { count });
        };
        let (operation, version) = rest.rsplit_once(':').ok_or(BadKey::TooFewParts { count })?;
        IdempotencyKey::new(domain, user, entity, operation, parse_version(version)?)
    }
}

/// One spelling per number, so that a key reads back as it was written.
fn parse_version(text: &str) -> Result<u32, BadKey> {
    let bad = || BadKey::Version { text: shown(text) };
    let digits = text.strip_prefix('v').ok_or_else(bad)?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    if is_plain { digits.parse().map_err(|_| bad()) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(text: &str) -> (String, String, String, String, u32) {
        let key: IdempotencyKey = text.parse().unwrap();
        (key.domain, key.user, key.entity, key.operation, key.version)
    }

    #[test]
    fn the_operation_is_what_stands_between_entity_and_version() {
        let owned = |a: &str, b: &str, c: &str, d: &str, version| (a.into(), b.into(), c.into(), d.into(), version);
        assert_eq!(
            parts("workflow:user_123:run_456:module:resume:v1"),
            owned("workflow", "user_123", "run_456", "module:resume", 1)
        );
        assert_eq!(parts("mail:u:out_1:send:v12"), owned("mail", "u", "out_1", "send", 12));
        assert_eq!(parts("event:u:evt_1:project:qscore:v0"), owned("event", "u", "evt_1", "project:qscore", 0));
    }

    #[test]
    fn a_bad_key_says_which_part_and_what_would_be_right() {
        for (text, words) in [
            ("", "has 1"),
            ("a:b:c:v1", "has 4"),
            (":u:e:o:v1", "the domain ''"),
            ("d::e:o:v1", "the user ''"),
            ("d:u: e:o:v1", "the entity ' e'"),
            ("d:u:e::v1", "the operation ''"),
            ("d:u:e:a::b:v1", "the operation 'a::b'"),
            ("d:u:é:o:v1", "the entity 'é'"),
            ("d:u:e:o:1", "such as v1"),
            ("d:u:e:o:v01", "'v01'"),
            ("d:u:e:o:v", "'v'"),
            ("d:u:e:o:v4294967296", "'v4294967296'"),
        ] {
            let problem = text.parse::<IdempotencyKey>().expect_err(text).to_string();
            assert!(problem.contains(words), "{text:?}: {problem}");
        }
        let problem = IdempotencyKey::new("d", "u:v", "e", "o", 1).unwrap_err();
        assert_eq!(problem, BadKey::Part { part: KeyPart::User, text: "u:v".into() });
    }

    #[test]
    fn length_is_limited_to_the_byte() {
        let longest = "x".repeat(KEY_BYTES_MAX - "d:u::o:v1".len());
        let key = IdempotencyKey::new("d", "u", &longest, "o", 1).unwrap();
        assert_eq!(key.to_string().len(), KEY_BYTES_MAX);
        let problem = IdempotencyKey::new("d", "u", &format!("{longest}x"), "o", 1).unwrap_err();
        assert_eq!(problem, BadKey::TooLong { bytes: KEY_BYTES_MAX + 1 });
        assert_eq!(format!("{key}x").parse::<IdempotencyKey>(), Err(BadKey::TooLong { bytes: KEY_BYTES_MAX + 1 }));
    }

    proptest! {
        #[test]
        fn what_was_built_reads_back(
            words in prop::array::uniform3("[!-9;-~]{1,20}"),
            operation in "[!-9;-~]{1,10}(:[!-9;-~]{1,10}){0,3}",
            version: u32,
        ) {
            let key = IdempotencyKey::new(&words[0], &words[1], &words[2], &operation, version).unwrap();
            prop_assert_eq!(key.to_string().parse::<IdempotencyKey>(), Ok(key));
        }

        #[test]
        fn what_reads_is_written_the_same(text in "[a-v:]{0,12}:v[0-9]{1,3}") {
            if let Ok(key) = text.parse::<IdempotencyKey>() {
                prop_assert_eq!(key.to_string(), text);
            }
        }
    }
}
