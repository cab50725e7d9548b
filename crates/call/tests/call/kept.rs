//! Kept connections: which are used again, which never, and what happens to those that died meanwhile.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use entrega_call::{Client, ClientConfig};
use http::{Method, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::peer::{Came, OK, Peer, closed, io_is_seen, take};
use crate::server::{in_seconds, loopback, post};

/// A call that has no answer by then waits for something that does not come.
const PATIENCE: Duration = Duration::from_secs(5);

fn client() -> Client {
    Client::new(loopback()).unwrap()
}

#[tokio::test]
async fn a_connection_is_kept_after_an_answer_that_was_read_to_its_end() {
    for bytes in [
        OK,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n",
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n3\r\nall\r\n0\r\nx-end: 1\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    ] {
        let (peer, client) = (Peer::start().await, client());
        let (answer, stream) = peer.call(&client, bytes).await;
        answer.unwrap();
        let (came, _) = peer.call_again(&client, stream).await;
        assert_eq!(came, Came::OverTheSame, "{}", bytes.escape_ascii());
    }
}

#[tokio::test]
async fn a_connection_that_is_not_fit_for_another_request_is_never_kept() {
    for bytes in [
        &b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"[..],
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n",
        // What was not asked for might be taken for the answer to the next request.
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        b"HTTP/1.1 204 No Content\r\n\r\nstray",
    ] {
        let (peer, client) = (Peer::start().await, client());
        let (answer, stream) = peer.call(&client, bytes).await;
        answer.unwrap();
        let (came, _) = peer.call_again(&client, stream).await;
        assert_eq!(came, Came::OverAnother, "{}", bytes.escape_ascii());
    }
}

#[tokio::test]
async fn the_head_alone_is_the_answer_to_head() {
    let (peer, client) = (Peer::start().await, client());
    let head = Request::builder().method(Method::HEAD).uri(peer.url()).body(Bytes::from_static(b"{}")).unwrap();
    let (answer, stream) = peer.call_with(&client, head, b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n").await;
    assert!(answer.unwrap().body.is_empty());
    assert_eq!(peer.call_again(&client, stream).await.0, Came::OverTheSame);
}

#[tokio::test]
async fn a_failed_exchange_costs_its_connection() {
    for bytes in [&b"not http\r\n\r\n"[..], b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"] {
        let (peer, client) = (Peer::start().await, client());
        let (answer, mut stream) = peer.call(&client, bytes).await;
        assert_eq!(answer.unwrap_err().code(), "aborted");
        closed(&mut stream).await;
        assert_eq!(peer.call_again(&client, stream).await.0, Came::OverAnother);
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_server_closed_is_noticed_before_a_byte_is_written() {
    let (peer, client) = (Peer::start().await, client());
    let (answer, stream) = peer.call(&client, OK).await;
    answer.unwrap();
    drop(stream);
    io_is_seen().await;
    let (answer, _stream) = peer.call(&client, OK).await;
    assert_eq!(answer.unwrap().body, "ok");
}

#[tokio::test]
async fn what_comes_unasked_on_a_kept_connection_is_nobodys_answer() {
    let (peer, client) = (Peer::start().await, client());
    let (answer, mut stream) = peer.call(&client, OK).await;
    answer.unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil").await.unwrap();
    io_is_seen().await;
    assert_eq!(peer.call_again(&client, stream).await.0, Came::OverAnother);
}

#[tokio::test]
async fn dead_connections_are_passed_over_however_many_there_are() {
    let (peer, client) = (Peer::start().await, client());
    let calls = (0..20).map(|_| {
        let (client, url) = (client.clone(), peer.url());
        tokio::spawn(async move { client.call(post(url), in_seconds(30)).await })
    });
    let calls: Vec<_> = calls.collect();
    let mut streams = Vec::new();
    for _ in &calls {
        let mut stream = peer.accept().await;
        take(&mut stream).await.expect("a request");
        streams.push(stream);
    }
    for stream in &mut streams {
        stream.write_all(OK).await.unwrap();
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    drop(streams);
    io_is_seen().await;
    let (answer, stream) = peer.call(&client, OK).await;
    answer.unwrap();
    // The living one came last, so it is found first.
    assert_eq!(peer.call_again(&client, stream).await.0, Came::OverTheSame);
}

#[tokio::test]
async fn a_request_that_may_have_left_is_not_repeated() {
    let (peer, client) = (Peer::start().await, client());
    let (answer, mut stream) = peer.call(&client, OK).await;
    answer.unwrap();
    let (answer, ()) = tokio::join!(client.call(post(peer.url()), in_seconds(30)), async {
        take(&mut stream).await.expect("the request came over the kept connection");
        drop(stream);
    });
    assert_eq!(answer.unwrap_err().code(), "aborted");
    // Whoever comes next is another call, not that one again.
    let mut later = pin!(peer.accept());
    io_is_seen().await;
    assert!(poll_fn(|cx| std::task::Poll::Ready(later.as_mut().poll(cx).is_pending())).await);
}

#[tokio::test]
async fn a_new_connection_that_is_closed_at_once_is_aborted_and_not_tried_again() {
    let (peer, client) = (Peer::start().await, client());
    let (answer, ()) = tokio::join!(client.call(post(peer.url()), in_seconds(30)), async { drop(peer.accept().await) });
    assert_eq!(answer.unwrap_err().code(), "aborted");
}

#[tokio::test]
async fn an_answer_before_the_request_was_read_is_an_answer_and_costs_the_connection() {
    let (peer, client) = (Peer::start().await, client());
    let long = Request::post(peer.url()).body(Bytes::from(vec![b'x'; 16 << 20])).unwrap();
    let (answer, mut stream) = tokio::join!(client.call(long, in_seconds(30)), async {
        let mut stream = peer.accept().await;
        stream.write_all(b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        stream
    });
    assert_eq!(answer.unwrap().status, 413);
    // It was cut off in the middle of the request: the end comes, and not the whole of it.
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut bytes)).await;
    read.expect("the connection is closed").unwrap();
    assert!(bytes.len() < 16 << 20);
    let (answer, _stream) = peer.call(&client, OK).await;
    assert_eq!(answer.unwrap().body, "ok");
}

#[tokio::test]
async fn a_call_that_is_dropped_in_the_middle_closes_its_connection() {
    let (peer, client) = (Peer::start().await, client());
    let url = peer.url();
    let call = tokio::spawn(async move { client.call(post(url), in_seconds(30)).await });
    let mut stream = peer.accept().await;
    take(&mut stream).await.expect("a request");
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await.unwrap();
    call.abort();
    closed(&mut stream).await;
}

#[tokio::test]
async fn a_kept_connection_is_closed_when_its_time_is_over_though_nobody_calls() {
    let (peer, client) = (Peer::start().await, client());
    let (answer, mut stream) = peer.call(&client, OK).await;
    answer.unwrap();
    tokio::time::pause();
    let kept_since = in_seconds(0);
    closed(&mut stream).await;
    let idle_timeout = ClientConfig::default().idle_timeout;
    assert!(kept_since.elapsed() + Duration::from_secs(1) > idle_timeout, "{:?}", kept_since.elapsed());
}

#[tokio::test]
async fn kept_connections_are_closed_with_their_client() {
    let (peer, client) = (Peer::start().await, client());
    let (answer, mut stream) = peer.call(&client, OK).await;
    answer.unwrap();
    drop(client);
    closed(&mut stream).await;
}

#[tokio::test]
async fn one_connection_too_many_closes_the_one_that_was_kept_longest() {
    let client = Client::new(ClientConfig { idle_max: 1, ..loopback() }).unwrap();
    let (first, second) = (Peer::start().await, Peer::start().await);
    let (answer, mut oldest) = first.call(&client, OK).await;
    answer.unwrap();
    let (answer, newest) = second.call(&client, OK).await;
    answer.unwrap();
    closed(&mut oldest).await;
    assert_eq!(second.call_again(&client, newest).await.0, Came::OverTheSame);
}

/// Idle connections to two thousand hosts used up the file handles of the whole process.
#[tokio::test]
async fn where_no_more_may_be_open_an_idle_one_makes_room_for_a_new_one() {
    let client = Client::new(ClientConfig { connections_max: 1, ..loopback() }).unwrap();
    let (first, second) = (Peer::start().await, Peer::start().await);
    let (answer, mut idle) = first.call(&client, OK).await;
    answer.unwrap();
    let (answer, _) = timeout(PATIENCE, second.call(&client, OK)).await.expect("there is room");
    answer.unwrap();
    closed(&mut idle).await;
}

#[tokio::test]
async fn where_no_more_may_be_open_a_call_waits_for_one_to_end() {
    let client = Client::new(ClientConfig { connections_max: 1, ..loopback() }).unwrap();
    let peers = [Peer::start().await, Peer::start().await, Peer::start().await];
    let [first, second, third] = &peers;
    let calls = async { tokio::join!(first.call(&client, OK), second.call(&client, OK), third.call(&client, OK)) };
    let ((one, _), (two, _), (three, _)) =
        timeout(PATIENCE, calls).await.expect("there is room for one after the other");
    for answer in [one, two, three] {
        answer.unwrap();
    }
}

#[tokio::test]
async fn none_is_kept_where_none_may_be() {
    let none = [ClientConfig { idle_max: 0, ..loopback() }, ClientConfig { idle_per_host_max: 0, ..loopback() }];
    for config in none {
        let (peer, client) = (Peer::start().await, Client::new(config).unwrap());
        let (answer, mut stream) = peer.call(&client, OK).await;
        answer.unwrap();
        closed(&mut stream).await;
    }
}

#[tokio::test]
async fn a_server_reads_the_request_as_it_was_given_with_host_and_length_at_its_end() {
    let (peer, client) = (Peer::start().await, client());
    let host = peer.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    for (target, line) in [("/a/b?c=%20d", "/a/b?c=%20d"), ("/", "/"), ("", "/"), ("?c=d", "/?c=d")] {
        let request = Request::post(format!("http://{host}{target}")).header("X-Event-Id", "evt_1");
        let request = request.header("x-b", "1").header("x-b", "2").body(Bytes::from_static(b"{}")).unwrap();
        let (answer, sent) = tokio::join!(client.call(request, in_seconds(30)), async {
            let mut stream = peer.accept().await;
            let sent = take(&mut stream).await.expect("a request");
            stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            String::from_utf8(sent).unwrap()
        });
        answer.unwrap();
        let headers = format!("x-event-id: evt_1\r\nx-b: 1\r\nx-b: 2\r\nhost: {host}\r\ncontent-length: 2\r\n");
        assert_eq!(sent, format!("POST {line} HTTP/1.1\r\n{headers}\r\n{{}}"));
    }
}

#[tokio::test]
async fn a_host_header_that_is_given_stays() {
    let (peer, client) = (Peer::start().await, client());
    let request = Request::post(peer.url()).header("host", "other.example").body(Bytes::from_static(b"{}")).unwrap();
    let (answer, sent) = tokio::join!(client.call(request, in_seconds(30)), async {
        let mut stream = peer.accept().await;
        let sent = take(&mut stream).await.expect("a request");
        stream.write_all(OK).await.unwrap();
        String::from_utf8(sent).unwrap()
    });
    answer.unwrap();
    assert_eq!(sent, "POST / HTTP/1.1\r\nhost: other.example\r\ncontent-length: 2\r\n\r\n{}");
}

/// Counts how often `work` is polled until it is done. What wakes it at the end of one call is seen in the next.
async fn polls_of<F: Future>(work: F) -> (F::Output, usize) {
    let (mut work, mut polls) = (pin!(work), 0);
    let done = poll_fn(|cx| {
        polls += 1;
        work.as_mut().poll(cx)
    });
    let done = done.await;
    (done, polls)
}

#[tokio::test]
async fn calls_are_woken_by_their_answers_and_by_nothing_else() {
    let (peer, client) = (Peer::start().await, client());
    let (answer, mut stream) = peer.call(&client, OK).await;
    answer.unwrap();
    let url = peer.url();
    let calls = tokio::spawn(polls_of(async move {
        for _ in 0..3 {
            assert_eq!(client.call(post(&url), in_seconds(30)).await.unwrap().body, "ok");
        }
    }));
    for _ in 0..3 {
        take(&mut stream).await.expect("a request");
        // Whatever else would wake it has its chance.
        for _ in 0..3 {
            io_is_seen().await;
            tokio::task::yield_now().await;
        }
        stream.write_all(OK).await.unwrap();
    }
    let ((), polls) = calls.await.unwrap();
    assert_eq!(polls, 4, "one to send, and one for each answer");
}

/// How long a call over a kept connection takes that is never answered, on the clock of the runtime.
async fn unanswered(client: &Client, peer: &Peer, mut stream: TcpStream, seconds: u64) -> Duration {
    let (client, url, deadline) = (client.clone(), peer.url(), in_seconds(seconds));
    let call = tokio::spawn(async move { client.call(post(url), deadline).await });
    take(&mut stream).await.expect("the request came over the kept connection");
    tokio::time::pause();
    let started = in_seconds(0);
    assert_eq!(call.await.unwrap().unwrap_err().code(), "timeout");
    let took = started.elapsed();
    tokio::time::resume();
    took
}

#[tokio::test]
async fn each_call_over_a_kept_connection_has_a_deadline_of_its_own() {
    // The call before it had thirty seconds.
    for seconds in [3, 300] {
        let (peer, client) = (Peer::start().await, client());
        let (answer, stream) = peer.call(&client, OK).await;
        answer.unwrap();
        let took = unanswered(&client, &peer, stream, seconds).await;
        assert!(took.as_secs().abs_diff(seconds) <= 1, "{took:?}, not {seconds} s");
    }
}

#[test]
fn a_client_outlives_a_runtime_and_what_was_kept_there() {
    let client = client();
    for _ in 0..2 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let peer = Peer::start().await;
            let (answer, stream) = peer.call(&client, OK).await;
            answer.unwrap();
            assert_eq!(peer.call_again(&client, stream).await.0, Came::OverTheSame);
        });
    }
}
