//! Names, asked of a real name server on loopback that answers, refuses, or says nothing.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use entrega_call::{Client, ClientConfig, Clock, NameLimits, NameResolver, Resolve};
use http::Request;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::server::loopback;

/// Longer than any answer takes that comes at all; shorter than a look-up that is not answered.
const SOON: Duration = Duration::from_secs(3);
const A: u8 = 1;
const NXDOMAIN: u8 = 3;

/// What was asked, in order.
type Asked = Arc<Mutex<Vec<String>>>;

/// A name server: `good…` is 127.0.0.1, `nowhere…` does not exist, and of anything else it says nothing.
async fn name_server() -> (SocketAddr, Asked) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (address, asked) = (socket.local_addr().unwrap(), Asked::default());
    let noting = asked.clone();
    tokio::spawn(async move {
        let mut packet = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut packet).await {
            let (name, end) = question(&packet[..length]);
            let is_v4 = packet[end - 3] == A;
            noting.lock().unwrap().push(name.clone());
            let answer = match () {
                _ if name.starts_with("good") => answer(&packet[..end], 0, is_v4),
                _ if name.starts_with("nowhere") => answer(&packet[..end], NXDOMAIN, false),
                _ => continue,
            };
            socket.send_to(&answer, from).await.unwrap();
        }
    });
    (address, asked)
}

/// The name in a question, and where the question ends.
fn question(packet: &[u8]) -> (String, usize) {
    let (mut labels, mut at) = (Vec::new(), 12);
    while packet[at] != 0 {
        let end = at + 1 + usize::from(packet[at]);
        labels.push(String::from_utf8_lossy(&packet[at + 1..end]).to_lowercase());
        at = end;
    }
    (labels.join("."), at + 5)
}

fn answer(question: &[u8], code: u8, with_address: bool) -> Vec<u8> {
    let mut packet = question.to_vec();
    (packet[2], packet[3]) = (0x81, 0x80 | code);
    packet[6..12].copy_from_slice(&[0, u8::from(with_address), 0, 0, 0, 0]);
    if with_address {
        packet.extend_from_slice(&[0xc0, 12, 0, A, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    packet
}

fn limits(look_ups_max: usize, per_tenant_max: usize) -> NameLimits {
    NameLimits { look_ups_max, per_tenant_max, ..NameLimits::default() }
}

#[tokio::test]
async fn a_name_is_looked_up_once_and_then_known() {
    let (server, asked) = name_server().await;
    let names = NameResolver::asking(vec![server], NameLimits::default());
    for _ in 0..3 {
        let found = timeout(SOON, names.look_up("Good.example")).await.expect("soon").unwrap();
        assert_eq!(found, [IpAddr::from(Ipv4Addr::LOCALHOST)]);
    }
    assert_eq!(asked.lock().unwrap().len(), 2, "one question for each kind of address");
    let private = timeout(SOON, names.look_up("good_service")).await.expect("soon").unwrap();
    assert_eq!(private, [IpAddr::from(Ipv4Addr::LOCALHOST)], "names on private networks have underscores");
}

#[tokio::test]
async fn a_name_that_does_not_exist_is_told_from_one_that_nobody_answers_for() {
    let (server, _) = name_server().await;
    let names = NameResolver::asking(vec![server], NameLimits { timeout: SOON / 6, ..NameLimits::default() });
    let nowhere = timeout(SOON, names.look_up("nowhere.example")).await.expect("soon").unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::NotFound, "{nowhere}");
    let silent = timeout(SOON, names.look_up("silent.example")).await.expect("soon").unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::TimedOut, "{silent}");
    for error in [nowhere, silent] {
        assert!(!error.to_string().contains("127.0.0.1"), "no server is named: {error}");
    }
}

/// Each look-up took one of the threads that files are read on: a tenant's dead names stopped everybody's listings.
#[tokio::test]
async fn names_that_nobody_answers_for_hold_up_only_their_own_tenant() {
    let (server, asked) = name_server().await;
    let names = NameResolver::asking(vec![server], limits(4, 2));
    let mut dead = JoinSet::new();
    for number in 0..50 {
        let names = names.clone();
        dead.spawn(async move { names.look_up_for(&format!("silent{number}.example"), Some("slow")).await.is_err() });
    }
    while asked.lock().unwrap().len() < 4 {
        tokio::task::yield_now().await;
    }
    for number in 0..10 {
        let host = format!("good{number}.example");
        timeout(SOON, names.look_up_for(&host, Some("other"))).await.expect("the other tenant is served").unwrap();
    }
    let silent: BTreeSet<String> =
        asked.lock().unwrap().iter().filter(|name| name.starts_with("silent")).cloned().collect();
    assert!(silent.len() <= 2, "as many as one tenant may have under way: {silent:?}");
    dead.abort_all();
}

#[tokio::test]
async fn where_nobody_says_whose_it_is_each_name_is_limited_by_itself() {
    let (server, asked) = name_server().await;
    let names = NameResolver::asking(vec![server], limits(4, 2));
    let mut dead = JoinSet::new();
    for _ in 0..50 {
        let names = names.clone();
        dead.spawn(async move { names.look_up("silent.example").await.is_err() });
    }
    while asked.lock().unwrap().len() < 4 {
        tokio::task::yield_now().await;
    }
    timeout(SOON, names.look_up("good.example")).await.expect("another name is served").unwrap();
    dead.abort_all();
}

#[tokio::test]
async fn a_call_does_not_wait_for_a_name_beyond_its_deadline() {
    let (server, _) = name_server().await;
    let resolver = Arc::new(NameResolver::asking(vec![server], NameLimits::default()));
    let client = Client::new(ClientConfig { resolver, ..loopback() }).unwrap();
    let clock = Clock::system();
    let request = Request::get("http://silent.example/").body(Bytes::new()).unwrap();
    let deadline = clock.instant(clock.now() + Duration::from_millis(200));
    let error = timeout(SOON, client.call(request, deadline)).await.expect("soon").unwrap_err();
    assert_eq!(error.code(), "timeout");
}

#[tokio::test]
async fn this_machine_is_known_without_a_name_server() {
    let found = timeout(SOON, NameResolver::default().look_up("localhost")).await.expect("soon").unwrap();
    assert!(!found.is_empty() && found.iter().all(IpAddr::is_loopback), "{found:?}");
}
