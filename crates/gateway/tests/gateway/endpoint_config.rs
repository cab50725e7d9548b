//! Where webhooks go, as an operator says it, and what comes of it in the store.

use std::path::Path;
use std::sync::Arc;

use entrega::seal::SealError;
use entrega::store::{Endpoint, EndpointOrigin, EndpointState};
use entrega::webhook::EndpointConfig;
use entrega::{Engine, OpenError};
use entrega_core::name::TenantName;
use entrega_core::throttle::Rate;
use entrega_core::time::Time;
use entrega_gateway::config::{Config, ConfigError, ConfigFile, ConfigSources, Options};

const SECRET: &str = "whsec_0123456789abcdef";
const ACME: &str =
    "[tenants.acme.endpoints.default]\nurl = 'https://acme.example.com/hooks'\nsecret = 'whsec_0123456789abcdef'\n";

fn load_with(toml: &str, env: &[(&str, &str)], options: Options) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("entrega.toml");
    std::fs::write(&file, toml).unwrap();
    let env = env.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    Config::load(ConfigSources { file: ConfigFile::At(file), env, options })
}

fn load(toml: &str, env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    load_with(toml, env, Options::default())
}

fn tenant() -> TenantName {
    TenantName::new("acme").unwrap()
}

fn only(config: &Config) -> &EndpointConfig {
    assert_eq!(config.endpoints.len(), 1, "{config:?}");
    &config.endpoints[0]
}

#[test]
fn an_endpoint_comes_from_the_file_or_from_plain_names_and_those_win() {
    let more = "event_types = ['email.sent', 'email.failed']\nenabled = false\n\
        throttle = { max_requests = 10, per = '1m' }\n";
    let config = load(&format!("{ACME}{more}"), &[]).unwrap();
    let found = only(&config);
    assert_eq!(found.throttle, Some(Rate { max_requests: 10, per_ms: 60_000 }));
    assert_eq!((found.tenant.as_str(), found.name.as_str()), ("acme", "default"));
    assert_eq!((found.url.as_str(), found.secret.reveal()), ("https://acme.example.com/hooks", SECRET));
    assert_eq!((found.event_types.join(" ").as_str(), found.enabled), ("email.failed email.sent", false));

    let env = [("WEBHOOK_URL_M2", "https://m2.example.com/hooks"), ("WEBHOOK_SECRET_M2", "2024202420242024")];
    let config = load("", &env).unwrap();
    let found = only(&config);
    assert_eq!((found.tenant.as_str(), found.name.as_str(), found.enabled), ("m2", "default", true));
    assert_eq!(found.secret.reveal(), "2024202420242024", "a text, however it looks");

    let config = load(ACME, &[("WEBHOOK_SECRET_ACME", "another-secret-of-20"), ("WEBHOOK_URL_ACME", "")]).unwrap();
    let found = only(&config);
    assert_eq!((found.url.as_str(), found.secret.reveal()), ("https://acme.example.com/hooks", "another-secret-of-20"));
}

#[test]
fn plain_http_is_refused_unless_it_is_open() {
    let plain = ACME.replace("https://acme.example.com", "http://127.0.0.1:9000");
    let error = load(&plain, &[]).unwrap_err().to_string();
    assert!(error.contains("tenants.acme.endpoints.default.url") && error.contains("allow_http"), "{error}");
    let dev = Options { dev: true, ..Options::default() };
    assert_eq!(only(&load_with(&plain, &[], dev).unwrap()).url, "http://127.0.0.1:9000/hooks");
}

