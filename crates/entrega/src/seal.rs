//! The seal: secrets are encrypted before they are stored.
//! Invariant: what was sealed opens only with the same key and for the same context, and only unchanged.
//! Never: shows a key or a secret, or makes a key before there is something to seal.

use std::fmt;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use parking_lot::Mutex;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use serde::{Deserialize, Serialize};

use crate::chance::secret_bytes;
use crate::secret::Secret;

/// The variable with the key that secrets are sealed with.
pub const SECRET_KEY_VARIABLE: &str = "ENTREGA_SECRET_KEY";
const KEY_BYTES: usize = 32;
const FILE_NAME: &str = "secret-key";
/// What a sealed text begins with, so that another way to seal can come beside this one.
const VERSION: &str = "v1.";

/// A secret that only the holder of the key can read; one text, safe to store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Sealed(String);

/// Why a secret could not be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealError {
    /// The variable holds no key.
    #[error(
        "{SECRET_KEY_VARIABLE}: must be 32 random bytes, as base64 or as 64 hexadecimal digits; `openssl rand -hex 32` \
         makes such a key"
    )]
    BadKey,
    /// The file holds no key.
    #[error(
        "{}: holds no key; put the key back that was there, or remove the file if no secret was sealed with it",
        path.display()
    )]
    BadFile {
        /// Which file.
        path: PathBuf,
    },
    /// The file cannot be read or written.
    #[error("{}: {source}; it keeps the key that secrets are sealed with, unless {SECRET_KEY_VARIABLE} is set", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// Another key, another context, or not as it was written.
    #[error(
        "a stored secret cannot be opened: it was sealed with another key, or is damaged. Set {SECRET_KEY_VARIABLE} \
         alike on all nodes, or put the file `{FILE_NAME}` that it was sealed with back into the data directory"
    )]
    Locked,
}

/// Seals and opens. Its key is in the environment, or in a file that is made when it is first needed.
pub struct Seal {
    key: Mutex<Option<LessSafeKey>>,
    file: Option<PathBuf>,
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("file", &self.file).finish_non_exhaustive()
    }
}

impl Seal {
    /// With this key.
    pub fn from_key(key: [u8; 32]) -> Seal {
        Seal { key: Mutex::new(Some(usable(&key))), file: None }
    }

    /// With the key in `variable` (what [`SECRET_KEY_VARIABLE`] says), or else with the one in the file `secret-key` of
    /// the data directory.
    ///
    /// # Errors
    /// A variable that holds no key. The file is looked at when it is needed.
    pub fn of(variable: Option<&str>, data: &Path) -> Result<Seal, SealError> {
        match variable {
            Some(text) => parse_key(text).map(Seal::from_key).ok_or(SealError::BadKey),
            None => Ok(Seal { key: Mutex::new(None), file: Some(data.join(FILE_NAME)) }),
        }
    }

    /// Seals a secret for a context, such as the name of what it belongs to: moved elsewhere it does not open.
    ///
    /// # Errors
    /// The file of the key cannot be read or made.
    pub fn seal(&self, secret: &str, context: &str) -> Result<Sealed, SealError> {
        let nonce: [u8; NONCE_LEN] = secret_bytes();
        let mut bytes = secret.as_bytes().to_vec();
        self.with_key(
            |file| kept_key(file)?.map_or_else(|| keep_new_key(file), Ok),
            |key| {
                let aad = Aad::from(context.as_bytes());
                key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut bytes)
                    .expect("a secret is shorter than 256 GiB");
            },
        )?;
        let whole = [nonce.as_slice(), &bytes].concat();
        Ok(Sealed(format!("{VERSION}{}", STANDARD_NO_PAD.encode(whole))))
    }

    /// Opens what was sealed for this context.
    ///
    /// # Errors
    /// [`SealError::Locked`] if it does not open; otherwise the file of the key cannot be read.
    pub fn open(&self, sealed: &Sealed, context: &str) -> Result<Secret, SealError> {
        let bytes = sealed.0.strip_prefix(VERSION).and_then(|text| STANDARD_NO_PAD.decode(text).ok());
        let bytes = bytes.ok_or(SealError::Locked)?;
        let (nonce, text) = bytes.split_first_chunk::<NONCE_LEN>().ok_or(SealError::Locked)?;
        let mut text = text.to_vec();
        // Where no key was ever made, nothing was sealed with it.
        let opened = self.with_key(
            |file| kept_key(file)?.ok_or(SealError::Locked),
            |key| {
                let aad = Aad::from(context.as_bytes());
                let opened = key.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut text);
                opened.ok().and_then(|bytes| std::str::from_utf8(bytes).ok()).map(Secret::new)
            },
        )?;
        opened.ok_or(SealError::Locked)
    }

    fn with_key<T>(
        &self,
        find: impl FnOnce(&Path) -> Result<[u8; KEY_BYTES], SealError>,
        work: impl FnOnce(&LessSafeKey) -> T,
    ) -> Result<T, SealError> {
        let mut key = self.key.lock();
        if let Some(key) = &*key {
            return Ok(work(key));
        }
        let file = self.file.as_deref().expect("a seal without a key has a file for it");
        Ok(work(key.insert(usable(&find(file)?))))
    }
}

/// Whether a text is a key.
pub fn is_key(text: &str) -> bool {
    parse_key(text).is_some()
}

fn usable(key: &[u8; KEY_BYTES]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key).expect("the cipher takes 32 bytes"))
}

