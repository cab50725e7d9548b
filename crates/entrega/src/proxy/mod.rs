//! Proxy routes: a name, the upstream behind it, what may be asked, and how long answers are kept.
//! Invariant: a route that exists was checked: every place in its templates names a parameter that must be given, and its
//! upstream may be called.
//!
//! # Layout
//! - here: routes, and what they make of a question: the upstream's URL and the key of its answer
//! - `ask`: from a question to a job, or to an answer that is known already; `channel`: how it leaves
//! - `param`: what may be asked, and its plain form
//! - `template`: texts with places for parameters

mod ask;
mod channel;
mod param;
mod template;

use std::collections::BTreeMap;
use std::time::Duration;

use entrega_core::mask::mask_value;
use entrega_core::name::LaneName;
use entrega_core::payload::Content;
use entrega_core::policy::LanePolicy;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode, utf8_percent_encode};
use serde::{Deserialize, Serialize};

pub use self::ask::{NotAsked, Proxy, Question};
pub use self::channel::ProxyChannel;
pub use self::param::{BadParam, Param, ParamKind, TEXT_CHARS_MAX};
pub use self::template::{BadTemplate, Template};

use crate::chance::Chance;
use crate::content::JobContent;
use crate::product::Product;
use crate::secret::Secret;

/// Questions to upstreams. Whoever knows the id of a public question may read its answer, so nobody must guess one. What
/// was asked without a key leaves no dead letter: anybody could fill them.
pub const PROXY: Product = Product {
    job_id: Chance::secret_id,
    is_expendable: |job| job.tenant.as_str() == PUBLIC_TENANT,
    ..Product::new::<ProxyCall>(LanePolicy::proxy, |lane| {
        format!("takes questions; ask one with POST /v1/{}", lane.as_str().replacen(':', "/", 1))
    })
};
/// What the lanes of routes begin with.
pub const LANE_PREFIX: &str = entrega_core::name::PROXY_LANES;
/// Whose the calls are that come without a key.
pub const PUBLIC_TENANT: &str = entrega_core::name::PUBLIC_TENANT;
/// Names that mean something else in a call.
pub const RESERVED: [&str; 3] = ["priority", "type", "tenant"];

/// A question to the upstream of a route; the route is that of the lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProxyCall {
    /// What is asked, by the names that the route declares; checked and in their plain form.
    pub params: BTreeMap<String, String>,
}

impl Content for ProxyCall {
    const KIND: &'static str = "proxy";
}

impl JobContent for ProxyCall {
    /// `cpf=*********25`: what is asked is somebody's own.
    fn destination(&self) -> String {
        let asked = self.params.iter().map(|(name, value)| format!("{name}={}", mask_value(value)));
        asked.collect::<Vec<_>>().join(" ")
    }
}

/// A route.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Its name.
    pub name: String,
    /// Its lane, `proxy:<name>`.
    pub lane: LaneName,
    /// Where its calls go; `None` while nobody has said so.
    pub upstream: Option<Template>,
    /// Sent with every call; may hold a password.
    pub headers: Vec<(String, Secret)>,
    /// Whether it is open to callers without a key.
    pub is_public: bool,
    /// What may be asked.
    pub params: Vec<Param>,
    /// How answers are kept.
    pub cache: CachePolicy,
}

/// How answers are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct CachePolicy {
    /// Under which key.
    pub key: Template,
    /// How long one is given again without asking.
    pub ttl: Duration,
    /// How long one is kept for the time when the upstream gives none.
    pub stale: Duration,
}

/// All routes, by lane.
pub type Routes = BTreeMap<LaneName, Route>;

/// What is wrong with a question.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{field}: {problem}")]
pub struct BadQuestion {
    /// Which parameter.
    pub field: String,
    /// What is wrong with it, and what would be right.
    pub problem: String,
}

