//! Commands against a real server: the API over a store in memory, and a channel that fails until told otherwise.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use clap::{CommandFactory, Parser};
use entrega_core::outcome::{Answer, Fault, FaultKind, Outcome};
use entrega_ledger::{HeapLedger, LsmLedger};
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::target::Target;
use super::*;
use crate::api::{ApiState, ServerLimits, hash_key};
use crate::config::Config;
use entrega::EngineParts;
use entrega::channel::Channel;
use entrega::store::ClaimedJob;
use entrega::store::local::LocalStore;
use entrega::store::local::tables::TABLES;
use entrega_call::Clock;

const KEY: &str = "the-operators-key-of-this-test";
const DESTINATION: &str = "http://127.0.0.1:9/orders";

/// A destination that answers 404 until it is mended; endpoints are never called.
struct Destination(Arc<AtomicBool>);

#[async_trait]
impl Channel for Destination {
    async fn attempt(&self, claimed: &ClaimedJob, _: tokio::time::Instant) -> Outcome {
        if claimed.job.tenant.is_endpoint() {
            return Outcome::Fault(Fault { kind: FaultKind::Held, message: "the endpoint is paused".into() });
        }
        let status = if self.0.load(Ordering::SeqCst) { StatusCode::OK } else { StatusCode::NOT_FOUND };
        let body = bytes::Bytes::from_static(b"gone\x1b[2J");
        Outcome::Answer(Answer { status, headers: HeaderMap::new(), body, truncated: false, retry_after: None })
    }
}

/// What a command printed.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct World {
    url: String,
    mended: Arc<AtomicBool>,
    shutdown: CancellationToken,
}

impl World {
    async fn start() -> World {
        let options = Options { dev: true, store: Some("memory".into()), ..Options::default() };
        let mut config = Config::load(ConfigSources { options, ..ConfigSources::default() }).unwrap();
        config.lanes.retain(|_, policy| !["proxy", "connector"].contains(&policy.channel.as_str()));
        let mended = Arc::new(AtomicBool::new(false));
        let channel: Arc<dyn Channel> = Arc::new(Destination(mended.clone()));
        let clock = Clock::system();
        let ledger = Arc::new(HeapLedger::new(&TABLES));
        let store = LocalStore::open(ledger, clock.clone(), config.store.local(&config.lanes)).await.unwrap();
        let channels = ["http", "email", "event", "webhook"].map(|name| (name.to_owned(), channel.clone()));
        let (channels, filter) = (HashMap::from(channels), config.filter());
        let parts = EngineParts { channels, filter, ..EngineParts::over(Arc::new(store), clock, config.lanes) };
        let engine = Arc::new(parts.build());
        let shutdown = CancellationToken::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = ApiState::new(engine.clone(), hash_key(KEY));
        tokio::spawn(crate::api::serve(listener, state, ServerLimits::default(), shutdown.clone()));
        let stop = shutdown.clone();
        tokio::spawn(async move { engine.run(stop, Duration::from_secs(1)).await });
        World { url, mended, shutdown }
    }

    async fn run_as(&self, key: &str, args: &[&str]) -> Result<String, CliError> {
        run(&[&["--url", &self.url, "--key", key], args].concat()).await
    }

    /// Runs a command that works.
    async fn run(&self, args: &[&str]) -> String {
        self.run_as(KEY, args).await.unwrap_or_else(|error| panic!("{args:?}: {}", error.message()))
    }

