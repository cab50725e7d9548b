//! The API against its own description: schemathesis reads `/openapi.json` of a real `entrega serve` and makes up calls
//! from it, good ones and bad ones. No answer may be a 5xx, have a status, type or shape that the document does not
//! give it, take what the document forbids, or be given without a key.
//!
//! `ENTREGA_SCHEMA_EXAMPLES` sets how many calls are made up for each operation (20), `ENTREGA_SCHEMA_SEED` which.

use entrega_testkit::tool;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::server::{KEY, Server};

/// Nothing may leave but what the test itself sends: made-up jobs have made-up destinations. So the lanes are
/// throttled, and the attempts that the dead letters below take are all there are.
const DEAD_LETTERS: usize = 8;
const CONFIG: &str = r#"
[lanes.http]
retry = { attempts = 1 }
throttle = { max_requests = 8, per = "24h" }

[lanes.webhook]
throttle = { max_requests = 1, per = "24h" }

[transports.main]
url = "smtp://127.0.0.1:9"
"#;

/// What schemathesis is told besides the document. An array of jobs is answered one by one: 207 is a refusal too.
const SETTINGS: &str = r#"
continue-on-failure = true
workers = 1
# Longer than the longest answer that one may ask to wait for: a minute.
request-timeout = 90
# A busy machine makes examples up slowly, which is no failure of the API.
suppress-health-check = ["too_slow"]
warnings = false

[generation]
database = "none"
no-shrink = true

[phases.examples]
enabled = false

[phases.stateful]
enabled = false

[checks]
enabled = true

# A document cannot say that a cursor is one that was given out, or that a key was not used before.
[checks.positive_data_acceptance]
enabled = false

[checks.negative_data_rejection]
expected-statuses = [207, 400, 401, 403, 404, 405, 409, 413, 415, 422]

[parameters]
"path.tenant" = { dictionary = "tenants", probability = 0.8 }
"query.tenant" = { dictionary = "tenants", probability = 0.5 }
"path.name" = { dictionary = "endpoints", probability = 0.8 }
"path.lane" = { dictionary = "lanes", probability = 0.8 }
"query.lane" = { dictionary = "lanes", probability = 0.5 }
# What is made up may be a minute, and the job never ends.
"query.wait" = { dictionary = "waits", probability = 1.0 }
"path.address" = { dictionary = "addresses", probability = 0.5 }
"#;

/// What is in a path behind these can only be an id.
const IDS: [(&str, &str); 5] = [
    ("jobs", "^/v1/jobs/[{]id"),
    ("dead", "^/v1/dlq/[{]id"),
    ("mails", "^/v1/emails/[{]id"),
    ("replays", "^/v1/replays/[{]id"),
    ("keys", "^/v1/keys/[{]id"),
];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Something of every kind, so that calls with an id find what it names. Gives the ids by kind.
async fn furnish(server: &Server) -> Vec<(&'static str, Vec<String>)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (mut dead, mut jobs, mut mails, mut keys, mut replays) = (vec![], vec![], vec![], vec![], vec![]);
    for _ in 0..DEAD_LETTERS {
        let job = json!({"tenant": "ours", "request": {"url": "http://127.0.0.1:9/"}});
        let id = text(&server.ok("POST", "/v1/jobs", &job).await["jobId"]);
        let view = server.ok("GET", &format!("/v1/jobs/{id}?wait=10s"), &Value::Null).await;
        assert_eq!(view["state"], "dlq", "{view}");
        dead.push(id);
    }
    for _ in 0..10 {
        let job = json!({"tenant": "ours", "request": {"url": "https://example.com/"}});
        jobs.push(text(&server.ok("POST", "/v1/jobs", &job).await["jobId"]));
        let mail = json!({"tenant": "ours", "from": "a@e.com", "to": "b@e.com", "subject": "c", "text": "d"});
        mails.push(text(&server.ok("POST", "/v1/email/send", &mail).await["outboxId"]));
        let key = json!({"tenant": "ours", "scopes": ["send"]});
        keys.push(text(&server.ok("POST", "/v1/keys", &key).await["id"]));
    }
    // One that finds nothing: it would take the dead letters away.
    let nothing = json!({"filter": {"code": "none"}});
    replays.push(text(&server.ok("POST", "/v1/dlq/replay", &nothing).await["replayId"]));
    let suppressed = json!({"tenant": "default", "address": "gone@e.com", "reason": "asked for it"});
    server.ok("POST", "/v1/suppressions", &suppressed).await;
    let endpoint = json!({"url": "http://127.0.0.1:9/"});
    server.ok("PUT", "/v1/tenants/ours/endpoints/main", &endpoint).await;
    server.ok("POST", "/v1/tenants/ours/endpoints/main/test", &Value::Null).await;
    jobs.extend_from_slice(&dead);
    vec![("dead", dead), ("jobs", jobs), ("mails", mails), ("keys", keys), ("replays", replays)]
}

