//! Plain HTTP: answers, caps, deadlines, and destinations that misbehave.

use std::error::Error;
use std::net::TcpListener;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::server::{Server, in_seconds, loopback, misbehaving, post};
use bytes::Bytes;
use entrega_call::{AddressFilter, CallError, Client, ClientConfig};
use http::{Method, Request, Response, StatusCode, Version};
use http_body_util::Full;
use tokio::io::AsyncWriteExt;

fn client() -> Client {
    Client::new(loopback()).unwrap()
}

fn keeping(answer_bytes_max: usize) -> Client {
    Client::new(ClientConfig { answer_bytes_max, ..loopback() }).unwrap()
}

/// A listener nobody accepts from, and how to see that nothing came.
struct Silent(TcpListener);

impl Silent {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Self(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    fn saw_nothing(&self) -> bool {
        let accepted = self.0.accept();
        accepted.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

#[tokio::test]
async fn a_request_goes_out_as_given_and_its_answer_comes_back() {
    let server = Server::start(|request| {
        assert_eq!(request.method(), Method::PUT);
        assert_eq!(request.uri(), "/hook?a=1");
        assert_eq!(request.headers()["x-event-id"], "evt_1");
        assert_eq!(request.headers()["content-length"], "5");
        let host = request.headers()["host"].clone();
        Response::builder().status(StatusCode::CREATED).header("x-host", host).body(Full::from("done")).unwrap()
    })
    .await;
    let request = Request::put(server.url("/hook?a=1"))
        .header("x-event-id", "evt_1")
        .version(Version::HTTP_2)
        .body(Bytes::from_static(b"hello"))
        .unwrap();

    let answer = client().call(request, in_seconds(30)).await.unwrap();

    assert_eq!(answer.status, StatusCode::CREATED);
    assert_eq!(answer.headers["x-host"], server.address.to_string());
    assert_eq!(answer.body, "done");
    assert!(!answer.truncated);
}

#[tokio::test]
async fn connections_are_reused() {
    let server = Server::start(|_| Response::new(Full::from("ok"))).await;
    let client = client();
    for _ in 0..20 {
        let answer = client.clone().call(post(server.url("/")), in_seconds(30)).await;
        assert_eq!(answer.unwrap().body, "ok");
    }
    assert_eq!(server.requests.load(Ordering::SeqCst), 20);
    assert!(server.connections.load(Ordering::SeqCst) < 20);
}

#[tokio::test]
async fn a_body_is_capped_and_a_small_rest_keeps_its_connection() {
    let server = Server::start(|_| Response::new(Full::from(vec![b'x'; 100_000]))).await;
    let client = keeping(1000);
    for _ in 0..20 {
        let answer = client.call(post(server.url("/")), in_seconds(30)).await.unwrap();
        assert_eq!((answer.body.len(), answer.truncated), (1000, true));
    }
    assert!(server.connections.load(Ordering::SeqCst) < 20);
}

#[tokio::test]
async fn a_long_rest_is_not_read_and_costs_its_connection() {
    let server = Server::start(|_| Response::new(Full::from(vec![b'x'; 2_000_000]))).await;
    let client = keeping(1000);
    for _ in 0..5 {
        let answer = client.call(post(server.url("/")), in_seconds(30)).await.unwrap();
        assert_eq!((answer.body.len(), answer.truncated), (1000, true));
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn the_default_cap_is_64_kib() {
    let server = Server::start(|_| Response::new(Full::from(vec![b'x'; 64 * 1024 + 1]))).await;
    let answer = client().call(post(server.url("/")), in_seconds(30)).await.unwrap();
    assert_eq!((answer.body.len(), answer.truncated), (64 * 1024, true));
}

#[tokio::test]
async fn an_encoded_body_stays_encoded() {
    let server = Server::start(|_| {
        Response::builder().header("content-encoding", "gzip").body(Full::from("not unpacked")).unwrap()
    })
    .await;
    let answer = client().call(post(server.url("/")), in_seconds(30)).await.unwrap();
    assert_eq!(answer.headers["content-encoding"], "gzip");
    assert_eq!(answer.body, "not unpacked");
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let server = Server::start(|_| {
        Response::builder().status(StatusCode::FOUND).header("location", "/elsewhere").body(Full::default()).unwrap()
    })
    .await;
    let answer = client().call(post(server.url("/")), in_seconds(30)).await.unwrap();
    assert_eq!(answer.status, StatusCode::FOUND);
    assert_eq!(answer.headers["location"], "/elsewhere");
    assert_eq!(server.requests.load(Ordering::SeqCst), 1);
}

/// Runs a call against a server that writes `bytes` and then nothing, lets time pass only once
/// those are written, and gives back how the call ended.
async fn call_a_server_that_stalls_after(bytes: &[u8], client: Client) -> Result<entrega_call::Answer, CallError> {
    let (url, written) = misbehaving(bytes.to_vec()).await;
    let call = tokio::spawn(async move { client.call(post(url), in_seconds(3600)).await });
    let stream = written.await.unwrap();
    // From here the clock jumps to the deadline as soon as nothing else is left to do.
    tokio::time::pause();
    let ended = call.await.unwrap();
    drop(stream);
    ended
}

#[tokio::test]
async fn the_deadline_covers_a_server_that_never_answers() {
    let ended = call_a_server_that_stalls_after(b"", client()).await;
    assert_eq!(ended.unwrap_err().code(), "timeout");
}

#[tokio::test]
async fn the_deadline_covers_headers_that_never_end() {
    let ended = call_a_server_that_stalls_after(b"HTTP/1.1 200 OK\r\nx-a: 1\r\n", client()).await;
    assert_eq!(ended.unwrap_err().code(), "timeout");
}

#[tokio::test]
async fn the_deadline_covers_a_body_that_never_ends() {
    let start = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf";
    let ended = call_a_server_that_stalls_after(start, client()).await;
    assert_eq!(ended.unwrap_err().code(), "timeout");
}

#[tokio::test]
async fn the_deadline_covers_a_body_that_dribbles() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n";
    let (url, written) = misbehaving(head.to_vec()).await;
    let client = client();
    let call = tokio::spawn(async move { client.call(post(url), in_seconds(60)).await });
    let mut stream = written.await.unwrap();
    tokio::time::pause();
    let dribble = tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_secs(1));
        loop {
            every.tick().await;
            if stream.write_all(b"x").await.is_err() {
                return;
            }
        }
    });
    assert_eq!(call.await.unwrap().unwrap_err().code(), "timeout");
    // The connection was dropped with the call, so the server's writes come to an end.
    dribble.await.unwrap();
}

#[tokio::test]
async fn a_rest_that_stalls_does_not_spoil_the_answer() {
    let start = b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n0123456789ab";
    let answer = call_a_server_that_stalls_after(start, keeping(10)).await.unwrap();
    assert_eq!((&answer.body[..], answer.truncated), (&b"0123456789"[..], true));
}

#[tokio::test]
async fn an_answer_is_hardly_held_up_by_a_rest_that_stalls() {
    let start = b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n0123456789ab";
    let (url, written) = misbehaving(start.to_vec()).await;
    let client = keeping(10);
    let call = tokio::spawn(async move { client.call(post(url), in_seconds(3600)).await });
    let _stream = written.await.unwrap();
    tokio::time::pause();
    let since = in_seconds(0);
    call.await.unwrap().unwrap();
    assert!(since.elapsed() < Duration::from_millis(100), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_comes_too_late_is_not_sent() {
    let silent = Silent::new();
    let deadline = in_seconds(1);
    tokio::time::advance(Duration::from_secs(2)).await;
    let url = format!("http://127.0.0.1:{}/", silent.port());
    let error = client().call(post(url), deadline).await.unwrap_err();
    assert_eq!(error.code(), "timeout");
    assert!(silent.saw_nothing());
}

#[tokio::test]
async fn a_lost_connection_is_aborted() {
    for bytes in [&b""[..], b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", b"not http\r\n\r\n"] {
        let (url, written) = misbehaving(bytes.to_vec()).await;
        let client = client();
        let call = tokio::spawn(async move { client.call(post(url), in_seconds(30)).await });
        drop(written.await.unwrap());
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.code(), "aborted", "{}", error.reason());
        assert!(error.source().is_some());
    }
}

#[tokio::test]
async fn endless_headers_are_cut_off() {
    let mut bytes = b"HTTP/1.1 200 OK\r\nx-long: ".to_vec();
    bytes.resize(100_000, b'x');
    let (url, _written) = misbehaving(bytes).await;
    let error = client().call(post(url), in_seconds(30)).await.unwrap_err();
    assert_eq!(error.code(), "aborted", "{}", error.reason());
}

#[tokio::test]
async fn a_refused_connection_is_a_connect_error() {
    let port = Silent::new().port();
    let url = format!("http://127.0.0.1:{port}/");
    let error = client().call(post(url), in_seconds(30)).await.unwrap_err();
    assert_eq!(error.code(), "connect");
    assert!(error.reason().contains("refused"), "{}", error.reason());
}

#[tokio::test]
async fn an_unknown_name_is_a_resolve_error() {
    // The `invalid` domain never exists (RFC 6761), so this needs no network.
    let error = client().call(post("http://nobody.invalid/"), in_seconds(30)).await;
    let error = error.unwrap_err();
    assert_eq!(error.code(), "resolve", "{}", error.reason());
}

#[tokio::test]
async fn a_strict_filter_refuses_loopback_before_any_byte_is_sent() {
    let silent = Silent::new();
    let client = Client::new(ClientConfig {
        filter: AddressFilter { allow_http: true, ..AddressFilter::default() },
        ..ClientConfig::default()
    })
    .unwrap();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"] {
        let url = format!("http://{host}:{}/", silent.port());
        let error = client.call(post(url), in_seconds(30)).await.unwrap_err();
        assert_eq!(error.code(), "forbidden_address", "{host}");
        assert!(error.to_string().contains("allow_networks"), "{error}");
    }
    assert!(silent.saw_nothing());
}

#[tokio::test]
async fn what_cannot_be_sent_is_a_bad_request() {
    let strict = Client::new(ClientConfig::default()).unwrap();
    let tunnel = Request::connect("https://example.com/").body(Bytes::new()).unwrap();
    for request in [
        post("http://example.com/"),
        post("https://user:password@example.com/"),
        post("https://2130706433/"),
        post("/no-host"),
        tunnel,
    ] {
        let error = strict.call(request, in_seconds(30)).await.unwrap_err();
        assert_eq!(error.code(), "bad_request", "{}", error.reason());
        assert!(error.source().is_some());
    }
}

#[tokio::test]
async fn a_connection_that_never_comes_about_has_its_own_limit() {
    // The server accepts and stays silent, so the handshake waits; time is free to jump.
    let silent = Silent::new();
    let client = Client::new(ClientConfig { connect_timeout: Duration::from_secs(10), ..loopback() }).unwrap();
    tokio::time::pause();
    let deadline = in_seconds(3600);
    let url = format!("https://127.0.0.1:{}/", silent.port());
    let error = client.call(post(url), deadline).await.unwrap_err();
    assert_eq!(error.code(), "timeout");
    assert!(in_seconds(0) < deadline, "the limit came before the deadline");
}