impl Route {
    /// What is asked, checked and in its plain form.
    pub fn read(&self, given: &[(String, String)]) -> Result<BTreeMap<String, String>, BadQuestion> {
        let bad = |field: &str, problem: String| BadQuestion { field: field.chars().take(64).collect(), problem };
        let mut read = BTreeMap::new();
        for (name, value) in given {
            let Some(param) = self.params.iter().find(|param| param.name == *name) else {
                return Err(bad(name, format!("is not known here; {}", self.known())));
            };
            let value = param.kind.read(value).map_err(|problem| bad(name, format!("must be {problem}")))?;
            if read.insert(name.clone(), value).is_some() {
                return Err(bad(name, "is given twice; give it once".into()));
            }
        }
        match self.params.iter().find(|param| param.is_required && !read.contains_key(&param.name)) {
            Some(missing) => Err(bad(&missing.name, format!("is missing; it must be {}", missing.kind.rule()))),
            None => self.check_path(&read).map(|()| read),
        }
    }

    /// Refuses values that would lead to another path of the upstream: in its path, a value is part of one segment, however
    /// often a server decodes it.
    pub fn check_path(&self, params: &BTreeMap<String, String>) -> Result<(), BadQuestion> {
        let Some(upstream) = &self.upstream else { return Ok(()) };
        let place = upstream.before('?');
        let bad = |name: &str| BadQuestion {
            field: name.to_owned(),
            problem: "must be part of one segment of a path: without / and \\, and not . or .., encoded or not".into(),
        };
        let values: Vec<_> = place.names().filter_map(|name| Some((name, params.get(name)?))).collect();
        if let Some((name, _)) = values.iter().find(|(_, value)| has_slash(value)) {
            return Err(bad(name));
        }
        let url = place.fill(params, percent_encoded);
        let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map_or("", |(_, path)| path);
        match entrega_call::check_path(path) {
            // What the operator wrote was checked: it is a value that does it.
            Err(_) => Err(bad(values.first().map_or("", |(name, _)| name))),
            Ok(()) => Ok(()),
        }
    }

    fn known(&self) -> String {
        let names: Vec<&str> = self.params.iter().map(|param| param.name.as_str()).collect();
        format!("'{}' takes {}", self.name, names.join(", "))
    }

    /// Where the answer to a question is kept.
    pub fn cache_key(&self, params: &BTreeMap<String, String>) -> String {
        self.cache.key.fill(params, percent_encoded)
    }

    /// How long an answer is kept at all.
    pub fn keep(&self) -> Duration {
        self.cache.ttl.max(self.cache.stale)
    }

    /// The call that asks a question: parameters without a place in the URL follow as its query.
    pub fn url(&self, params: &BTreeMap<String, String>) -> Option<String> {
        let upstream = self.upstream.as_ref()?;
        let mut url = upstream.fill(params, percent_encoded);
        for (name, value) in params.iter().filter(|(name, _)| !upstream.names().any(|place| place == name.as_str())) {
            url.push(if url.contains('?') { '&' } else { '?' });
            url += &format!("{}={}", percent_encoded(name), percent_encoded(value));
        }
        Some(url)
    }
}

/// Servers in a row that each decode a path once are not more than this.
const DECODINGS_MAX: usize = 3;

/// What may stand anywhere in a URL as it is.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Whether a value has a slash, or what some servers take for one, once it was decoded a few times.
fn has_slash(value: &str) -> bool {
    let mut seen = value.as_bytes().to_vec();
    for _ in 0..DECODINGS_MAX {
        if seen.contains(&b'/') || seen.contains(&b'\\') {
            return true;
        }
        seen = percent_decode(&seen).collect();
    }
    seen.contains(&b'/') || seen.contains(&b'\\')
}

