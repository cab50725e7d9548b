//! Signatures of webhooks: how they are made, and how a receiver checks them.
//! Invariant: a check looks at every secret and every signature and takes as long wherever the difference is, so that
//! its duration tells nothing.
//! Never: shows a secret, reads a clock, draws chance.
//!
//! Two forms go out side by side. `X-Signature` covers the body; its key is the whole text of the secret. The headers of
//! [Standard Webhooks](https://www.standardwebhooks.com) cover an id, a time and the body, so that an old call cannot be
//! sent again for ever; their key is what stands in base64 after `whsec_`.
//!
//! ```
//! use entrega_core::webhook::{self, WebhookSecret};
//!
//! let secret: WebhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".parse()?;
//! let signature = webhook::sign(&secret, b"{}");
//! assert!(webhook::verify(std::slice::from_ref(&secret), b"{}", Some(&signature)).is_ok());
//! assert!(webhook::verify(&[secret], b"{ }", Some(&signature)).is_err());
//! # Ok::<(), webhook::BadSecret>(())
//! ```

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::STANDARD as BASE64;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};

use crate::time::{Time, format_duration};

/// The header with the signature of the body.
pub const X_SIGNATURE: &str = "X-Signature";
/// The header with the id of a message, in the Standard form.
pub const WEBHOOK_ID: &str = "webhook-id";
/// The header with the time of an attempt in seconds since 1970, in the Standard form.
pub const WEBHOOK_TIMESTAMP: &str = "webhook-timestamp";
/// The header with the signatures of the two and the body, in the Standard form.
pub const WEBHOOK_SIGNATURE: &str = "webhook-signature";

const SECRET_PREFIX: &str = "whsec_";
/// The shortest secret that somebody may bring along.
pub const SECRET_CHARS_MIN: usize = 16;
/// The longest.
pub const SECRET_CHARS_MAX: usize = 128;
const ALPHANUMERICS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
const HEX_PREFIX: &str = "sha256=";
const STANDARD_VERSION: &str = "v1,";
/// More than any rotation needs; a stranger could otherwise make us compare for long.
const SIGNATURES_MAX: usize = 16;
const ID_CHARS_MAX: usize = 256;

/// Secrets are written by hand too: with or without padding, and whatever is left in the last bits.
const LENIENT_BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

type Digest = [u8; 32];

/// What a sender and a receiver share: 16 to 128 visible ASCII characters.
///
/// Equality takes the same time wherever two of the same length differ. `Debug` shows nothing of it, and there is no
/// `Display`: who wants the text says [`expose`](WebhookSecret::expose).
#[derive(Clone)]
pub struct WebhookSecret(String);

impl WebhookSecret {
    /// `whsec_` and 32 alphanumerics, from bytes nobody can guess.
    ///
    /// A character takes two bytes: 65 536 is no multiple of 62, but what that favours is too little to help anybody.
    pub fn from_random(bytes: [u8; 64]) -> WebhookSecret {
        let numbers = bytes.chunks_exact(2).map(|pair| usize::from(u16::from_le_bytes([pair[0], pair[1]])));
        let characters = numbers.map(|number| char::from(ALPHANUMERICS[number % ALPHANUMERICS.len()]));
        WebhookSecret(SECRET_PREFIX.chars().chain(characters).collect())
    }

    /// The text, for storing it and for showing it once.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What follows `whsec_`, decoded from base64. A secret that is not of that form is its own key, byte for byte. The
    /// libraries of Standard Webhooks read every text as base64; such a secret must be given to them as bytes.
    fn standard_key(&self) -> Cow<'_, [u8]> {
        let decoded = self.0.strip_prefix(SECRET_PREFIX).and_then(|rest| LENIENT_BASE64.decode(rest).ok());
        decoded.map_or(Cow::Borrowed(self.0.as_bytes()), Cow::Owned)
    }
}

impl FromStr for WebhookSecret {
    type Err = BadSecret;
    fn from_str(text: &str) -> Result<WebhookSecret, BadSecret> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadSecret::Character);
        }
        match text.len() {
            SECRET_CHARS_MIN..=SECRET_CHARS_MAX => Ok(WebhookSecret(text.to_owned())),
            length => Err(BadSecret::Length { length }),
        }
    }
}

impl PartialEq for WebhookSecret {
    fn eq(&self, other: &WebhookSecret) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for WebhookSecret {}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WebhookSecret(***)")
    }
}