fn parse_key(text: &str) -> Option<[u8; KEY_BYTES]> {
    let text = text.trim();
    match text.len() == 2 * KEY_BYTES {
        true => {
            let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
            let pairs = text.as_bytes().chunks_exact(2);
            let bytes: Option<Vec<u8>> = pairs.map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect();
            bytes?.try_into().ok()
        }
        false => STANDARD_NO_PAD.decode(text.trim_end_matches('=')).ok()?.try_into().ok(),
    }
}

/// The key in the file, if there is one.
fn kept_key(path: &Path) -> Result<Option<[u8; KEY_BYTES]>, SealError> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse_key(&text).map(Some).ok_or_else(|| SealError::BadFile { path: path.to_owned() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SealError::File { path: path.to_owned(), source }),
    }
}

fn keep_new_key(path: &Path) -> Result<[u8; KEY_BYTES], SealError> {
    let key = secret_bytes();
    write_key(path, &key).map_err(|source| SealError::File { path: path.to_owned(), source })?;
    Ok(key)
}

fn write_key(path: &Path, key: &[u8; KEY_BYTES]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    // Never over a file that somebody else has just made: what was sealed with its key would be lost.
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{}", STANDARD.encode(key))?;
    file.sync_all()?;
    match path.parent() {
        Some(folder) => std::fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const CONTEXT: &str = "endpoint/acme/default";

    fn opened(seal: &Seal, sealed: &Sealed, context: &str) -> Option<String> {
        match seal.open(sealed, context) {
            Ok(secret) => Some(secret.reveal().to_owned()),
            Err(SealError::Locked) => None,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn a_sealed_secret_opens_and_no_two_seals_are_alike() {
        let seal = Seal::from_key([7; 32]);
        let (one, other) = (seal.seal("whsec_abc", CONTEXT).unwrap(), seal.seal("whsec_abc", CONTEXT).unwrap());
        assert_ne!(one, other);
        assert_eq!(opened(&seal, &one, CONTEXT).as_deref(), Some("whsec_abc"));
        let text = serde_json::to_string(&one).unwrap();
        assert!(text.starts_with("\"v1.") && !text.contains("whsec"), "{text}");
        assert_eq!(serde_json::from_str::<Sealed>(&text).unwrap(), one);
    }

    #[test]
    fn another_key_another_context_or_any_changed_byte_opens_nothing() {
        let seal = Seal::from_key([7; 32]);
        let sealed = seal.seal("whsec_abc", CONTEXT).unwrap();
        assert_eq!(opened(&Seal::from_key([8; 32]), &sealed, CONTEXT), None);
        assert_eq!(opened(&seal, &sealed, "endpoint/acme/other"), None);
        let bytes = STANDARD_NO_PAD.decode(&sealed.0[VERSION.len()..]).unwrap();
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 1;
            let changed = Sealed(format!("{VERSION}{}", STANDARD_NO_PAD.encode(changed)));
            assert_eq!(opened(&seal, &changed, CONTEXT), None, "byte {place}");
        }
        for text in ["", "v1.", "v1.AAAA", "v1.!", "v2.AAAA", "whsec_abc"] {
            assert_eq!(opened(&seal, &Sealed(text.into()), CONTEXT), None, "{text}");
        }
        let told = seal.open(&Sealed("v1.".into()), CONTEXT).unwrap_err().to_string();
        assert!(told.contains("ENTREGA_SECRET_KEY alike on all nodes"), "{told}");
    }

    #[test]
    fn a_key_is_read_from_base64_and_from_hexadecimal_digits_and_nothing_else() {
        let folder = Path::new("/nowhere");
        let hex = "0f".repeat(32);
        let base64 = STANDARD.encode([0x0f; 32]);
        let sealed = Seal::from_key([0x0f; 32]).seal("s", CONTEXT).unwrap();
        for good in [hex.as_str(), &hex.to_uppercase(), &base64, base64.trim_end_matches('=')] {
            let seal = Seal::of(Some(good), folder).unwrap();
            assert_eq!(opened(&seal, &sealed, CONTEXT).as_deref(), Some("s"), "{good}");
        }
        for bad in
            ["", "short", &hex[2..], &hex.replace('f', "g"), &STANDARD.encode([1; 31]), &STANDARD.encode([1; 33])]
        {
            let error = Seal::of(Some(bad), folder).unwrap_err();
            assert!(matches!(error, SealError::BadKey), "{bad}: {error}");
            assert!(bad.is_empty() || !error.to_string().contains(bad), "{error}");
        }
    }

    #[test]
    fn a_key_of_its_own_is_made_at_first_need_for_the_owner_alone_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let file = data.join("secret-key");
        let seal = Seal::of(None, &data).unwrap();
        let foreign = Seal::from_key([7; 32]).seal("s", CONTEXT).unwrap();
        assert_eq!(opened(&seal, &foreign, CONTEXT), None);
        assert!(!file.exists(), "nothing was sealed yet");
        let sealed = seal.seal("whsec_abc", CONTEXT).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let again = Seal::of(None, &data).unwrap();
        assert_eq!(opened(&again, &sealed, CONTEXT).as_deref(), Some("whsec_abc"));
        std::fs::write(&file, "").unwrap();
        let error = Seal::of(None, &data).unwrap().seal("s", CONTEXT).unwrap_err();
        assert!(matches!(&error, SealError::BadFile { path } if *path == file), "{error}");
    }
}
