//! A client for one API, against a real server on loopback.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use entrega_call::{
    ApiClient, ApiConfig, ApiError, ApiThrottle, Chance, ClientConfig, Clock, Credentials, Observer, OnThrottleTimeout,
    PathProblem, RetryPolicy, Rules, Stopped, TraceParent, Waiting,
};
use entrega_core::backoff::Backoff;
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::server::{Server, loopback};
use crate::world::{Log, timed};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Waits that a test can wait for.
fn briefly(attempts: u32) -> RetryPolicy {
    let backoff = Backoff::exponential(Duration::from_millis(2), Duration::from_millis(8));
    RetryPolicy { attempts, backoff, ..RetryPolicy::default() }
}

fn config(base_url: &str) -> ApiConfig {
    ApiConfig { client: loopback(), retry: briefly(4), ..ApiConfig::new(base_url.parse().unwrap()) }
}

fn client(server: &Server) -> ApiClient {
    ApiClient::new(config(&server.url("/v1"))).unwrap()
}

fn answer(status: u16) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::from("{}")).unwrap()
}

/// A server that answers with these statuses in turn, the last again and again, and keeps what it was asked.
async fn answering(statuses: &'static [u16]) -> (Server, Arc<Mutex<Vec<Request<Bytes>>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let kept = asked.clone();
    let server = Server::start(move |request| {
        let mut kept = kept.lock().unwrap();
        kept.push(request);
        answer(statuses[(kept.len() - 1).min(statuses.len() - 1)])
    })
    .await;
    (server, asked)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers[name].to_str().unwrap()
}

#[tokio::test]
async fn every_attempt_carries_the_same_headers() {
    let (server, asked) = answering(&[503, 200]).await;
    let mut config = config(&server.url("/v1"));
    config.credentials = Some(Credentials::bearer("s3cret").unwrap());
    config.user_header = HeaderName::from_static("x-on-behalf-of");
    let api = ApiClient::new(config).unwrap();
    let parent: TraceParent = PARENT.parse().unwrap();
    let request = api.post("/orders?dry=1").query("note", "a b&c").header("x-extra", "1").user("user_123");
    let request = request.request_id("req_1").idempotency_key("order:user_123:17:create:v1").trace(&parent);
    let reply = request.header("authorization", "Bearer another").send().await.unwrap();

    assert_eq!((reply.attempts, reply.request_id.as_str()), (2, "req_1"));
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 2);
    for request in &*asked {
        assert_eq!(
            (request.method(), request.uri().to_string().as_str()),
            (&Method::POST, "/v1/orders?dry=1&note=a%20b%26c")
        );
        for (name, value) in [
            ("x-request-id", "req_1"),
            ("idempotency-key", "order:user_123:17:create:v1"),
            ("traceparent", PARENT),
            ("x-on-behalf-of", "user_123"),
            ("authorization", "Bearer s3cret"),
            ("x-extra", "1"),
            ("content-length", "0"),
            ("user-agent", concat!("Entrega/", env!("CARGO_PKG_VERSION"))),
        ] {
            let values: Vec<_> = request.headers().get_all(name).iter().collect();
            assert_eq!(values, [value], "{name}");
        }
    }
}

#[tokio::test]
async fn names_that_nobody_gave_are_made_and_kept() {
    let (server, asked) = answering(&[503, 200]).await;
    let reply = client(&server).get("x").header("traceparent", "broken").user("u").send().await.unwrap();
    let asked: Vec<_> = asked.lock().unwrap().drain(..).collect();
    let headers = asked[0].headers();
    assert_eq!(text(headers, "x-request-id"), reply.request_id);
    assert_eq!(text(headers, "idempotency-key"), reply.request_id);
    assert_eq!(text(headers, "x-growqr-user"), "u");
    assert!(text(headers, "traceparent").parse::<TraceParent>().is_ok(), "{headers:?}");
    assert_eq!(headers, asked[1].headers(), "the second attempt is like the first");
    let another = client(&server).get("x").send().await.unwrap();
    assert_ne!(another.request_id, reply.request_id);
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    number: u32,
    note: String,
}

#[tokio::test]
async fn values_go_out_and_come_back_as_json() {
    let server = Server::start(|request| {
        assert_eq!(text(request.headers(), "content-type"), "application/json");
        assert_eq!(text(request.headers(), "accept"), "application/json");
        let mut order: Order = serde_json::from_slice(request.body()).unwrap();
        order.number += 1;
        Response::new(Full::from(serde_json::to_vec(&order).unwrap()))
    })
    .await;
    let sent = Order { number: 17, note: "two".into() };
    let back: Order = client(&server).post("orders").json(&sent).unwrap().fetch().await.unwrap();
    assert_eq!(back, Order { number: 18, note: "two".into() });
}

