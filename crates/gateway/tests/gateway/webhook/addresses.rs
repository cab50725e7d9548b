//! Where webhooks never go: every way to write, resolve or redirect to an address inside, with somebody listening there.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use entrega::EngineParts;
use entrega::seal::Seal;
use entrega::store::{Endpoint, EndpointOrigin, Store};
use entrega_call::{Client, ClientConfig, LookUp, Resolve};
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use entrega_gateway::config::Config;
use serde_json::{Value, json};

use crate::world::{ADMIN, Answer, Gateway, Kind};
use entrega_testkit::receiver::{Receiver, SECRET, open};

/// Plain HTTP, so that a call which goes through is one that somebody hears; and no network is open.
const CLOSED: &str = "[outbound]\nallow_http = true\n";

/// Hosts that are an address inside, whoever reads them.
const ADDRESSES: [&str; 17] = [
    "127.0.0.1",
    "127.255.255.254",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "0.0.0.0",
    "[::]",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[fe80::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[::ffff:169.254.169.254]",
];

/// Names that mean this machine, whoever is asked.
const NAMES: [&str; 4] = ["localhost", "localhost.", "LOCALHOST.", "inner.localhost"];

/// What some resolvers take for an address, each in its own way.
const SPELLINGS: [&str; 9] = [
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "0x7f.1",
    "0x7f000001",
    "0x7F.0.0.1.",
    "127.1",
    "127.0.1",
    "127.0.0.1.",
];

/// Hears everything that reaches this machine on one port, by whatever address.
struct Ear(TcpListener);

impl Ear {
    fn open() -> Ear {
        // Both families; where there is no IPv6, nothing can come over it.
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
        Ear::of(listener.unwrap())
    }

    fn of(listener: TcpListener) -> Ear {
        listener.set_nonblocking(true).unwrap();
        Ear(listener)
    }

    fn port(&self) -> u16 {
        self.0.local_addr().unwrap().port()
    }

    /// Whether anybody connected: the kernel takes connections that nobody has accepted yet.
    fn heard(&self) -> bool {
        match self.0.accept() {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("{error}"),
        }
    }
}

fn path(name: &str) -> String {
    format!("/v1/tenants/ours/endpoints/{name}")
}

async fn put(gateway: &Gateway, name: &str, url: &str) -> Answer {
    let body = json!({ "url": url }).to_string();
    gateway.call("PUT", &path(name), ADMIN, &[("content-type", "application/json")], body).await
}

/// What became of a test of an endpoint, once it has ended.
async fn tested(gateway: &Gateway, name: &str) -> Value {
    let asked = gateway.post(&format!("{}/test", path(name)), ADMIN, Value::Null).await.expect(202);
    gateway.get(&format!("/v1/jobs/{}?wait=20s", asked["jobId"].as_str().unwrap())).await
}

/// The code with which a test of an endpoint was given up at once.
async fn refusal(gateway: &Gateway, name: &str) -> String {
    let job = tested(gateway, name).await;
    assert_eq!((&job["state"], job["attempts"].as_array().unwrap().len()), (&json!("dlq"), 1), "{job}");
    job["attempts"][0]["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn an_endpoint_with_an_address_inside_is_refused_however_it_is_written() {
    let ear = Ear::open();
    let gateway = Gateway::with(Kind::Memory, CLOSED).await;
    for host in ADDRESSES.into_iter().chain(NAMES).chain(SPELLINGS) {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://{host}:{}/", ear.port());
            let problem = put(&gateway, "default", &url).await.expect(422);
            assert_eq!(problem["errors"][0]["field"], "url", "{url}: {problem}");
        }
    }
    assert_eq!(gateway.get("/v1/tenants/ours/endpoints").await["items"], json!([]));
    assert!(!ear.heard());
    gateway.stop().await;
}

/// As if the network had been open when it was set, or somebody had written to the store.
async fn slip_in(store: &dyn Store, seal: &Seal, name: &str, url: String) {
    let tenant = TenantName::new("ours").unwrap();
    let secret = seal.seal(SECRET, &Endpoint::context_of(&tenant, name)).unwrap();
    let endpoint = Endpoint::new(tenant, name, &url, EndpointOrigin::Api, Time::ZERO);
    let endpoint = Endpoint { secrets: vec![secret], ..endpoint };
    store.put_endpoint(endpoint).await.unwrap();
}

#[tokio::test]
async fn an_endpoint_with_an_address_inside_that_is_there_all_the_same_is_never_called() {
    let ear = Ear::open();
    let mut inner = None;
    let look_in = |parts: &mut EngineParts, _: &Config| inner = Some((parts.env.store.clone(), parts.seal.clone()));
    let gateway = Gateway::changed(Kind::Memory, CLOSED, look_in).await;
    let (store, seal) = inner.unwrap();
    for (number, host) in ADDRESSES.into_iter().chain(NAMES).chain(SPELLINGS).enumerate() {
        let name = format!("e{number}");
        slip_in(&*store, &seal, &name, format!("http://{host}:{}/", ear.port())).await;
        // A spelling that is read in several ways is not even asked for.
        let expected = if SPELLINGS.contains(&host) { "invalid" } else { "forbidden_address" };
        assert_eq!(refusal(&gateway, &name).await, expected, "{host}");
    }
    assert!(!ear.heard());
    gateway.stop().await;

    let gateway = Gateway::with(Kind::Memory, &open("smtp://127.0.0.1:9", "")).await;
    put(&gateway, "default", &format!("http://127.0.0.1:{}/", ear.port())).await.expect(201);
    gateway.post(&format!("{}/test", path("default")), ADMIN, Value::Null).await.expect(202);
    while !ear.heard() {
        // reason: the call comes when it comes; where the network is open, somebody does listen.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// What names mean here; one of several answers, by turns.
#[derive(Debug, Default)]
struct Names {
    answers: BTreeMap<String, Vec<Vec<IpAddr>>>,
    asked: AtomicUsize,
}

impl Names {
    fn add(&mut self, name: &str, answers: &[&[&str]]) {
        let read = |answer: &&[&str]| answer.iter().map(|address| address.parse().unwrap()).collect();
        self.answers.insert(name.to_owned(), answers.iter().map(read).collect());
    }
}

impl Resolve for Names {
    fn look_up<'a>(&'a self, host: &'a str) -> LookUp<'a> {
        let answers = &self.answers[host];
        let answer = answers[self.asked.fetch_add(1, Ordering::SeqCst) % answers.len()].clone();
        Box::pin(async move { Ok(answer) })
    }
}

/// Webhooks with these names. No connection is kept: every attempt looks the name up.
fn knowing(names: Arc<Names>) -> impl FnOnce(&mut EngineParts, &Config) {
    |parts, config| {
        let client = ClientConfig { resolver: names, idle_per_host_max: 0, ..config.client().unwrap() };
        parts.client = Client::new(client).unwrap();
    }
}

#[tokio::test]
async fn a_name_that_means_an_address_inside_is_never_called() {
    let ear = Ear::open();
    let mut names = Names::default();
    let bare = ADDRESSES.map(|host| host.trim_matches(['[', ']']));
    for (number, address) in bare.iter().enumerate() {
        names.add(&format!("n{number}.example.com"), &[&[*address]]);
    }
    names.add("many.example.com", &[&bare]);
    names.add("dot.example.com.", &[&["127.0.0.1"]]);
    let hosts: Vec<String> = names.answers.keys().cloned().collect();
    let gateway = Gateway::changed(Kind::Memory, CLOSED, knowing(Arc::new(names))).await;
    for (number, host) in hosts.iter().enumerate() {
        let name = format!("e{number}");
        put(&gateway, &name, &format!("http://{host}:{}/", ear.port())).await.expect(201);
        assert_eq!(refusal(&gateway, &name).await, "forbidden_address", "{host}");
    }
    assert!(!ear.heard());
    gateway.stop().await;
}

/// A receiver that may be called, and an ear at the same port of an address that may not.
async fn beside_each_other() -> (Receiver, Ear) {
    // One port on both addresses; somebody else may have it on one of them.
    let (receiver, listener) = loop {
        let receiver = Receiver::start_at("127.0.0.2").await;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", receiver.address.port())) {
            break (receiver, listener);
        }
    };
    let ear = Ear::of(listener);
    (receiver, ear)
}

const ONE_OPEN: &str = "[outbound]\nallow_http = true\nallow_networks = [\"127.0.0.2/32\"]\n";

#[tokio::test]
async fn of_a_name_with_an_address_inside_and_one_outside_only_that_one_is_called() {
    let (receiver, ear) = beside_each_other().await;
    let mut names = Names::default();
    names.add("mixed.example.com", &[&["127.0.0.1", "127.0.0.2"], &["::ffff:127.0.0.1", "127.0.0.2", "127.0.0.1"]]);
    let gateway = Gateway::changed(Kind::Memory, ONE_OPEN, knowing(Arc::new(names))).await;
    put(&gateway, "default", &format!("http://mixed.example.com:{}/", receiver.address.port())).await.expect(201);
    for _ in 0..2 {
        assert_eq!(tested(&gateway, "default").await["state"], "done");
    }
    assert!(receiver.got().len() == 2 && !ear.heard());
    gateway.stop().await;
}

#[tokio::test]
async fn a_name_whose_answer_changes_between_look_ups_reaches_nobody_inside() {
    let (receiver, ear) = beside_each_other().await;
    let mut names = Names::default();
    names.add("fickle.example.com", &[&["127.0.0.2"], &["127.0.0.1"]]);
    let names = Arc::new(names);
    let gateway = Gateway::changed(Kind::Memory, ONE_OPEN, knowing(names.clone())).await;
    put(&gateway, "default", &format!("http://fickle.example.com:{}/", receiver.address.port())).await.expect(201);
    for round in 1..=3 {
        assert_eq!(tested(&gateway, "default").await["state"], "done");
        assert_eq!(refusal(&gateway, "default").await, "forbidden_address");
        assert_eq!(names.asked.load(Ordering::SeqCst), 2 * round, "once for each attempt");
    }
    assert!(receiver.got().len() == 3 && !ear.heard());
    gateway.stop().await;
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_nobody_follows_it() {
    let (receiver, ear) = (Receiver::start().await, Ear::open());
    receiver.answers(&[301, 302, 303, 307, 308]);
    receiver.points_to(&format!("http://127.0.0.1:{}/", ear.port()));
    let gateway = Gateway::with(Kind::Memory, &open("smtp://127.0.0.1:9", "")).await;
    put(&gateway, "default", &receiver.url("/")).await.expect(201);
    let job = tested(&gateway, "default").await;
    let codes: Vec<_> = job["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["code"]).collect();
    assert_eq!(codes, ["http_301", "http_302", "http_303", "http_307", "http_308", "ok"], "{job}");
    assert!(!ear.heard(), "the place was open to calls, and yet nobody went there");
    gateway.stop().await;
}