/// A text that cannot be a secret. The text is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSecret {
    /// Too short to be secret, or too long to be one.
    #[error(
        "a webhook secret has {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} characters, not {length}; \
         `entrega webhook new-secret` makes one"
    )]
    Length {
        /// How many it has.
        length: usize,
    },
    /// A space, a control character, or one outside of ASCII.
    #[error("a webhook secret has visible ASCII characters only, no spaces; `entrega webhook new-secret` makes one")]
    Character,
}

/// Why a signature was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSignature {
    /// The header is not there, or empty.
    #[error("the header {header} is missing")]
    Missing {
        /// The header.
        header: &'static str,
    },
    /// The header is there, and not what it should be.
    #[error("the header {header} is malformed; it should be {expected}")]
    Malformed {
        /// The header.
        header: &'static str,
        /// What would be right.
        expected: &'static str,
    },
    /// The signature is right, but it was made too long ago.
    #[error("it was signed {} ago, and {} are allowed", format_duration(*age), format_duration(*tolerance))]
    TooOld {
        /// How long ago.
        age: Duration,
        /// How long is allowed.
        tolerance: Duration,
    },
    /// The signature is right, but it is from the future: one of the two clocks is wrong.
    #[error("it was signed {} ahead of now, and {} are allowed", format_duration(*ahead), format_duration(*tolerance))]
    TooNew {
        /// How far ahead.
        ahead: Duration,
        /// How far is allowed.
        tolerance: Duration,
    },
    /// The body was changed, or somebody else's secret signed it.
    #[error("the signature fits none of the secrets: the body was changed on its way, or another secret signed it")]
    Mismatch,
}

/// The value of `X-Signature`: `sha256=` and the HMAC of the body in hexadecimal. During a rotation the newest secret
/// signs, for there is room for one signature.
pub fn sign(secret: &WebhookSecret, body: &[u8]) -> String {
    let digits = body_digest(secret, body).map(|byte| format!("{byte:02x}"));
    format!("{HEX_PREFIX}{}", digits.concat())
}

/// The value of `webhook-signature` with one signature. The id must be one of [`is_message_id`].
pub fn sign_standard(secret: &WebhookSecret, id: &str, timestamp_seconds: u64, body: &[u8]) -> String {
    let digest = standard_digest(secret, id, &timestamp_seconds.to_string(), body);
    format!("{STANDARD_VERSION}{}", BASE64.encode(digest))
}

/// The value of `webhook-signature` with a signature of every secret, so that a receiver may know either one of a
/// rotation.
pub fn sign_standard_all(secrets: &[WebhookSecret], id: &str, timestamp_seconds: u64, body: &[u8]) -> String {
    let signatures = secrets.iter().map(|secret| sign_standard(secret, id, timestamp_seconds, body));
    signatures.collect::<Vec<_>>().join(" ")
}

/// Whether a text can be a `webhook-id`: 1 to 256 visible ASCII characters, none of them a full stop. What is signed is
/// `id.timestamp.body`; an id with a full stop could pass for another id with another time.
pub fn is_message_id(id: &str) -> bool {
    (1..=ID_CHARS_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'.')
}

/// Checks the header `X-Signature` of a body, given as the bytes that came. One fitting secret is enough.
pub fn verify(secrets: &[WebhookSecret], body: &[u8], x_signature: Option<&str>) -> Result<(), BadSignature> {
    let header = present(X_SIGNATURE, x_signature)?;
    let given = header
        .strip_prefix(HEX_PREFIX)
        .and_then(from_hex)
        .ok_or(BadSignature::Malformed { header: X_SIGNATURE, expected: "sha256= and 64 hexadecimal digits" })?;
    accept_any(secrets.iter().map(|secret| body_digest(secret, body).ct_eq(&given)))
}

/// The headers of the Standard form, as they came.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandardHeaders<'a> {
    /// `webhook-id`
    pub id: Option<&'a str>,
    /// `webhook-timestamp`
    pub timestamp: Option<&'a str>,
    /// `webhook-signature`: one or more signatures with spaces between them
    pub signature: Option<&'a str>,
}

/// How far the time of a signature may be from now, before and after.
#[derive(Clone, Copy, Debug)]
pub struct Freshness {
    /// Now.
    pub now: Time,
    /// How far; five minutes are usual.
    pub tolerance: Duration,
}