#[test]
fn what_is_wrong_is_named_and_no_secret_is_shown() {
    let with = |line: &str| format!("{ACME}{line}\n");
    let endpoints: String = (0..101).map(|n| ACME.replace("default", &format!("e{n}"))).collect();
    let url = ("WEBHOOK_URL_M2", "https://m2.example.com");
    let secret = ("WEBHOOK_SECRET_M2", "hunter2-hunter2-hunter2");
    type Case<'a> = (String, &'a [(&'a str, &'a str)], &'a [&'a str]);
    let cases: [Case<'_>; 19] = [
        (String::new(), &[url], &["WEBHOOK_URL_M2:", "set WEBHOOK_SECRET_M2"]),
        (String::new(), &[secret], &["WEBHOOK_SECRET_M2:", "set WEBHOOK_URL_M2"]),
        (ACME.replace("secret =", "#"), &[], &["entrega.toml:", "set tenants.acme.endpoints.default.secret"]),
        ("[tenants.acme.endpoints.default]\n".into(), &[], &["set tenants.acme.endpoints.default.url"]),
        (ACME.replace("whsec_", "hunter2 "), &[], &["endpoints.default.secret", "16 to 128 visible"]),
        (ACME.replace("whsec_0123456789abcdef", "hunter2"), &[], &["endpoints.default.secret", "16 to 128 visible"]),
        (ACME.replace("https:", "ftp:"), &[], &["endpoints.default.url", "https"]),
        (ACME.replace("https:", "https:\\"), &[], &["endpoints.default.url", "absolute URL"]),
        (ACME.replace("default", "Default"), &[], &["[tenants.acme.endpoints]", "1 to 32 characters of a-z"]),
        (ACME.replace("acme.endpoints", "'a b'.endpoints"), &[], &["[tenants]", "'a b' is not a tenant name"]),
        (String::new(), &[("WEBHOOK_URL_", "https://x")], &["WEBHOOK_URL_:", "'' is not a tenant name"]),
        (
            ACME.replace("endpoints", "endpoint"),
            &[],
            &["'tenants.acme.endpoint'", "did you mean 'tenants.acme.endpoints'?"],
        ),
        (with("event_type = ['a']"), &[], &["did you mean 'tenants.acme.endpoints.default.event_types'?"]),
        (with("event_types = ['email.sent', 'E']"), &[], &["event_types[1] = \"E\"", "such as email.sent"]),
        (with(&format!("event_types = [{}]", "'a',".repeat(21))), &[], &["event_types", "at most 20"]),
        (with("throttle = { max_requests = 10 }"), &[], &["endpoints.default.throttle.per is missing", "\"none\""]),
        (with("throttle = { max_requests = 0, per = '1s' }"), &[], &["default.throttle = { max", "1 to 10000 calls"]),
        (
            with(
                "throttle = { max_requests = 1, per = '1s' }\n[lanes.webhook]\nbreaker = 'none'\n\
                 tenant_concurrency = 512\nfairness.enable_round_robin = false",
            ),
            &[],
            &["endpoints.default.throttle", "must be left out", "fairness.enable_round_robin = true"],
        ),
        (endpoints, &[], &["[tenants.acme.endpoints]", "at most 100"]),
    ];
    for (text, env, parts) in cases {
        let error = load(&text, env).expect_err(&text).to_string();
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
        assert!(!error.contains("hunter2"), "{error}");
    }
}

#[test]
fn no_secret_and_no_key_is_printed_and_a_printed_secret_does_not_load() {
    let key = "0f".repeat(32);
    let throttled = format!("{ACME}throttle = {{ max_requests = 10, per = '90s' }}\n");
    let config = load(&throttled, &[("ENTREGA_SECRET_KEY", &key)]).unwrap();
    let (shown, printed) = (format!("{config:?}"), config.to_toml());
    assert!(!shown.contains(SECRET) && !printed.contains(SECRET) && !shown.contains(&key), "{shown}{printed}");
    assert!(printed.contains("[tenants.acme.endpoints.default]") && printed.contains("secret = \"***\""), "{printed}");
    assert!(printed.contains("# ENTREGA_SECRET_KEY = \"***\"") && !printed.contains(&key), "{printed}");
    let error = load(&printed, &[]).unwrap_err().to_string();
    assert!(error.contains("tenants.acme.endpoints.default.secret"), "{error}");
    let secrets = [("WEBHOOK_SECRET_ACME", SECRET), ("ENTREGA_SECRET_KEY", &key)];
    assert_eq!(load(&printed, &secrets).unwrap(), config);
    assert_eq!(load(&load(ACME, &secrets).unwrap().to_toml(), &secrets).unwrap(), load(ACME, &secrets).unwrap());
    let error = load("", &[("ENTREGA_SECRET_KEY", "hunter2")]).unwrap_err().to_string();
    assert!(
        error.starts_with("ENTREGA_SECRET_KEY") && error.contains("openssl") && !error.contains("hunter2"),
        "{error}"
    );
}

async fn open(data: &Path, toml: &str, env: &[(&str, &str)]) -> Result<Engine, OpenError> {
    let options = Options { data: Some(data.to_owned()), ..Options::default() };
    Engine::open(load_with(toml, env, options).unwrap().engine().unwrap()).await
}

fn kept(engine: &Engine) -> Arc<Endpoint> {
    engine.store().endpoint(&tenant(), "default").expect("it is there")
}

fn secret_of(engine: &Engine) -> String {
    let endpoint = kept(engine);
    assert_eq!(endpoint.secrets.len(), 1);
    engine.webhooks().secrets(&endpoint).unwrap()[0].reveal().to_owned()
}

