//! Bodies: read within limits, then as JSON.
//! Invariant: size, time and depth are bounded before anything is parsed.
//! Never: reads a byte for a caller without the right key; extractors of callers come first.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, de};
use serde_json::error::Category;
use tokio::sync::OwnedSemaphorePermit;

use super::Api;
use super::problem::ApiError;
use super::traffic::{CallContext, SMALL};

/// The most levels of arrays and objects in a body.
pub(super) const DEPTH_MAX: usize = 64;

/// Characters in the reason of a discard.
const REASON_CHARS_MAX: usize = 1000;
/// How much of an encoding that is not taken is repeated.
const ENCODING_CHARS_SHOWN: usize = 40;

/// The bytes of a JSON body: within the limits, not yet parsed.
pub(super) struct JsonBytes(pub(super) Bytes);

/// A JSON body.
pub(super) struct JsonBody<T>(pub(super) T);

/// A JSON object and nothing else: serde would also read a struct from an array, by the order of its fields.
pub(super) struct Object<T>(pub(super) T);

impl<T: Default> Default for Object<T> {
    fn default() -> Object<T> {
        Object(T::default())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object<T>, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// The same for a mail, whose files may make it large. Only so many large ones are in memory at once.
pub(super) struct MailBytes {
    pub(super) json: Bytes,
    /// Held until the mail is stored.
    pub(super) _room: Option<OwnedSemaphorePermit>,
}

/// The bytes of a body of any type, within the limits.
pub(super) struct RawBytes(pub(super) Bytes);

impl FromRequest<Arc<Api>> for JsonBytes {
    type Rejection = ApiError;
    async fn from_request(request: Request, api: &Arc<Api>) -> Result<JsonBytes, ApiError> {
        check_type(request.headers())?;
        let bytes = read(request, api.limits.body_bytes_max, api.limits.body_timeout).await?;
        check_depth(&bytes)?;
        Ok(JsonBytes(bytes))
    }
}

impl FromRequest<Arc<Api>> for RawBytes {
    type Rejection = ApiError;
    async fn from_request(request: Request, api: &Arc<Api>) -> Result<RawBytes, ApiError> {
        read(request, api.limits.body_bytes_max, api.limits.body_timeout).await.map(RawBytes)
    }
}

impl FromRequest<Arc<Api>> for MailBytes {
    type Rejection = ApiError;
    async fn from_request(request: Request, api: &Arc<Api>) -> Result<MailBytes, ApiError> {
        check_type(request.headers())?;
        let limits = &api.limits;
        // A body that does not say how long it is may be as long as it likes.
        let length = request.body().size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
        let length = length.unwrap_or(limits.mail_bytes_max);
        let mut body = Reading::new(request, limits.mail_bytes_max);
        // Counted first, so that no tenant has more than its share of the large ones.
        body.fit(length)?;
        let room = match length <= limits.body_bytes_max {
            true => None,
            false => {
                let waiting = api.large_bodies.clone().acquire_owned();
                let limit = limits.body_timeout;
                let room = tokio::time::timeout(limit, waiting).await.map_err(|_| ApiError::BodyTimeout { limit })?;
                Some(room.map_err(|_| ApiError::BodyBroken)?)
            }
        };
        let json = body.read(limits.body_timeout).await?;
        check_depth(&json)?;
        Ok(MailBytes { json, _room: room })
    }
}

impl<T: DeserializeOwned> FromRequest<Arc<Api>> for JsonBody<T> {
    type Rejection = ApiError;
    async fn from_request(request: Request, api: &Arc<Api>) -> Result<JsonBody<T>, ApiError> {
        let JsonBytes(bytes) = JsonBytes::from_request(request, api).await?;
        parse(&bytes).map(|Object(body)| JsonBody(body))
    }
}

/// Why something is given up, which must be said; it is kept with it.
pub(super) fn checked_reason(reason: &str) -> Result<&str, ApiError> {
    let reason = reason.trim();
    match (1..=REASON_CHARS_MAX).contains(&reason.chars().count()) {
        true => Ok(reason),
        false => Err(ApiError::invalid("reason", format!("say why, in 1 to {REASON_CHARS_MAX} characters"))),
    }
}

/// What is compressed is not unpacked: a few bytes could become gigabytes.
fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let encoding = headers.get(CONTENT_ENCODING).map(|value| String::from_utf8_lossy(value.as_bytes()));
    if let Some(encoding) = encoding.filter(|encoding| !encoding.trim().eq_ignore_ascii_case("identity")) {
        return Err(ApiError::Encoded { encoding: encoding.chars().take(ENCODING_CHARS_SHOWN).collect() });
    }
    if is_json(headers) { Ok(()) } else { Err(ApiError::NotJson) }
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let essence = value.split_once(';').map_or(value, |(essence, _)| essence).trim();
    essence.eq_ignore_ascii_case("application/json")
        || (essence.len() > "+json".len()
            && essence.is_char_boundary(essence.len() - "+json".len())
            && essence[essence.len() - "+json".len()..].eq_ignore_ascii_case("+json"))
}

async fn read(request: Request, bytes_max: usize, limit: Duration) -> Result<Bytes, ApiError> {
    Reading::new(request, bytes_max).read(limit).await
}

/// A body that is being read, and what is counted of it; its call gives that back.
struct Reading {
    body: Body,
    bytes_max: usize,
    call: Option<Arc<CallContext>>,
    counted: usize,
}

impl Reading {
    fn new(request: Request, bytes_max: usize) -> Reading {
        let call = request.extensions().get::<Arc<CallContext>>().cloned();
        Reading { body: request.into_body(), bytes_max, call, counted: 0 }
    }

