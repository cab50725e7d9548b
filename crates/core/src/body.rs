//! Bodies: bytes as callers gave them.
//! Invariant: exact in records, readable in JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes to send. Readable in JSON: text as a string, anything else as `{"base64": …}`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Body(pub Bytes);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum BodyJson {
    Text(String),
    Binary { base64: String },
}

impl Serialize for Body {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if !serializer.is_human_readable() {
            return serializer.serialize_bytes(&self.0);
        }
        // Control characters would be written out six times as long.
        let is_text = |text: &&str| text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'));
        match std::str::from_utf8(&self.0).ok().filter(is_text) {
            Some(text) => serializer.serialize_str(text),
            None => BodyJson::Binary { base64: BASE64.encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Body {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Body, D::Error> {
        if !deserializer.is_human_readable() {
            return Bytes::deserialize(deserializer).map(Body);
        }
        match BodyJson::deserialize(deserializer)? {
            BodyJson::Text(text) => Ok(Body(text.into())),
            BodyJson::Binary { base64 } => {
                BASE64.decode(base64).map(|bytes| Body(bytes.into())).map_err(D::Error::custom)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_stay_readable_in_json_and_exact_in_records() {
        for (bytes, json) in [
            (&b"{\"a\":1}"[..], r#""{\"a\":1}""#),
            (&[0xff, 0x00][..], r#"{"base64":"/wA="}"#),
            (&[0, 0][..], r#"{"base64":"AAA="}"#),
        ] {
            let body = Body(Bytes::copy_from_slice(bytes));
            assert_eq!(serde_json::to_string(&body).unwrap(), json);
            assert_eq!(serde_json::from_str::<Body>(json).unwrap(), body);
            let record = postcard::to_stdvec(&body).unwrap();
            assert_eq!(postcard::from_bytes::<Body>(&record).unwrap(), body);
        }
    }
}