    async fn json(&self, args: &[&str]) -> Value {
        let text = self.run(&[&["--json"], args].concat()).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Runs a command that does not, and gives its exit code and message.
    async fn fail(&self, args: &[&str]) -> (u8, String) {
        let error = self.run_as(KEY, args).await.expect_err("it should not work");
        (error.code(), error.message())
    }

    /// Sends a job and waits until it is a dead letter.
    async fn dead_letter(&self, tenant: &str) -> String {
        let job = self.json(&["jobs", "send", DESTINATION, "--tenant", tenant, "--wait", "30s"]).await;
        assert_eq!(job["state"], "dlq");
        job["jobId"].as_str().unwrap().to_owned()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn run(args: &[&str]) -> Result<String, CliError> {
    let cli = Cli::try_parse_from([&["entrega"], args].concat()).unwrap_or_else(|error| panic!("{error}"));
    let paper = Paper::default();
    let mut out = Out::to(Box::new(paper.clone()), cli.json);
    execute(cli, &mut out).await?;
    let printed = paper.0.lock().clone();
    Ok(String::from_utf8(printed).unwrap())
}

#[test]
fn the_commands_are_well_formed_and_help_tells_the_exit_codes() {
    Cli::command().debug_assert();
    let help = Cli::command().render_help().to_string();
    assert!(help.contains("Exit codes:") && help.contains("4  the server cannot be reached"), "{help}");
    for wrong in [&["dlq", "replay"][..], &["dlq", "replay", "x", "--all"], &["dlq", "purge", "--reason", "r"]] {
        let error = Cli::try_parse_from([&["entrega"], wrong].concat()).expect_err("wrong");
        assert_eq!(error.exit_code(), 2, "{wrong:?}");
    }
}

#[tokio::test]
async fn a_job_fails_is_looked_at_and_replayed() {
    let world = World::start().await;
    let data = "{ \"id\": 1 }";
    let sent = ["jobs", "send", DESTINATION, "-d", data, "-H", "X-Source: shop", "--label", "runId=7", "--wait", "30s"];
    let shown = world.run(&sent).await;
    assert!(shown.contains("state        dlq") && shown.contains("http_404"), "{shown}");
    let listed = world.json(&["dlq", "list", "--code", "http_404", "--status", "pending"]).await;
    let id = listed["items"][0]["jobId"].as_str().unwrap();
    let request = &listed["items"][0]["originalData"]["payload"]["http"];
    assert_eq!(request["body"], data, "byte for byte");
    assert!(request["headers"].to_string().contains("application/json"), "{request}");
    assert_eq!(listed["items"][0]["originalData"]["labels"]["runId"], "7");
    let shown = world.run(&["dlq", "show", id]).await;
    assert!(shown.contains("POST http://127.0.0.1:9/orders") && shown.contains("HTTP 404"), "{shown}");
    assert!(!shown.contains('\x1b'), "{shown:?}");
    let table = world.run(&["dlq", "list"]).await;
    assert!(table.contains("JOB") && table.contains(id), "{table}");

    world.mended.store(true, Ordering::SeqCst);
    world.run(&["dlq", "replay", id]).await;
    assert_eq!(world.json(&["jobs", "show", id, "--wait", "30s"]).await["state"], "done");
    assert!(world.run(&["jobs", "list", "--state", "done"]).await.contains(id));
    assert!(world.run(&["jobs", "explain", id]).await.contains("it was delivered"));
}

#[tokio::test]
async fn many_are_replayed_and_followed_to_the_end() {
    let world = World::start().await;
    for tenant in ["acme", "acme", "bolt"] {
        world.dead_letter(tenant).await;
    }
    let stats = world.run(&["dlq", "stats", "--by", "tenant"]).await;
    assert!(stats.contains("acme") && stats.contains("total: 3"), "{stats}");
    world.mended.store(true, Ordering::SeqCst);
    let run = world.json(&["dlq", "replay", "--tenant", "acme", "--rate", "1000"]).await;
    assert_eq!((&run["status"], &run["replayed"]), (&Value::from("finished"), &Value::from(2)));
    let told = world.run(&["dlq", "replay", "--all", "--rate", "1000", "--no-wait"]).await;
    assert!(told.contains("of 1 on their way"), "{told}");
}

#[tokio::test]
async fn a_purge_counts_first_and_leaves_the_reason() {
    let world = World::start().await;
    let (gone, kept) = (world.dead_letter("acme").await, world.dead_letter("bolt").await);
    let purge = ["dlq", "purge", "--tenant", "acme", "--reason", "test orders"];
    assert_eq!(
        world.fail(&purge).await,
        (2, "error: dead letters that would be discarded: 1; add --yes to do it".into())
    );
    assert_eq!(world.json(&["dlq", "show", &gone]).await["status"], "pending");
    let told = world.run(&[&purge[..], &["--yes"]].concat()).await;
    assert_eq!(told, "dead letters discarded: 1\n");
    let dead = world.json(&["dlq", "show", &gone]).await;
    assert_eq!((&dead["status"], &dead["discardReason"]), (&Value::from("discarded"), &Value::from("test orders")));
    assert_eq!(world.json(&["dlq", "show", &kept]).await["status"], "pending");
}

#[tokio::test]
async fn an_export_is_a_whole_file() {
    let world = World::start().await;
    let ids = [world.dead_letter("acme").await, world.dead_letter("acme").await];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dead.jsonl");
    world.run(&["dlq", "export", "-o", path.to_str().unwrap()]).await;
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.lines().count() == 2 && ids.iter().all(|id| text.contains(id.as_str())), "{text}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    let csv = world.run(&["dlq", "export", "--format", "csv"]).await;
    assert!(csv.starts_with("jobId,") && csv.lines().count() == 3, "{csv}");
    let (code, _) = world.fail(&["dlq", "export", "--lane", "No Lane"]).await;
    assert_eq!(code, 1);
}

#[tokio::test]
async fn a_paused_lane_holds_a_job_that_can_then_be_cancelled() {
    let world = World::start().await;
    world.run(&["lanes", "pause", "http"]).await;
    let lanes = world.run(&["lanes"]).await;
    assert!(lanes.contains("paused"), "{lanes}");
    let id = world.run(&["jobs", "send", DESTINATION]).await.trim().to_owned();
    let why = world.run(&["jobs", "explain", &id]).await;
    assert!(why.contains("paused"), "{why}");
    world.run(&["jobs", "cancel", &id]).await;
    assert_eq!(world.json(&["jobs", "show", &id]).await["state"], "cancelled");
    world.run(&["lanes", "resume", "http"]).await;
    let lanes = world.json(&["lanes"]).await;
    assert!(lanes["items"].as_array().unwrap().iter().all(|lane| lane["paused"] == false), "{lanes}");
}

#[tokio::test]
async fn tenants_have_weights() {
    let world = World::start().await;
    world.run(&["tenants", "weight", "acme", "3"]).await;
    world.dead_letter("acme").await;
    let tenants = world.json(&["tenants"]).await;
    assert_eq!((&tenants["items"][0]["companyId"], &tenants["items"][0]["weight"]), (&"acme".into(), &3.into()));
    let (code, message) = world.fail(&["tenants", "weight", "acme", "0"]).await;
    assert!(code == 1 && message.contains("weight"), "{message}");
}

#[tokio::test]
async fn a_key_opens_what_its_scopes_say() {
    let world = World::start().await;
    let key = world.run(&["keys", "create", "--tenant", "acme", "--scope", "read"]).await;
    let id = world.json(&["keys", "list"]).await["items"][0]["id"].as_str().unwrap().to_owned();
    assert!(world.run_as(&key, &["jobs", "list"]).await.is_ok());
    let error = world.run_as(&key, &["lanes"]).await.unwrap_err();
    assert!(error.code() == 5 && error.message().contains("keys create"), "{}", error.message());
    world.run(&["keys", "delete", &id]).await;
    let error = world.run_as(&key, &["jobs", "list"]).await.unwrap_err();
    assert!(error.code() == 5 && error.message().contains("hint: give a key"), "{}", error.message());
}

#[tokio::test]
async fn an_exit_code_says_what_happened() {
    let world = World::start().await;
    let unknown = "job_01J9Z3K5V84NQW6R7T2Y0X1ABC";
    assert_eq!(world.fail(&["jobs", "show", unknown]).await.0, 3);
    assert_eq!(world.fail(&["dlq", "show", "../../health/live"]).await.0, 3);
    let (code, message) = world.fail(&["jobs", "send", "ftp://example.com"]).await;
    assert!(code == 1 && message.contains("request.url"), "{message}");
    assert_eq!(message.matches("request.url").count(), 1, "told once: {message}");
    let refused = run(&["--url", "http://127.0.0.1:1", "--key", KEY, "lanes"]).await.unwrap_err();
    assert!(refused.code() == 4 && refused.message().contains("entrega serve"), "{}", refused.message());
    let bad = run(&["--url", "nowhere", "--key", KEY, "lanes"]).await.unwrap_err();
    assert_eq!(bad.code(), 2);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    std::fs::write(&file, "[sever]").unwrap();
    let bad = run(&["config", "check", "--config", file.to_str().unwrap()]).await.unwrap_err();
    assert!(bad.code() == 6 && bad.message().contains("did you mean 'server'?"), "{}", bad.message());
}

#[tokio::test]
async fn listings_go_on_over_several_pages() {
    let world = World::start().await;
    world.run(&["lanes", "pause", "http"]).await;
    for _ in 0..3 {
        world.run(&["jobs", "send", DESTINATION]).await;
    }
    let first = world.json(&["jobs", "list", "--limit", "2"]).await;
    let cursor = first["nextCursor"].as_str().unwrap();
    assert!(world.run(&["jobs", "list", "--limit", "2"]).await.contains(&format!("more: --cursor {cursor}")));
    let second = world.json(&["jobs", "list", "--limit", "2", "--cursor", cursor]).await;
    assert_eq!((first["items"].as_array().unwrap().len(), second["items"].as_array().unwrap().len()), (2, 1));
    assert_eq!(second["nextCursor"], Value::Null);
}

#[tokio::test]
async fn the_doctor_works_with_and_without_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let found = run(&["--url", "http://127.0.0.1:1", "doctor", "--data", data]).await.unwrap();
    assert!(found.contains("info  server          not running"), "{found}");
    assert!(found.contains("ok    configuration") && found.contains("is made when"), "{found}");
    let world = World::start().await;
    let found = world.run(&["doctor", "--data", data]).await;
    assert!(found.contains("ok    readiness") && found.contains("ok    key "), "{found}");
    let error = world.run_as("another-key-of-nobody", &["doctor", "--data", data]).await.unwrap_err();
    assert_eq!(error.code(), 1);
    let error = run(&["doctor", "--data", "/proc/nothing/here"]).await.unwrap_err();
    assert!(matches!(error, CliError::Unhealthy { .. }), "{error}");
}

/// A store with nothing in it but its own records, stopped.
fn stopped_store(data: &std::path::Path) {
    drop(LsmLedger::open(data, &TABLES).unwrap());
    std::fs::write(data.join("admin-key"), KEY).unwrap();
}

#[tokio::test]
async fn a_deep_check_reads_a_stopped_store_and_leaves_a_running_one_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (data, deep) = (dir.path().join("data"), ["--url", "http://127.0.0.1:1", "doctor", "--deep", "--data"]);
    let deep = [&deep[..], &[data.to_str().unwrap()]].concat();
    assert!(run(&deep).await.unwrap().contains("info  store           there is none"));
    stopped_store(&data);
    assert!(run(&deep).await.unwrap().contains("ok    store           the journal is sound"));
    let running = LsmLedger::open(&data, &TABLES).unwrap();
    assert!(run(&deep).await.unwrap().contains("info  store           the gateway is running"));
    drop(running);
    std::fs::write(data.join("store/0.jnl"), "not a journal").unwrap();
    assert_eq!(run(&deep).await.unwrap_err().code(), 1);
}

#[tokio::test]
async fn a_salvage_says_in_its_exit_code_whether_all_was_saved() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    stopped_store(&dir.path().join("data"));
    let found = run(&["salvage", "--from", &path("data"), "--to", &path("saved")]).await.unwrap();
    assert!(found.contains("saved: 0 waiting jobs"), "{found}");
    assert_eq!(std::fs::read_to_string(path("saved/admin-key")).unwrap(), KEY, "keys come along");
    let error = run(&["salvage", "--from", &path("data"), "--to", &path("saved")]).await.unwrap_err();
    assert_eq!(error.code(), 7, "{error}");
    std::fs::write(path("data/store/0.jnl"), "not a journal").unwrap();
    let error = run(&["salvage", "--from", &path("data"), "--to", &path("again")]).await.unwrap_err();
    assert_eq!(error.code(), 9, "{error}");
}