/// A value as it may stand anywhere in a URL.
fn percent_encoded(value: &str) -> String {
    utf8_percent_encode(value, UNRESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(upstream: &str) -> Route {
        let param = |name: &str, kind, is_required| Param { name: name.into(), kind, is_required };
        Route {
            name: "score".into(),
            lane: LaneName::new("proxy:score").unwrap(),
            upstream: Some(Template::parse(upstream).unwrap()),
            headers: Vec::new(),
            is_public: true,
            params: vec![param("cpf", ParamKind::Cpf, true), param("note", ParamKind::text(None).unwrap(), false)],
            cache: CachePolicy {
                key: Template::parse("cache:score:{cpf}").unwrap(),
                ttl: Duration::from_secs(60),
                stale: Duration::from_secs(3600),
            },
        }
    }

    fn pairs(given: &[(&str, &str)]) -> Vec<(String, String)> {
        given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn equal_questions_have_one_key_however_they_are_written() {
        let route = route("https://example.com/v1");
        let keys = ["529.982.247-25", "52998224725"].map(|cpf| {
            let read = route.read(&pairs(&[("cpf", cpf)])).unwrap();
            route.cache_key(&read)
        });
        assert_eq!(keys, ["cache:score:52998224725", "cache:score:52998224725"]);
    }

    #[test]
    fn what_has_no_place_in_the_url_follows_as_its_query() {
        for (upstream, url) in [
            ("https://example.com/v1", "https://example.com/v1?cpf=52998224725&note=a%26b%20%2F%3F"),
            ("https://example.com/v1?a=1", "https://example.com/v1?a=1&cpf=52998224725&note=a%26b%20%2F%3F"),
            ("https://example.com/v1/{cpf}", "https://example.com/v1/52998224725?note=a%26b%20%2F%3F"),
            ("https://example.com/v1/{cpf}?n={note}", "https://example.com/v1/52998224725?n=a%26b%20%2F%3F"),
        ] {
            let route = route(upstream);
            let read = route.read(&pairs(&[("note", "a&b /?"), ("cpf", "52998224725")])).unwrap();
            assert_eq!(route.url(&read).as_deref(), Some(url));
        }
    }

    /// `?q=..` and `../../admin` reached other paths of the upstream, with the operator's headers.
    #[test]
    fn no_value_leads_to_another_path() {
        let noted = |upstream: &str, note: &str| {
            route(upstream).read(&pairs(&[("cpf", "52998224725"), ("note", note)])).err().map(|bad| bad.field)
        };
        let climbing = [
            "..",
            ".",
            "../../admin",
            "a/b",
            "a\\b",
            "%2e%2e",
            "..%2fadmin",
            "%252e%252e",
            "a%2Fb",
            "a%252fb",
            "..;x",
            "%5c",
        ];
        for note in climbing {
            assert_eq!(noted("https://example.com/v1/{note}/x", note).as_deref(), Some("note"), "{note}");
            assert_eq!(noted("https://example.com/v1?n={note}", note), None, "{note}: a query cannot climb");
            assert_eq!(noted("https://example.com/v1", note), None, "{note}");
        }
        for note in ["a.b", "...", "..a", "a b", "100%", "a:b", "é"] {
            assert_eq!(noted("https://example.com/v1/{note}", note), None, "{note}");
        }
        assert_eq!(noted("https://example.com/v1/.{note}", ".").as_deref(), Some("note"), "with the text around it");
    }

    #[test]
    fn a_bad_question_names_the_parameter() {
        let route = route("https://example.com/v1");
        let long = "5".repeat(10_000);
        for (given, field, problem) in [
            (vec![], "cpf", "is missing"),
            (vec![("cpf", "52998224724")], "cpf", "check digits"),
            (vec![("cpf", "529")], "cpf", "it has 3"),
            (vec![("cpf", long.as_str())], "cpf", "it has 10000"),
            (vec![("cpf", "52998224725"), ("cpf", "52998224725")], "cpf", "twice"),
            (vec![("cpf", "52998224725"), ("cnpj", "1")], "cnpj", "'score' takes cpf, note"),
            (vec![("cpf", "52998224725"), ("note", "")], "note", "1 to 256"),
        ] {
            let bad = route.read(&pairs(&given)).unwrap_err();
            assert!(bad.field == field && bad.problem.contains(problem), "{bad}");
        }
    }
}