    /// Counts what a body of so many bytes has in memory, in steps: one without a length grows.
    fn fit(&mut self, bytes: usize) -> Result<(), ApiError> {
        if bytes > self.bytes_max {
            return Err(ApiError::BodyTooLarge { bytes_max: self.bytes_max });
        }
        if bytes <= self.counted.max(SMALL) {
            return Ok(());
        }
        let more = (bytes - self.counted).max(self.counted).max(SMALL);
        if let Some(call) = &self.call {
            call.count(more)?;
        }
        self.counted += more;
        Ok(())
    }

    async fn read(mut self, limit: Duration) -> Result<Bytes, ApiError> {
        if let Some(call) = &self.call {
            call.begin(None)?;
        }
        // All that is announced is going to be in memory.
        self.fit(usize::try_from(self.body.size_hint().lower()).unwrap_or(usize::MAX))?;
        tokio::time::timeout(limit, self.collect()).await.unwrap_or(Err(ApiError::BodyTimeout { limit }))
    }

    /// The whole body. Most fit in one frame, which is then not copied.
    async fn collect(mut self) -> Result<Bytes, ApiError> {
        let mut first = Bytes::new();
        let mut all = BytesMut::new();
        while let Some(frame) = self.body.frame().await {
            // Trailers are of no interest.
            let Ok(data) = frame.map_err(|_| ApiError::BodyBroken)?.into_data() else { continue };
            self.fit(first.len() + all.len() + data.len())?;
            if first.is_empty() && all.is_empty() {
                first = data;
                continue;
            }
            if all.is_empty() {
                let rest = usize::try_from(self.body.size_hint().lower()).unwrap_or(0).min(self.bytes_max);
                all.reserve(first.len() + data.len() + rest);
                all.extend_from_slice(&std::mem::take(&mut first));
            }
            all.extend_from_slice(&data);
        }
        Ok(if all.is_empty() { first } else { all.freeze() })
    }
}

/// Refuses what is nested too deeply, before a parser follows it down.
fn check_depth(json: &[u8]) -> Result<(), ApiError> {
    let (mut depth, mut in_text, mut is_escaped) = (0usize, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_text => is_escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(ApiError::TooDeep { depth_max: DEPTH_MAX });
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Reads JSON. What is no JSON is refused by line and column, what does not fit by field.
pub(super) fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(json).map_err(|error| match error.classify() {
        Category::Data => misfit::<T>(json, &error),
        // The parser says the same of a number where one of several words was expected.
        Category::Syntax if is_whole(json) => misfit::<T>(json, &error),
        Category::Syntax | Category::Eof | Category::Io => bad_json(&error),
    })
}

fn is_whole(json: &[u8]) -> bool {
    serde_json::from_slice::<de::IgnoredAny>(json).is_ok()
}

/// What is no JSON at all.
pub(super) fn bad_json(error: &serde_json::Error) -> ApiError {
    ApiError::BadJson { reason: without_place(error), line: error.line(), column: error.column() }
}

/// Serde says what does not fit, but not where: a second, slower reading finds the path.
fn misfit<T: DeserializeOwned>(json: &[u8], error: &serde_json::Error) -> ApiError {
    let read = serde_path_to_error::deserialize::<_, T>(&mut serde_json::Deserializer::from_slice(json));
    let path = read.err().map(|error| error.path().to_string());
    let detail = match error.classify() {
        Category::Syntax => "expected one of the words that /openapi.json lists".to_owned(),
        _ => without_place(error),
    };
    let path = path.filter(|path| !path.is_empty() && path != ".");
    let field = match (path, absent_or_repeated(&detail)) {
        (Some(path), Some(name)) => format!("{path}.{name}"),
        (None, Some(name)) => name.to_owned(),
        (Some(path), None) => path,
        (None, None) => "body".to_owned(),
    };
    ApiError::invalid(field, detail)
}

/// The field of such a message: its path ends at what lacks it, or has it twice.
pub(super) fn absent_or_repeated(message: &str) -> Option<&str> {
    let rest = message.strip_prefix("missing field `").or_else(|| message.strip_prefix("duplicate field `"))?;
    rest.split_once('`').map(|(name, _)| name)
}

/// The message without the line and column that `serde_json` adds.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_but_not_those_in_texts() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(check_depth(nested(DEPTH_MAX).as_bytes()).is_ok());
        assert!(check_depth(nested(DEPTH_MAX + 1).as_bytes()).is_err());
        let flat = format!(r#"["{}", "\"{}"]"#, "[".repeat(100), "{".repeat(100));
        assert!(check_depth(flat.as_bytes()).is_ok());
        assert!(check_depth("[]".repeat(100).as_bytes()).is_ok(), "side by side is not nested");
    }

    #[test]
    fn json_has_several_names() {
        for (value, expected) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/vnd.x+json", true),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("json", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, value.parse().unwrap());
            assert_eq!(is_json(&headers), expected, "{value}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
