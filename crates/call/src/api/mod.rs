//! A client for one API: base URL, credentials, retries, gates, and headers by which a call can be found again.
//! Invariant: no request leaves the base URL; every attempt of a request carries the same names.
//! Never: shows a credential, a body or a query.

mod base_url;
mod credentials;
mod request;

use std::sync::Arc;
use std::time::Duration;

use entrega_core::breaker::BreakerPolicy;
use entrega_core::retry_budget::BudgetPolicy;
use http::{HeaderName, Method};
use thiserror::Error;

pub use base_url::{BadBaseUrl, BaseUrl, PathProblem, check_path};
pub use credentials::{BadCredentials, Credentials};
pub use request::{ApiError, ApiRequest, Reply};

use crate::chance::Chance;
use crate::client::{Client, ClientConfig};
use crate::clock::Clock;
use crate::error::ClientError;
use crate::gate::{BreakerGate, BudgetGate, Gates, OnThrottleTimeout, ThrottleGate};
use crate::retry::{Observer, Retrier, RetryPolicy, Rules};
use crate::url::UrlProblem;

/// How much of an answer is kept: more than a webhook's, for what an API answers is what was wanted.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// How fast an API may be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiThrottle {
    /// So many starts…
    pub max_requests: u32,
    /// …in any interval of this length.
    pub per: Duration,
    /// Whether to go slower where the API asks for it, by 429, `Retry-After` or `RateLimit` headers.
    pub adaptive: bool,
    /// How long a request waits for its turn.
    pub wait_max: Duration,
    /// What happens then.
    pub on_timeout: OnThrottleTimeout,
}

impl ApiThrottle {
    /// At most `max_requests` per `per`; a request waits for up to a minute and then goes anyway.
    #[must_use]
    pub fn new(max_requests: u32, per: Duration) -> ApiThrottle {
        let Gates { throttle_wait_max: wait_max, on_throttle_timeout: on_timeout, .. } = Gates::default();
        ApiThrottle { max_requests, per, adaptive: false, wait_max, on_timeout }
    }
}

/// What a client for one API needs to know.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// Where the API begins.
    pub base_url: BaseUrl,
    /// How the client shows who it is. They take the place of such a header on a request.
    pub credentials: Option<Credentials>,
    /// The header that says for whom a request is made.
    pub user_header: HeaderName,
    /// What logs call this API.
    pub connector_id: Option<String>,
    /// How requests are repeated.
    pub retry: RetryPolicy,
    /// What answers mean.
    pub rules: Rules,
    /// How fast the API may be called.
    pub throttle: Option<ApiThrottle>,
    /// When to stop calling it.
    pub breaker: Option<BreakerPolicy>,
    /// How many retries there may be for all requests together; `None` for any number.
    pub budget: Option<BudgetPolicy>,
    /// The connections below.
    pub client: ClientConfig,
}

/// The header that names the user for whom a call is made, unless another is configured.
pub const USER_HEADER: HeaderName = HeaderName::from_static("x-growqr-user");

impl ApiConfig {
    /// The defaults of the library, with a retry budget, no throttle and no breaker.
    #[must_use]
    pub fn new(base_url: BaseUrl) -> ApiConfig {
        ApiConfig {
            base_url,
            credentials: None,
            user_header: USER_HEADER,
            connector_id: None,
            retry: RetryPolicy::default(),
            rules: Rules::http(),
            throttle: None,
            breaker: None,
            budget: Some(BudgetPolicy::default()),
            client: ClientConfig { answer_bytes_max: ANSWER_BYTES_MAX, ..ClientConfig::default() },
        }
    }

    /// The same with the policy and the rules of connectors.
    #[must_use]
    pub fn connector(id: &str, base_url: BaseUrl) -> ApiConfig {
        ApiConfig {
            connector_id: Some(id.to_owned()),
            retry: RetryPolicy::connector(),
            rules: Rules::connector(),
            ..ApiConfig::new(base_url)
        }
    }
}

/// Why a client could not be made.
#[derive(Debug, Error)]
pub enum ApiClientError {
    /// The base URL must not be called.
    #[error("the base URL cannot be called")]
    BaseUrl(#[source] UrlProblem),
    /// The connections below cannot be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Makes requests to one API. Clones are cheap and share connections, gates and budget.
#[derive(Clone, Debug)]
pub struct ApiClient {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: ApiConfig,
    client: Client,
    retrier: Retrier,
}

impl ApiClient {
    /// Makes a client with the system's time and chance.
    ///
    /// # Errors
    /// [`ApiClientError`] when the base URL may not be called or the certificates cannot be used.
    pub fn new(config: ApiConfig) -> Result<ApiClient, ApiClientError> {
        ApiClient::in_world(config, Clock::system(), Chance::from_system(), None)
    }

    /// Makes a client with its world given: time, chance, and who is told what happens.
    ///
    /// # Errors
    /// The same.
    pub fn in_world(
        config: ApiConfig,
        clock: Clock,
        chance: Chance,
        observer: Option<Arc<dyn Observer>>,
    ) -> Result<ApiClient, ApiClientError> {
        let client = Client::new(config.client.clone())?;
        let gates = gates(&config, &clock);
        ApiClient::over(client, config, Retrier { clock, chance, gates, observer })
    }

    /// Makes a client over connections and gates that are there. The throttle, breaker and budget of `config` are not
    /// looked at: those of `retrier` hold.
    ///
    /// # Errors
    /// [`ApiClientError::BaseUrl`] when the base URL may not be called.
    pub fn over(client: Client, config: ApiConfig, retrier: Retrier) -> Result<ApiClient, ApiClientError> {
        config.client.filter.check_url(&config.base_url.to_uri()).map_err(ApiClientError::BaseUrl)?;
        Ok(ApiClient { shared: Arc::new(Shared { config, client, retrier }) })
    }

    /// A request for `path`, which is relative to the base URL and may have a query.
    pub fn request(&self, method: Method, path: &str) -> ApiRequest<'_> {
        ApiRequest::new(self, method, path)
    }

    /// A `GET` of `path`.
    pub fn get(&self, path: &str) -> ApiRequest<'_> {
        self.request(Method::GET, path)
    }

    /// A `POST` to `path`.
    pub fn post(&self, path: &str) -> ApiRequest<'_> {
        self.request(Method::POST, path)
    }

    /// The gates before the API, to look at: the throttle's estimate, the breaker's state.
    #[must_use]
    pub fn gates(&self) -> &Gates {
        &self.shared.retrier.gates
    }
}

fn gates(config: &ApiConfig, clock: &Clock) -> Gates {
    let mut gates = Gates {
        breaker: config.breaker.clone().map(|policy| BreakerGate::new(policy, clock.clone())),
        budget: config.budget.clone().map(|policy| BudgetGate::new(policy, clock.clone())),
        ..Gates::default()
    };
    if let Some(throttle) = &config.throttle {
        let make = if throttle.adaptive { ThrottleGate::adaptive } else { ThrottleGate::new };
        gates.throttle = Some(make(throttle.max_requests, throttle.per, clock.clone()));
        gates.throttle_wait_max = throttle.wait_max;
        gates.on_throttle_timeout = throttle.on_timeout;
    }
    gates
}