#[tokio::test]
async fn an_answer_that_is_not_what_was_asked_for_is_an_error_that_says_so() {
    let server = Server::start(|request| match request.uri().path() {
        "/v1/long" => Response::new(Full::from(vec![b' '; 2000])),
        "/v1/empty" => Response::new(Full::default()),
        "/v1/text" => Response::new(Full::from("hello")),
        _ => answer(404),
    })
    .await;
    let client_config = ClientConfig { answer_bytes_max: 1000, ..loopback() };
    let api = ApiClient::new(ApiConfig { client: client_config, ..config(&server.url("/v1")) }).unwrap();
    assert!(matches!(api.get("long").fetch::<Order>().await, Err(ApiError::TooLarge { bytes_max: 1000 })));
    assert!(matches!(api.get("text").fetch::<Order>().await, Err(ApiError::Decode(_))));
    assert_eq!(api.get("empty").fetch::<Option<Order>>().await.unwrap(), None);
    let missing = api.get("missing").fetch::<Order>().await.unwrap_err();
    assert_eq!(missing.status(), Some(StatusCode::NOT_FOUND));
    assert_eq!(missing.to_string(), "the API answered 404 Not Found after 1 attempt");
}

#[tokio::test]
async fn a_pause_of_two_seconds_is_kept() {
    let server = Server::start({
        let asked = Arc::new(AtomicUsize::new(0));
        move |_| match asked.fetch_add(1, Ordering::SeqCst) {
            0 => Response::builder().status(429).header("retry-after", "2").body(Full::default()).unwrap(),
            _ => answer(200),
        }
    })
    .await;
    let (reply, took) = timed(client(&server).get("x").send()).await;
    let reply = reply.unwrap();
    assert_eq!((reply.answer.status.as_u16(), reply.attempts), (200, 2));
    assert!(took >= Duration::from_secs(2), "{took:?}");
    assert_eq!(server.requests.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_400_comes_back_at_once_and_a_503_four_times_comes_back_in_the_end() {
    let (server, _) = answering(&[400]).await;
    let reply = client(&server).get("x").send().await.unwrap();
    assert_eq!((reply.answer.status.as_u16(), reply.attempts, reply.stopped), (400, 1, Some(Stopped::Permanent)));
    assert_eq!(server.requests.load(Ordering::SeqCst), 1);

    let (server, _) = answering(&[503]).await;
    let reply = client(&server).get("x").send().await.unwrap();
    assert_eq!((reply.answer.status.as_u16(), reply.attempts, reply.stopped), (503, 4, Some(Stopped::AttemptsUsedUp)));
    assert_eq!(server.requests.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn the_rules_of_a_connector_and_of_creation_are_kept() {
    for (status, rules, creates, attempts, stopped) in [
        (501, Rules::http(), false, 4, Some(Stopped::AttemptsUsedUp)),
        (501, Rules::connector(), false, 1, Some(Stopped::Permanent)),
        (409, Rules::http(), false, 1, Some(Stopped::Permanent)),
        (409, Rules::http(), true, 1, None),
    ] {
        let server = Server::start(move |_| answer(status)).await;
        let api = ApiClient::new(ApiConfig { rules, ..config(&server.url("/v1")) }).unwrap();
        let request = api.post("x");
        let request = if creates { request.create_if_absent() } else { request };
        let reply = request.send().await.unwrap();
        assert_eq!((reply.attempts, reply.stopped), (attempts, stopped), "{status}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_named_after_four_attempts() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let api = ApiClient::new(config(&format!("http://127.0.0.1:{port}"))).unwrap();
    let Err(ApiError::GaveUp(gave_up)) = api.get("x").operation("ask").send().await else { panic!("nobody is there") };
    assert_eq!((gave_up.attempts, gave_up.stopped), (4, Stopped::AttemptsUsedUp));
    let reason = gave_up.reason();
    assert!(reason.starts_with("ask failed after 4 attempts") && reason.contains("refused"), "{reason}");
    assert!(!reason.contains("127.0.0.1"), "what a name leads to is not said: {reason}");
}

/// Says when a request begins to wait.
#[derive(Default)]
struct Waits(Notify);

impl Observer for Waits {
    fn waiting(&self, _waiting: Waiting<'_>) {
        self.0.notify_one();
    }
}

#[tokio::test]
async fn a_caller_who_goes_away_while_waiting_is_the_last_to_be_served() {
    let (server, _) = answering(&[503]).await;
    let waits = Arc::new(Waits::default());
    let config = ApiConfig { retry: RetryPolicy::connector(), ..config(&server.url("/v1")) };
    let api = ApiClient::in_world(config, Clock::system(), Chance::from_seed(1), Some(waits.clone())).unwrap();
    let caller = tokio::spawn(async move { api.get("x").send().await.map(|reply| reply.attempts) });
    waits.0.notified().await;
    caller.abort();
    assert!(caller.await.unwrap_err().is_cancelled());
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(600)).await;
    assert_eq!(server.requests.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn no_path_leaves_the_base_url() {
    let (server, _) = answering(&[200]).await;
    let api = client(&server);
    let elsewhere = server.url("/admin");
    let paths = ["../admin", "%2e%2e/admin", "//127.0.0.1/admin", "..\\admin", "a/%2E%2E%2f%2E%2E/admin", &elsewhere];
    for path in paths {
        let error = api.get(path).send().await.unwrap_err();
        assert!(matches!(error, ApiError::Path(_)), "{path}: {error:?}");
    }
    assert!(matches!(api.get("../x").send().await, Err(ApiError::Path(PathProblem::DotSegment))));
    assert!(matches!(api.get("x").header("host", "evil").send().await, Err(ApiError::Header(_))));
    assert!(matches!(api.get("x").user("a\r\nb").send().await, Err(ApiError::Header(_))));
    assert_eq!(server.requests.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_budget_of_retries_is_on_unless_it_is_switched_off() {
    for (has_budget, least, most) in [(true, 60, 70), (false, 150, 150)] {
        let (server, _) = answering(&[503]).await;
        let mut config = ApiConfig { retry: briefly(3), ..config(&server.url("/v1")) };
        if !has_budget {
            config.budget = None;
        }
        let api = ApiClient::new(config).unwrap();
        for _ in 0..50 {
            api.get("x").send().await.unwrap();
        }
        let requests = server.requests.load(Ordering::SeqCst);
        assert!((least..=most).contains(&requests), "{requests} requests of 50 calls");
    }
}

/// Learns its pace below 100 per second, gives no turn that is not free at once, and tries once.
fn learning(server: &Server) -> ApiClient {
    let fixed = ApiThrottle::new(100, Duration::from_secs(1));
    let on_timeout = OnThrottleTimeout::Fail;
    let throttle = ApiThrottle { adaptive: true, wait_max: Duration::ZERO, on_timeout, ..fixed };
    let retry = RetryPolicy::never();
    ApiClient::new(ApiConfig { throttle: Some(throttle), retry, ..config(&server.url("/v1")) }).unwrap()
}

#[tokio::test]
async fn an_adaptive_throttle_learns_from_the_answers() {
    let server = Server::start(|request| match request.uri().path() {
        "/v1/told" => Response::builder().header("ratelimit", r#""d";r=0;t=3600"#).body(Full::default()).unwrap(),
        _ => answer(429),
    })
    .await;
    let estimate = |api: &ApiClient| api.gates().throttle.as_ref().unwrap().estimate();

    let told = learning(&server);
    told.get("told").send().await.unwrap();
    let Err(ApiError::GaveUp(gave_up)) = told.get("x").send().await else { panic!("nothing is left for an hour") };
    assert_eq!((gave_up.stopped, estimate(&told)), (Stopped::ThrottleTimedOut, 100.0));

    let refused = learning(&server);
    refused.get("x").send().await.unwrap();
    assert!(estimate(&refused) < 1.0, "one call was one too many: {}", estimate(&refused));
}

#[tokio::test]
async fn an_attempt_has_one_line_in_the_log_without_secrets() {
    let log = Log::listen();
    let (server, _) = answering(&[503, 200]).await;
    let mut config = ApiConfig { connector_id: Some("netsuite".into()), ..config(&server.url("/v1")) };
    config.credentials = Some(Credentials::bearer("s3cret-token").unwrap());
    let api = ApiClient::new(config).unwrap();
    let request = api.post("orders?key=s3cret-query").json("s3cret-body").unwrap().header("x-own", "s3cret-header");
    request.request_id("req_1").trace(&PARENT.parse().unwrap()).user("user_1").send().await.unwrap();

    let lines = log.with("Outbound attempt ended");
    assert_eq!(lines.len(), 2);
    for (line, attempt, status, retryable) in [(&lines[0], 1, 503, true), (&lines[1], 2, 200, false)] {
        assert_eq!((&line["method"], &line["path"]), (&"POST".into(), &"/v1/orders".into()));
        assert_eq!((line["attempt"].as_u64(), line["httpStatus"].as_u64()), (Some(attempt), Some(status)));
        assert_eq!((line["isRetryable"].as_bool(), line["latencyMs"].is_u64()), (Some(retryable), true));
        assert_eq!((&line["requestId"], &line["userId"]), (&"req_1".into(), &"user_1".into()));
        assert_eq!((&line["connector_id"], &line["traceId"]), (&"netsuite".into(), &PARENT[3..35].into()));
    }
    assert!(!log.text().contains("s3cret"), "{}", log.text());
    assert!(!format!("{api:?}").contains("s3cret"), "{api:?}");
}

#[tokio::test]
async fn a_base_url_that_must_not_be_called_makes_no_client() {
    let strict = ApiConfig::new("http://127.0.0.1:1/".parse().unwrap());
    let problem = ApiClient::new(strict).unwrap_err();
    assert_eq!(problem.to_string(), "the base URL cannot be called");
}