/// Checks the headers of the Standard form. One signature that fits one secret is enough; signatures of other versions
/// than `v1` are passed over. The age, if asked for, is judged last, so that "too old" is said of genuine calls only.
pub fn verify_standard(
    secrets: &[WebhookSecret],
    headers: &StandardHeaders<'_>,
    body: &[u8],
    freshness: Option<Freshness>,
) -> Result<(), BadSignature> {
    let id = read_id(headers)?;
    let (timestamp, seconds) = read_timestamp(headers)?;
    let given = read_signatures(headers)?;
    let pairs = secrets.iter().flat_map(|secret| {
        let expected = standard_digest(secret, id, timestamp, body);
        given.iter().map(move |given| expected.ct_eq(given))
    });
    accept_any(pairs)?;
    freshness.map_or(Ok(()), |freshness| check_age(seconds, freshness))
}

/// Looks at all of them, also after one that fits.
fn accept_any(comparisons: impl Iterator<Item = Choice>) -> Result<(), BadSignature> {
    let fits = comparisons.fold(Choice::from(0), |any, one| any | one);
    if fits.into() { Ok(()) } else { Err(BadSignature::Mismatch) }
}

fn present<'a>(header: &'static str, value: Option<&'a str>) -> Result<&'a str, BadSignature> {
    value.map(str::trim).filter(|value| !value.is_empty()).ok_or(BadSignature::Missing { header })
}

fn read_id<'a>(headers: &StandardHeaders<'a>) -> Result<&'a str, BadSignature> {
    let id = present(WEBHOOK_ID, headers.id)?;
    let expected = "1 to 256 visible ASCII characters without a full stop";
    is_message_id(id).then_some(id).ok_or(BadSignature::Malformed { header: WEBHOOK_ID, expected })
}

/// The text too: it is what was signed.
fn read_timestamp<'a>(headers: &StandardHeaders<'a>) -> Result<(&'a str, u64), BadSignature> {
    let text = present(WEBHOOK_TIMESTAMP, headers.timestamp)?;
    // `parse` would take a sign as well.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let expected = "whole seconds since 1970, in digits";
    let seconds = digits.and_then(|digits| digits.parse().ok());
    seconds.map(|seconds| (text, seconds)).ok_or(BadSignature::Malformed { header: WEBHOOK_TIMESTAMP, expected })
}

fn read_signatures(headers: &StandardHeaders<'_>) -> Result<Vec<Digest>, BadSignature> {
    let text = present(WEBHOOK_SIGNATURE, headers.signature)?;
    let read = |signature: &str| {
        let bytes = BASE64.decode(signature.strip_prefix(STANDARD_VERSION)?).ok()?;
        Digest::try_from(bytes).ok()
    };
    let signatures: Vec<Digest> = text.split_ascii_whitespace().take(SIGNATURES_MAX).filter_map(read).collect();
    let expected = "v1, and 44 characters of base64; several have a space between them, and 16 are looked at";
    match signatures.is_empty() {
        true => Err(BadSignature::Malformed { header: WEBHOOK_SIGNATURE, expected }),
        false => Ok(signatures),
    }
}

fn check_age(seconds: u64, Freshness { now, tolerance }: Freshness) -> Result<(), BadSignature> {
    let signed = Time::from_millis(seconds.saturating_mul(1000));
    let (age, ahead) = (now.since(signed), signed.since(now));
    if age > tolerance {
        return Err(BadSignature::TooOld { age, tolerance });
    }
    if ahead > tolerance {
        return Err(BadSignature::TooNew { ahead, tolerance });
    }
    Ok(())
}

fn body_digest(secret: &WebhookSecret, body: &[u8]) -> Digest {
    digest(secret.0.as_bytes(), &[body])
}

fn standard_digest(secret: &WebhookSecret, id: &str, timestamp: &str, body: &[u8]) -> Digest {
    digest(&secret.standard_key(), &[id.as_bytes(), b".", timestamp.as_bytes(), b".", body])
}

fn digest(key: &[u8], parts: &[&[u8]]) -> Digest {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn from_hex(text: &str) -> Option<Digest> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let bytes: Vec<u8> = digits?.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect();
    // An odd number of digits ends in half a byte; 63 of them would pass for 32 bytes.
    Digest::try_from(bytes).ok().filter(|digest| text.len() == 2 * digest.len())
}

#[cfg(test)]
mod tests;
