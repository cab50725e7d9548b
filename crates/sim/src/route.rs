//! The proxy route of every run: what may be asked, and how long answers are kept.
//! Invariant: follows from the plan; a question has one key, for the store, the upstream and the witness alike.

use std::collections::BTreeMap;
use std::time::Duration;

use entrega::proxy::ProxyCall;
use entrega::proxy::{CachePolicy, Param, ParamKind, Route, Routes, Template};
use entrega_core::job::Job;
use entrega_core::name::LaneName;

/// The name of the route.
pub const ROUTE: &str = "score";
/// Its lane.
pub const PROXY_LANE: &str = "proxy:score";
/// Its one parameter.
pub const PARAM: &str = "q";
const KEY_PREFIX: &str = "cache:";

/// How long answers are given again, and kept for bad times.
#[derive(Clone, Copy, Debug)]
pub struct Keeping {
    /// Without asking.
    pub fresh: Duration,
    /// When the upstream gives none.
    pub stale: Duration,
}

/// The one route there is.
pub fn routes(keeping: Keeping) -> Routes {
    let lane = LaneName::new(PROXY_LANE).expect("a lane name");
    let template = |text: &str| Template::parse(text).expect("a template");
    let kind = ParamKind::text(None).expect("no pattern");
    let route = Route {
        name: ROUTE.into(),
        lane: lane.clone(),
        upstream: Some(template("https://upstream.example.com/{q}")),
        headers: Vec::new(),
        is_public: true,
        params: vec![Param { name: PARAM.into(), kind, is_required: true }],
        cache: CachePolicy { key: template("cache:{q}"), ttl: keeping.fresh, stale: keeping.stale },
    };
    BTreeMap::from([(lane, route)])
}

/// What a job asks, if it asks anything.
pub fn question(job: &Job) -> Option<String> {
    match job.payload.read::<ProxyCall>() {
        Ok(mut call) => call.params.remove(PARAM),
        Err(_) => None,
    }
}

/// The question whose answer is kept under a key.
pub fn question_of_key(key: &str) -> &str {
    key.strip_prefix(KEY_PREFIX).unwrap_or(key)
}