#[tokio::test]
async fn a_key_found_on_this_machine_is_not_sent_to_another() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("admin-key"), format!("{KEY}\n")).unwrap();
    for (url, is_sent) in [("http://127.0.0.1:1", true), ("http://[::1]:1", true), ("https://example.com", false)] {
        let cli = Cli::try_parse_from(["entrega", "--url", url, "lanes"]).unwrap();
        assert_eq!(cli.connection.open_with(dir.path()).unwrap().has_key(), is_sent, "{url}");
    }
}

#[tokio::test]
async fn what_needs_no_server_is_printed() {
    let openapi: Value = serde_json::from_str(&run(&["openapi"]).await.unwrap()).unwrap();
    assert!(openapi["paths"]["/v1/jobs"].is_object());
    assert!(run(&["completions", "bash"]).await.unwrap().contains("entrega"));
    let printed = run(&["config", "print", "--listen", "127.0.0.1:9999"]).await.unwrap();
    assert!(printed.contains("127.0.0.1:9999") && printed.contains("[lanes.http]"), "{printed}");
    assert_eq!(run(&["config", "defaults"]).await.unwrap(), crate::config::DEFAULTS);
}

#[tokio::test]
async fn what_waits_for_an_endpoint_is_given_up_with_a_reason() {
    let world = World::start().await;
    let target = Target::new("/v1/tenants").part("acme").part("endpoints").part("default");
    let cli = Cli::try_parse_from(["entrega", "--url", &world.url, "--key", KEY, "lanes"]).unwrap();
    let paused = serde_json::json!({"url": DESTINATION, "paused": true});
    cli.connection.open().unwrap().put(&target, &paused).await.unwrap();
    let id = world.json(&["webhook", "test", "acme"]).await["jobId"].as_str().unwrap().to_owned();
    assert_eq!(world.json(&["jobs", "show", &id, "--wait", "10s"]).await["state"], "blocked");
    assert!(Cli::try_parse_from(["entrega", "webhook", "discard", "acme"]).is_err(), "it wants a reason");
    let discard = ["webhook", "discard", "acme", "default", "--reason", "they left"];
    assert_eq!(world.run(&discard).await, "discarded 1\n");
    let job = world.json(&["jobs", "show", &id]).await;
    assert_eq!((&job["state"], &job["reason"]), (&"cancelled".into(), &"they left".into()), "{job}");
    assert_eq!(world.json(&discard).await["discarded"], 0);
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[tokio::test]
async fn a_new_secret_is_printed_alone_and_never_twice() {
    let made = run(&["webhook", "new-secret"]).await.unwrap();
    let secret = made.strip_suffix('\n').unwrap();
    let rest = secret.strip_prefix("whsec_").unwrap();
    assert!(rest.len() == 32 && rest.chars().all(|c| c.is_ascii_alphanumeric()), "{made}");
    assert_ne!(run(&["webhook", "new-secret"]).await.unwrap(), made);
}

#[tokio::test]
async fn a_body_is_signed_and_its_signatures_are_verified() {
    let dir = tempfile::tempdir().unwrap();
    let (body, changed) = (dir.path().join("body.json"), dir.path().join("changed.json"));
    std::fs::write(&body, r#"{"test": 2432232314}"#).unwrap();
    std::fs::write(&changed, r#"{"test": 2432232315}"#).unwrap();
    let (body, changed) = (body.to_str().unwrap(), changed.to_str().unwrap());
    let message = ["--id", "msg_p5jXN8AQM9LWM0D4loKWxJek", "--timestamp", "1614265330"];
    let sign = [&["webhook", "sign", "--secret", SECRET, body], &message[..]].concat();
    let body_signature = "sha256=80ec8a89ce3cd22133a1066caecb4d04fea7467657c8514d717ec42c38a5c94c";
    let standard_signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    let headers = format!(
        "X-Signature: {body_signature}\nwebhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek\n\
         webhook-timestamp: 1614265330\nwebhook-signature: {standard_signature}\n"
    );
    assert_eq!(run(&sign).await.unwrap(), headers);

    let verify = ["webhook", "verify", "--secret", SECRET, "--signature"];
    let plain = |file| [&verify[..], &[body_signature, file]].concat();
    let standard = |file| [&verify[..], &[standard_signature, file], &message].concat();
    assert_eq!(run(&plain(body)).await.unwrap(), "the signature is right\n");
    assert_eq!(run(&standard(body)).await.unwrap(), "the signature is right\n");
    let old = [&standard(body)[..], &["--tolerance", "5m"]].concat();
    for (wrong, told) in [(plain(changed), "none of the secrets"), (standard(changed), "none"), (old, "5m are allowed")]
    {
        let error = run(&wrong).await.unwrap_err();
        assert!(error.code() == 1 && error.message().contains(told), "{wrong:?}: {}", error.message());
    }
    let error = run(&[&verify[..], &[standard_signature, body]].concat()).await.unwrap_err();
    assert!(error.code() == 2 && error.message().contains("--timestamp"), "{}", error.message());
}

#[tokio::test]
async fn a_signed_message_is_named_after_the_event_in_the_body() {
    let dir = tempfile::tempdir().unwrap();
    let body = dir.path().join("body.json");
    let sign = ["--json", "webhook", "sign", "--secret", SECRET, body.to_str().unwrap()];
    for (text, is_named) in [(r#"{"eventId":"evt_17"}"#, true), (r#"{"eventId":"a.b"}"#, false), ("no JSON", false)] {
        std::fs::write(&body, text).unwrap();
        let headers: Value = serde_json::from_str(&run(&sign).await.unwrap()).unwrap();
        let id = headers["webhook-id"].as_str().unwrap();
        assert_eq!(id == "evt_17", is_named, "{id}");
        assert!(is_named || id.len() == "evt_".len() + 26, "{id}");
    }
    let error = run(&[&sign[..], &["--id", "a.b"]].concat()).await.unwrap_err();
    assert!(error.code() == 2 && error.message().contains("full stop"), "{}", error.message());
}

#[tokio::test]
async fn a_secret_that_is_refused_is_not_repeated() {
    for (secret, told) in [("too-short", "16 to 128"), ("whsec_schlüssel_für_alle", "ASCII"), ("", "new-secret")] {
        let error = run(&["webhook", "sign", "--secret", secret, "/dev/null"]).await.unwrap_err();
        let message = error.message();
        assert!(error.code() == 2 && message.contains("--secret") && message.contains(told), "{message}");
        assert!(secret.is_empty() || !message.contains(secret), "{message}");
    }
    let parsed = Cli::try_parse_from(["entrega", "webhook", "sign", "--secret", SECRET, "-"]).unwrap();
    assert!(!format!("{parsed:?}").contains(SECRET), "{parsed:?}");
}
