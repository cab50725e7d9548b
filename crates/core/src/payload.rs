//! Payloads: what jobs carry.
//! Invariant: the product that made one reads it back as it was; to everybody else it is a name and bytes.
//! Never: is looked into by a rule.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A product's own form of what its jobs carry: plain data, which is stored without the names of its fields. So none of them may
/// be left out (`skip_serializing_if`), flattened or untagged.
pub trait Content: Serialize + DeserializeOwned {
    /// The name of the product.
    const KIND: &'static str;
}

/// What a job carries.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    kind: Kind,
    content: Bytes,
}

/// A payload that its product cannot read: it was written by another program, or is of another product.
#[derive(Debug, thiserror::Error)]
#[error("the job carries no {wanted} that can be read; it was stored as {found}")]
pub struct BadPayload {
    wanted: &'static str,
    found: String,
}

impl Payload {
    /// A payload of a product.
    ///
    /// # Panics
    /// If the content is more than plain data, which always encodes.
    pub fn of<C: Content>(content: &C) -> Payload {
        const { assert!(C::KIND.len() <= KIND_BYTES_MAX, "the name of a product has at most 15 bytes") };
        let content = postcard::to_stdvec(content).expect("plain data encodes");
        Payload { kind: Kind::new(C::KIND), content: content.into() }
    }

    /// A payload out of a record that was written from one; `None` if no product can have that name.
    pub fn kept(kind: &str, content: Bytes) -> Option<Payload> {
        Some(Payload { kind: Kind::try_new(kind)?, content })
    }

    /// Bytes for a channel that a program brought along; only that channel reads them.
    pub fn opaque(content: impl Into<Bytes>) -> Payload {
        Payload { kind: Kind::new("opaque"), content: content.into() }
    }

    /// The name of the product that it belongs to.
    pub fn kind(&self) -> &str {
        self.kind.as_str()
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.content
    }

    /// What a product put in.
    pub fn read<C: Content>(&self) -> Result<C, BadPayload> {
        self.view(C::KIND)
    }

    /// What the product of that name put in, in a form that may borrow from the payload instead of copying.
    pub fn view<'a, V: Deserialize<'a>>(&'a self, wanted: &'static str) -> Result<V, BadPayload> {
        let bad = || BadPayload { wanted, found: self.kind().to_owned() };
        match self.kind() == wanted {
            true => postcard::from_bytes(&self.content).map_err(|_| bad()),
            false => Err(bad()),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.kind(), self.content.len())
    }
}

/// The name of a product, without an allocation of its own: every job has one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    bytes: [u8; KIND_BYTES_MAX],
    length: u8,
}

/// Bytes of a product's name.
const KIND_BYTES_MAX: usize = 15;

impl Kind {
    fn new(name: &str) -> Kind {
        Kind::try_new(name).expect("the name of a product is short")
    }

    fn try_new(name: &str) -> Option<Kind> {
        let mut bytes = [0; KIND_BYTES_MAX];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(Kind { bytes, length: name.len() as u8 })
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("it was made of a text")
    }
}

/// As it is stored: in JSON, bytes are base64.
#[derive(Serialize, Deserialize)]
struct Stored<'a, C> {
    kind: std::borrow::Cow<'a, str>,
    content: C,
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = self.kind().into();
        match serializer.is_human_readable() {
            true => Stored { kind, content: BASE64.encode(&self.content) }.serialize(serializer),
            false => Stored { kind, content: &self.content }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Payload, D::Error> {
        let (kind, content) = match deserializer.is_human_readable() {
            true => {
                let Stored::<String> { kind, content } = Stored::deserialize(deserializer)?;
                (kind, BASE64.decode(content).map_err(D::Error::custom)?.into())
            }
            false => {
                let Stored::<Bytes> { kind, content } = Stored::deserialize(deserializer)?;
                (kind, content)
            }
        };
        let kind = Kind::try_new(&kind).ok_or_else(|| D::Error::custom("a product's name has at most 15 bytes"))?;
        Ok(Payload { kind, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Greeting {
        text: String,
    }

    impl Content for Greeting {
        const KIND: &'static str = "greeting";
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Other {}

    impl Content for Other {
        const KIND: &'static str = "other";
    }

    #[test]
    fn what_a_product_put_in_it_gets_back_and_nobody_else_does() {
        let greeting = Greeting { text: "olá".into() };
        let payload = Payload::of(&greeting);
        assert_eq!((payload.kind(), payload.read::<Greeting>().unwrap()), ("greeting", greeting));
        let error = payload.read::<Other>().unwrap_err().to_string();
        assert!(error.contains("no other") && error.contains("stored as greeting"), "{error}");
        let cut = Payload { content: payload.content.slice(..1), kind: payload.kind };
        assert!(cut.read::<Greeting>().is_err());
        assert!(!format!("{payload:?}").contains("olá"), "what is carried may be secret");
    }

    #[test]
    fn it_reads_back_from_records_and_from_json() {
        for payload in [Payload::of(&Greeting { text: "olá".into() }), Payload::opaque(&b"\x00\xff"[..])] {
            let record = postcard::to_stdvec(&payload).unwrap();
            assert_eq!(postcard::from_bytes::<Payload>(&record).unwrap(), payload);
            let json = serde_json::to_string(&payload).unwrap();
            assert_eq!(serde_json::from_str::<Payload>(&json).unwrap(), payload);
        }
        assert!(serde_json::from_str::<Payload>(r#"{"kind":"a name that is too long","content":""}"#).is_err());
    }
}