fn settings(ids: &[(&str, Vec<String>)]) -> String {
    let mut text = SETTINGS.to_owned();
    for (kind, pattern) in IDS {
        let bound = format!("\"path.id\" = {{ dictionary = \"{kind}\", probability = 0.8 }}");
        text += &format!("\n[[operations]]\ninclude-path-regex = '{pattern}'\nparameters = {{ {bound} }}\n");
    }
    // A connector that was made up a moment ago has an API that nobody finds, or a timeout that none keeps, and a breaker
    // that opens; the answer says so.
    text += "\n[[operations]]\ninclude-path-regex = '^/v1/connectors/[{]id[}]/requests'\n";
    text += "checks = { not_a_server_error = { expected-statuses = [\"2xx\", \"3xx\", \"4xx\", 502, 503, 504] } }\n";
    let named = [("tenants", "ours"), ("endpoints", "main"), ("addresses", "gone@e.com"), ("waits", "1ms")];
    let named = named.map(|(kind, name)| (kind, vec![name.to_owned()]));
    let lanes = ("lanes", ["http", "email:send", "webhook"].map(str::to_owned).to_vec());
    for (kind, values) in ids.iter().chain(&named).chain(std::iter::once(&lanes)) {
        text += &format!("\n[dictionaries.{kind}]\nvalues = {values:?}\n");
    }
    text
}

fn run(address: SocketAddr, folder: &Path) -> Output {
    let mut command = Command::new(tool::python());
    command.args(["-m", "schemathesis.cli", "--config-file", "settings.toml", "run"]);
    command.arg(format!("http://{address}/openapi.json"));
    command.args(["--no-color", "--header", &format!("Authorization: Bearer {KEY}")]);
    command.args(["--max-examples", &number("ENTREGA_SCHEMA_EXAMPLES", 20).to_string()]);
    command.args(["--seed", &number("ENTREGA_SCHEMA_SEED", 1).to_string()]);
    let output = command.current_dir(folder).output();
    output.unwrap_or_else(|error| panic!("{}: {error}; `cargo xtask test` installs it", tool::python().display()))
}

#[tokio::test]
async fn no_made_up_call_gets_an_answer_that_the_document_does_not_describe() {
    if tool::is_left_out("python") {
        return println!("left out: there is no Python here");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("entrega.toml"), CONFIG).unwrap();
    let server = Server::start(folder.path());
    std::fs::write(folder.path().join("settings.toml"), settings(&furnish(&server).await)).unwrap();
    let (address, path) = (server.address, folder.path().to_owned());
    // Elsewhere, so that this thread sees when the server closes an idle connection.
    let output = tokio::task::spawn_blocking(move || run(address, &path)).await.unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{}\n{errors}\n{told}", output.status, server.log());
    let summary = told.split_once("= SUMMARY =").map_or("", |(_, summary)| summary);
    println!("{summary}");
    assert!(summary.contains("generated"), "{told}");
    server.ok("GET", "/health/ready", &Value::Null).await;
}