#[tokio::test]
async fn configured_endpoints_are_in_the_store_as_long_as_they_are_configured() {
    let data = tempfile::tempdir().unwrap();
    let engine = open(data.path(), ACME, &[]).await.unwrap();
    let first = kept(&engine);
    assert_eq!(
        (first.origin, first.state, secret_of(&engine).as_str()),
        (EndpointOrigin::Config, EndpointState::Enabled, SECRET)
    );
    let by_api = Endpoint { name: "mine".into(), origin: EndpointOrigin::Api, version: 0, ..(*first).clone() };
    engine.store().put_endpoint(by_api).await.unwrap();
    drop(engine);

    let engine = open(data.path(), ACME, &[]).await.unwrap();
    let second = kept(&engine);
    assert_eq!(second.secrets, first.secrets, "not sealed anew");
    assert_eq!(second.updated_at.as_millis(), first.updated_at.as_millis(), "nothing was written");
    drop(engine);

    let engine = open(data.path(), "", &[]).await.unwrap();
    let left: Vec<_> = engine.store().endpoints().iter().map(|endpoint| endpoint.name.clone()).collect();
    assert_eq!(left, ["mine"], "only what came from the configuration goes with it");
}

#[tokio::test]
async fn what_was_learned_of_an_endpoint_outlives_a_change_of_its_configuration() {
    let data = tempfile::tempdir().unwrap();
    let engine = open(data.path(), ACME, &[]).await.unwrap();
    let first = kept(&engine);
    let gone = Endpoint {
        state: EndpointState::Disabled,
        reason: Some("410 Gone".into()),
        failing_since: Some(Time::from_millis(1_700_000_000_000)),
        ..(*first).clone()
    };
    engine.store().put_endpoint(gone.clone()).await.unwrap();
    drop(engine);
    let changed = format!("{}event_types = ['email.sent']\n", ACME.replace("hooks", "new").replace("abcdef", "ABCDEF"));
    let engine = open(data.path(), &changed, &[]).await.unwrap();
    let found = kept(&engine);
    assert_eq!((found.url.as_str(), found.event_types.len()), ("https://acme.example.com/new", 1));
    assert_eq!(secret_of(&engine), "whsec_0123456789ABCDEF");
    assert_eq!((found.state, &found.reason, found.failing_since), (gone.state, &gone.reason, gone.failing_since));
    assert_eq!(found.created_at.as_millis(), first.created_at.as_millis());
}

#[tokio::test]
async fn an_endpoint_that_the_configuration_disabled_is_enabled_when_it_says_so_again() {
    let data = tempfile::tempdir().unwrap();
    for (enabled, state) in [("false", EndpointState::Disabled), ("true", EndpointState::Enabled)] {
        let engine = open(data.path(), &format!("{ACME}enabled = {enabled}\n"), &[]).await.unwrap();
        let found = kept(&engine);
        assert_eq!((found.state, found.reason.is_some()), (state, state == EndpointState::Disabled));
    }
}

#[tokio::test]
async fn with_a_new_key_the_configured_secret_is_sealed_anew() {
    let data = tempfile::tempdir().unwrap();
    let (one, other) = ("01".repeat(32), "02".repeat(32));
    drop(open(data.path(), ACME, &[("ENTREGA_SECRET_KEY", &one)]).await.unwrap());
    assert!(!data.path().join("secret-key").exists(), "a key that is given is not kept");
    let engine = open(data.path(), ACME, &[("ENTREGA_SECRET_KEY", &other)]).await.unwrap();
    assert_eq!(secret_of(&engine), SECRET);
}

/// Where nodes share a store, a node with another key would lock the others out of every endpoint.
#[tokio::test]
async fn a_node_with_another_key_does_not_start_where_the_store_is_shared() {
    let data = tempfile::tempdir().unwrap();
    let engine = open(data.path(), ACME, &[("ENTREGA_SECRET_KEY", &"01".repeat(32))]).await.unwrap();
    let before = kept(&engine);
    let endpoints = load(ACME, &[]).unwrap().endpoints;
    let other = entrega::seal::Seal::from_key([2; 32]);
    let put = entrega::webhook::put_configured(engine.store(), &other, Time::ZERO, &endpoints, true);
    let error = put.await.unwrap_err();
    assert!(error.to_string().contains("'default' of tenant 'acme'"), "{error}");
    let told = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(told, SealError::Locked.to_string());
    assert!(error.to_string().contains("ENTREGA_SECRET_KEY alike on all nodes"), "{error}");
    assert_eq!(kept(&engine), before);
}

#[tokio::test]
async fn a_store_in_memory_leaves_no_key_behind() {
    let data = tempfile::tempdir().unwrap();
    let options = Options { data: Some(data.path().to_owned()), store: Some("memory".into()), ..Options::default() };
    let engine = Engine::open(load_with(ACME, &[], options).unwrap().engine().unwrap()).await.unwrap();
    assert_eq!(secret_of(&engine), SECRET);
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
}
