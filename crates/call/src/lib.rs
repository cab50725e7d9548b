//! One outbound HTTP call, made safe to hand a stranger's URL to.
//!
//! [`Client::call`] sends one request under one deadline and gives back a capped [`Answer`] or a
//! [`CallError`] that says what went wrong in a word. Where it may connect is decided by an
//! [`AddressFilter`], at connect time, for every address a name resolves to.
//!
//! # Layout
//!
//! In the order in which a call meets them:
//!
//! - `headers`: which headers a caller may set, checked when work is accepted.
//! - `url`: which URLs may be called, checked when work is accepted and again on every call.
//! - `client`: the call itself: the pool, the deadline, the sending.
//! - `connect`: name look-up (`resolve`), address filter, TCP.
//! - `address`: the address filter, a pure judgement on one IP address.
//! - `tls`: trust roots and the handshake.
//! - `answer`: reading the answer up to its cap.
//! - `error`: everything that can go wrong with a call.
//! - `retry_after`: what a destination asks for in `Retry-After`.
//!
//! Around a call, or around anything else that may fail for a while:
//!
//! - `retry`: [`with_retry`]: policies, classifiers, ends, log lines.
//! - `gate`: what every attempt passes: throttle, breaker, retry budget.
//! - `clock` and `chance`: the only places that read time and draw chance.
//!
//! Deliberately absent: redirects, decompression, cookies, proxies, HTTP/2. [`Client`] itself never
//! repeats a request of which a byte may have been sent. Nothing here knows queues.

mod address;
mod answer;
mod chance;
mod client;
mod clock;
mod connect;
mod error;
mod gate;
mod headers;
mod resolve;
mod retry;
mod retry_after;
mod tls;
mod url;

pub use address::{AddressFilter, ForbiddenAddress};
pub use answer::Answer;
pub use chance::Chance;
pub use client::{Client, ClientConfig};
pub use clock::Clock;
pub use error::{CallError, ClientError, RequestProblem};
pub use gate::{BreakerGate, BreakerOpen, BudgetGate, Gates, OnThrottleTimeout, Passage, ThrottleGate, ThrottleWait};
pub use headers::{HEADERS_BYTES_MAX, HEADERS_MAX, HeaderProblem, check_headers};
pub use resolve::{LookUp, Resolve, SystemResolver};
pub use retry::{
    AttemptContext, AttemptEnded, AttemptError, Classifier, Completed, Description, GaveUp, GivenUp, Judgement,
    LogFields, Observer, Operation, Retrier, RetryPolicy, Rules, Stopped, ThrottleWaited, Waiting, with_retry,
};
pub use retry_after::{RETRY_AFTER_MAX, parse_retry_after};
pub use url::{URL_BYTES_MAX, UrlProblem};
