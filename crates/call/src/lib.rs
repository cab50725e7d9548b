//! Outbound HTTP calls made resilient, without a queue, a server or a store.
//!
//! - [`ApiClient`]: a client for one API. Retries, a retry budget, throttle and breaker, typed JSON, one log line per
//!   attempt.
//! - [`with_retry`]: the same patience for anything that may fail for a while.
//! - [`Client`]: one call under one deadline, safe to hand a stranger's URL to.
//! - [`ThrottleGate`], [`BreakerGate`], [`BudgetGate`]: what many tasks share before one destination.
//! - [`webhook`], [`IdempotencyKey`], [`Backoff`]: rules of `entrega-core`, handed on.
//!
//! # A client for one API
//!
//! ```
//! use entrega_call::{ApiClient, ApiConfig, Credentials, IdempotencyKey};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Order {
//!     number: u32,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let address = stumbling_server().await?;
//! # let base_url = format!("http://{address}/v1");
//! let mut config = ApiConfig::new(base_url.parse()?); // such as https://api.example.com/v1
//! config.credentials = Some(Credentials::bearer("token")?);
//! # config.client.filter.allow_http = true;
//! # config.client.filter.allow_networks.push("127.0.0.0/8".parse()?);
//! let api = ApiClient::new(config)?;
//!
//! // The server answers 503 at first. The second attempt carries the same headers, and succeeds.
//! let key = IdempotencyKey::new("shop", "user_123", "order_17", "create", 1)?;
//! let request = api.post("orders").json(&Order { number: 17 })?.user("user_123").idempotency_key(&key.to_string());
//! let made: Order = request.fetch().await?;
//! assert_eq!(made.number, 17);
//!
//! // What leads out of the base URL is not sent.
//! assert!(api.get("../admin").send().await.is_err());
//! # Ok(())
//! # }
//! #
//! # async fn stumbling_server() -> std::io::Result<std::net::SocketAddr> {
//! #     use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! #     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! #     let address = listener.local_addr()?;
//! #     tokio::spawn(async move {
//! #         let body = r#"{"number":17}"#;
//! #         for status in ["503 Service Unavailable", "200 OK"] {
//! #             let (mut stream, _) = listener.accept().await.unwrap();
//! #             let mut request = Vec::new();
//! #             while !request.ends_with(body.as_bytes()) {
//! #                 stream.read_buf(&mut request).await.unwrap();
//! #             }
//! #             let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
//! #             stream.write_all((head + body).as_bytes()).await.unwrap();
//! #         }
//! #     });
//! #     Ok(address)
//! # }
//! ```
//!
//! # Anything else
//!
//! [`with_retry`] takes the name of the operation, a [`RetryPolicy`] and a closure that makes one attempt. A plain name
//! means HTTP calls, judged by [`Rules::http`]; [`Operation::new`] takes a classifier of your own.
//!
//! ```
//! use entrega_call::{Client, ClientConfig, RetryPolicy, Stopped, with_retry};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(ClientConfig::default())?;
//! let ask = || http::Request::get("https://nobody.invalid/").body(bytes::Bytes::new()).unwrap();
//! let policy = RetryPolicy { attempts: 2, ..RetryPolicy::default() };
//! let ended = with_retry("ask", &policy, |ctx| client.call(ask(), ctx.deadline)).await;
//! let gave_up = ended.unwrap_err();
//! assert_eq!((gave_up.attempts, gave_up.stopped), (2, Stopped::AttemptsUsedUp));
//! # Ok(())
//! # }
//! ```
//!
//! # Layout
//!
//! In the order in which a request meets them:
//!
//! - `api`: a request to an API: base URL, credentials, names, JSON.
//! - `trace`: `traceparent`.
//! - `retry`: [`with_retry`]: policies, classifiers, ends, log lines.
//! - `gate`: what every attempt passes: throttle, breaker, retry budget.
//! - `headers`, `method`: which headers and methods a caller may set, checked when work is accepted.
//! - `url`: which URLs may be called, checked when work is accepted and again on every call.
//! - `client`: the call itself: what it may do, and its deadline.
//! - `wire`: a request and its answer over a connection from the `pool`, or a new one to its `origin`.
//! - `connection`: HTTP/1.1 over one stream, driven by the call that uses it.
//! - `connect`: name look-up (`resolve`), address filter, TCP.
//! - `address`: the address filter, a pure judgement on one IP address.
//! - `tls`: trust roots and the handshake.
//! - `answer`: reading the answer up to its cap.
//! - `error`: everything that can go wrong with a call.
//! - `retry_after`: what a destination asks for in `Retry-After`.
//! - `shares`: what tenants have in common, and none can have alone.
//! - `clock` and `chance`: the only places that read time and draw chance.
//!
//! Deliberately absent: redirects, decompression, cookies, proxies, HTTP/2. [`Client`] itself never repeats a request
//! of which a byte may have been sent. Nothing here knows queues.

mod address;
mod answer;
mod api;
mod chance;
mod client;
mod clock;
mod connect;
mod connection;
mod error;
mod gate;
mod headers;
mod method;
mod origin;
mod pool;
mod resolve;
mod retry;
mod retry_after;
mod shares;
mod tls;
mod trace;
mod url;
mod wire;

pub use address::{AddressFilter, ForbiddenAddress};
pub use api::{
    ApiClient, ApiClientError, ApiConfig, ApiError, ApiRequest, ApiThrottle, BadBaseUrl, BadCredentials, BaseUrl,
    Credentials, PathProblem, Reply, USER_HEADER, check_path,
};
pub use chance::Chance;
pub use client::{Client, ClientConfig, Exchange};
pub use clock::Clock;
pub use entrega_core::backoff::Backoff;
pub use entrega_core::breaker::{BreakerPolicy, BreakerState};
pub use entrega_core::classify::{Rule, Statuses, Verdict};
pub use entrega_core::dialect::Dialect;
pub use entrega_core::idempotency::{BadKey, IdempotencyKey};
pub use entrega_core::lane::{GateKind, Hold};
pub use entrega_core::outcome::Answer;
pub use entrega_core::outcome::Lesson;
pub use entrega_core::rate_limit::RateLimit;
pub use entrega_core::retry_budget::BudgetPolicy;
pub use entrega_core::time::Time;
pub use entrega_core::webhook;
pub use error::{CallError, ClientError, RequestProblem, with_causes};
pub use gate::{
    BreakerGate, BreakerOpen, BudgetGate, Gates, Later, OnThrottleTimeout, Passage, SharedGate, SharedTurn,
    SharedTurns, SharedWait, ThrottleGate, ThrottleWait,
};
pub use headers::{HEADERS_BYTES_MAX, HEADERS_MAX, HeaderProblem, check_headers};
pub use method::{MethodProblem, check_method};
pub use resolve::{LookUp, NameLimits, NameResolver, Resolve, SystemResolver};
pub use retry::{
    AttemptContext, AttemptEnded, AttemptError, Classifier, Completed, Description, GaveUp, GivenUp, Judgement,
    LogFields, Observer, Operation, Retrier, RetryPolicy, Rules, Stopped, ThrottleWaited, Waiting, with_retry,
};
pub use retry_after::{RETRY_AFTER_MAX, parse_retry_after};
pub use shares::{Share, Shares};
pub use trace::{BadTraceParent, TraceParent};
pub use url::{URL_BYTES_MAX, UrlProblem};
