//! Questions to an upstream: from parameters to a job, or to an answer that is known already.
//! Invariant: an answer that is fresh enough uses neither a place in the lane nor a call.
//! Never: shows a parameter's value in a refusal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use entrega_core::job::Priority;
use entrega_core::name::{LaneName, TenantName};
use entrega_core::outcome::AnswerSource;

use super::{BadQuestion, LANE_PREFIX, ProxyCall, Route, Routes};
use crate::env::Env;
use crate::intake::Intake;
use crate::refusal::Refusal;
use crate::store::{CacheMark, CachedAnswer, Idempotency, KeptAnswer};
use crate::submission::{NewJob, Taken};

/// A question.
#[derive(Clone, Debug)]
pub struct Question {
    /// The parameters as they were given, repeats included.
    pub params: Vec<(String, String)>,
    /// How urgent.
    pub priority: Priority,
    /// What makes it one question however often it is asked.
    pub idempotency: Option<Idempotency>,
    /// Free words carried along.
    pub labels: BTreeMap<String, String>,
}

/// Why a question was not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotAsked {
    /// No such route.
    #[error("there is no proxy route '{route}'; there is {known}")]
    UnknownRoute {
        /// What was asked for.
        route: String,
        /// What there is.
        known: String,
    },
    /// Nobody has said where its calls go.
    #[error("the route '{route}' has no upstream yet; set [proxy.{route}] upstream_url{hint}, and start again")]
    NoUpstream {
        /// The route.
        route: String,
        /// Another way to set it.
        hint: &'static str,
    },
    /// Something about it is wrong.
    #[error(transparent)]
    Bad(#[from] BadQuestion),
    /// The job was not taken.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The routes of an engine, and those who ask.
pub struct Proxy {
    env: Env,
    intake: Intake,
    routes: Arc<Routes>,
}

impl Proxy {
    /// Questions on these routes.
    pub fn new(env: Env, intake: Intake, routes: Arc<Routes>) -> Proxy {
        Proxy { env, intake, routes }
    }

    /// The route whose lane this is.
    pub fn route_of(&self, lane: &LaneName) -> Option<&Route> {
        self.routes.get(lane)
    }

    /// The route of this name.
    pub fn route(&self, name: &str) -> Result<&Route, NotAsked> {
        let lane = LaneName::new(&format!("{LANE_PREFIX}{name}")).ok();
        lane.and_then(|lane| self.routes.get(&lane)).ok_or_else(|| NotAsked::UnknownRoute {
            route: name.chars().take(64).collect(),
            known: self.routes.values().map(|route| route.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Takes a question for the upstream of a route. Its answer is the result of the job.
    pub async fn ask(&self, tenant: &TenantName, route: &Route, question: Question) -> Result<Taken, NotAsked> {
        if route.upstream.is_none() {
            let hint = if route.name == "score" { " or UPSTREAM_URL" } else { "" };
            return Err(NotAsked::NoUpstream { route: route.name.clone(), hint });
        }
        let params = route.read(&question.params)?;
        let answer = self.fresh_answer(route, &params).await;
        let is_known = answer.is_some();
        let job = NewJob {
            lane: route.lane.clone(),
            priority: question.priority,
            content: Arc::new(ProxyCall { params }),
            labels: question.labels,
            ttl: None,
            delay: Duration::ZERO,
            idempotency_key: None,
        };
        let mut answers =
            self.intake.submit_answered(tenant, vec![(job, question.idempotency.into_iter().collect(), answer)]).await;
        let taken = answers.pop().expect("one answer per job")?;
        if let Some(proxy) = self.env.metrics.proxy(&route.lane).filter(|_| is_known && !taken.is_repeat) {
            proxy.answered();
        }
        Ok(taken)
    }

    /// An answer that is young enough to be given without asking. Where the cache cannot be read, the upstream is asked.
    async fn fresh_answer(&self, route: &Route, params: &BTreeMap<String, String>) -> Option<KeptAnswer> {
        let stored = self.env.store.cached(&route.cache_key(params)).await.ok()??;
        let age = self.env.clock.now().since(stored.stored_at);
        let key = route.cache_key(params);
        (age < route.cache.ttl).then(|| from_cache(stored, key, age))
    }
}

fn from_cache(stored: CachedAnswer, key: String, age: Duration) -> KeptAnswer {
    let cache = Some(CacheMark { age_seconds: age.as_secs(), stale: false, motivo: None });
    KeptAnswer { cache, source: Some(AnswerSource { job: stored.job, key }), ..stored.answer }
}
