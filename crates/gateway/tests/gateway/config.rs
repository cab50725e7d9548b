//! Configuration: what a person writes, what comes out, and what is said when it does not fit.

use std::path::PathBuf;
use std::time::Duration;

use entrega::StoreKind;
use entrega_core::backoff::Backoff;
use entrega_core::classify::Verdict;
use entrega_core::name::LaneName;
use entrega_core::policy::{LanePolicy, Scope};
use entrega_core::time::{format_duration, parse_duration};
use entrega_gateway::api::ServerLimits;
use entrega_gateway::config::{Config, ConfigError, ConfigFile, ConfigSources, DEFAULTS, LogFormat, Options};
use toml::{Table, Value};

/// Loads `file` under `env`, with flags.
fn load_with(file: &str, env: &[(&str, &str)], options: Options) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("entrega.toml");
    std::fs::write(&path, file).unwrap();
    let env = env.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
    Config::load(ConfigSources { file: ConfigFile::At(path), env, options })
}

fn load(file: &str, env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    load_with(file, env, Options::default())
}

fn refusal(file: &str, env: &[(&str, &str)]) -> String {
    load(file, env).expect_err(file).to_string()
}

fn lane<'a>(config: &'a Config, name: &str) -> &'a LanePolicy {
    &config.lanes[&LaneName::new(name).unwrap()]
}

fn defaults() -> Config {
    Config::load(ConfigSources::default()).unwrap()
}

/// Every leaf of a table with its path.
fn leaves(table: &Table, path: &[String]) -> Vec<(Vec<String>, Value)> {
    let walk = |(key, value): (&String, &Value)| {
        let path = [path, std::slice::from_ref(key)].concat();
        match value {
            Value::Table(table) => leaves(table, &path),
            leaf => vec![(path, leaf.clone())],
        }
    };
    table.iter().flat_map(walk).collect()
}

/// A file that sets one leaf.
fn file_with(path: &[String], value: Value) -> String {
    let nest = |value, key: &String| Value::Table(Table::from_iter([(key.clone(), value)]));
    match path.iter().rev().fold(value, nest) {
        Value::Table(table) => table.to_string(),
        other => other.to_string(),
    }
}

/// Another value that is as good as the one given.
fn other_value(path: &str, value: &Value) -> Value {
    let text = match (path, value) {
        (_, Value::Boolean(flag)) => return Value::from(!flag),
        (_, Value::Integer(number)) => return Value::from(number + 1),
        (_, Value::Float(_)) => return Value::from(0.5),
        ("outbound.user_header", _) => return Value::from("x-user"),
        ("outbound.allow_networks", _) => return Value::from(vec!["10.0.0.0/8"]),
        ("lanes.http.throttle", _) => "{ max_requests = 1, per = '1s' }",
        ("lanes.http.breaker", _) => "{ failures = 1, open = '1s' }",
        ("lanes.http.cadence", _) => "{ initial = '1s' }",
        ("lanes.http.classify", _) => "[{ status = [409], verdict = 'success' }]",
        ("server.listen", _) => "'[::1]:9000'",
        ("store.kind", _) => "'memory'",
        ("store.data", _) => "'elsewhere'",
        ("store.redis_prefix", _) => "'other'",
        ("ses.topics", _) => return Value::from(vec!["arn:aws:sns:eu-west-1:123456789012:bounces"]),
        ("ses.certificate_hosts", _) => return Value::from(vec!["localhost:5000"]),
        ("lanes.email:send.dialect", _) => "'http'",
        ("lanes.email:send.throttle.scope" | "lanes.email:send.breaker.scope", _) => "'tenant'",
        ("log.level", _) => "'debug'",
        ("log.format", _) => "'json'",
        ("lanes.http.priority_scope", _) => "'lane'",
        ("lanes.proxy:score.priority_scope", _) => "'tenant'",
        ("lanes.http.on_full", _) => "'preempt'",
        ("lanes.http.on_exhausted", _) => "'blocked'",
        ("lanes.http.channel", _) => "'email'",
        ("lanes.email:send.channel" | "lanes.events.channel" | "lanes.webhook.channel", _) => "'http'",
        ("lanes.webhook.dialect", _) => "'http'",
        ("lanes.webhook.ttl", _) => "'1h'",
        ("lanes.webhook.retry.delays", _) => return Value::from(vec!["2m"]),
        ("lanes.webhook.breaker.scope", _) => "'lane'",
        ("webhooks.user_agent", _) => "'Other/1.0'",
        ("lanes.http.dialect", _) => "'webhook'",
        ("proxy.score.params.cpf.type", _) => "'integer'",
        ("proxy.score.cache.key", _) => "'cache:other:{cpf}'",
        ("lanes.proxy:score.on_full", _) => "'refuse'",
        ("lanes.connector.channel" | "lanes.connector.dialect", _) => "'http'",
        ("lanes.proxy:score.breaker.when_open", _) => "'hold'",
        (_, Value::String(text)) => {
            let length = parse_duration(text).unwrap_or_else(|_| panic!("{path} needs a value for this test"));
            return Value::from(format_duration(length + Duration::from_secs(1)));
        }
        _ => panic!("{path} needs a value for this test"),
    };
    text.parse().unwrap()
}

#[test]
fn with_nothing_said_the_http_lane_is_the_shipped_one() {
    let config = defaults();
    assert_eq!(lane(&config, "http"), &LanePolicy::http());
    assert_eq!(lane(&config, "email:send"), &LanePolicy::mail());
    assert_eq!(lane(&config, "events"), &LanePolicy::events());
    assert_eq!(lane(&config, "webhook"), &LanePolicy::webhook());
    assert_eq!(lane(&config, "proxy:score"), &LanePolicy::proxy());
    assert_eq!(lane(&config, "connector"), &LanePolicy::connector());
    assert_eq!(config.lanes.len(), 6);
    assert_eq!(config.server.listen, "127.0.0.1:8080".parse().unwrap());
    assert_eq!(config.store.kind, StoreKind::Embedded);
    assert_eq!(config.store.data, PathBuf::from("./entrega-data"));
    assert!(!config.outbound.allow_http && config.outbound.allow_networks.is_empty());
    assert_eq!(config.log.format, LogFormat::Auto);
    assert_eq!(config.store.local(&config.lanes).free_bytes_min, 256 << 20);
    assert_eq!(config.client().unwrap().answer_bytes_max, 64 << 10);
}

/// A program that embeds the server gets the limits that an operator reads of.
#[test]
fn a_server_without_configuration_has_the_limits_of_the_reference() {
    let (server, limits) = (defaults().server, ServerLimits::default());
    assert_eq!(limits.connections_max, server.connections_max);
    assert_eq!((limits.header_timeout, limits.body_timeout), (server.header_timeout, server.body_timeout));
}

#[test]
fn every_key_of_the_reference_changes_something() {
    let reference: Table = DEFAULTS.parse().unwrap();
    let keys = leaves(&reference, &[]);
    assert!(keys.len() > 35, "{}", keys.len());
    for (path, value) in keys {
        let name = path.join(".");
        // These two go together with others: a route's lane has its channel, and a breaker that lets jobs past is one for all.
        if ["lanes.proxy:score.channel", "lanes.proxy:score.breaker.scope"].contains(&name.as_str()) {
            continue;
        }
        let changed = load(&file_with(&path, other_value(&name, &value)), &[]);
        assert_ne!(changed.unwrap_or_else(|error| panic!("{name}: {error}")), defaults(), "{name} changes nothing");
    }
}

/// A path as TOML would write it.
fn shown(path: &[String]) -> String {
    let shown = path.iter().map(|key| if key.contains(':') { format!("{key:?}") } else { key.clone() });
    shown.collect::<Vec<_>>().join(".")
}

#[test]
fn a_slip_in_any_key_is_answered_with_the_right_one() {
    let reference: Table = DEFAULTS.parse().unwrap();
    for (mut path, value) in leaves(&reference, &[]) {
        let right = shown(&path);
        path.last_mut().unwrap().push('x');
        let error = refusal(&file_with(&path, value), &[]);
        let expected = format!("unknown key '{}'; did you mean '{right}'?", shown(&path));
        assert!(error.ends_with(&expected), "{error}");
    }
}

#[test]
fn the_examples_in_the_comments_of_the_reference_load() {
    // `#key = …` is a key without a default, `# key = …` another way to write the one below it.
    let mut text = String::new();
    let mut examples = 0;
    let uncommented = |line: &str| {
        let example = line.strip_prefix('#').map(str::trim_start).filter(|rest| {
            let key = rest.split_once(" = ").map_or("", |(key, _)| key);
            !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        });
        example.map(str::to_owned)
    };
    let replaced: Vec<String> = DEFAULTS.lines().filter_map(uncommented).collect();
    for line in DEFAULTS.lines() {
        let key = line.split_once(" = ").map_or("", |(key, _)| key);
        let is_replaced = !key.is_empty() && replaced.iter().any(|example| example.starts_with(&format!("{key} = ")));
        match uncommented(line) {
            Some(example) => {
                examples += 1;
                text += &example;
            }
            None if is_replaced => {}
            None => text += line,
        }
        text.push('\n');
    }
    let config = load(&text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(examples, 17);
    let http = lane(&config, "http");
    assert_eq!(http.throttle.as_ref().unwrap().max_requests, 100);
    assert_eq!(http.breaker.as_ref().unwrap().0.failures, 5);
    assert_eq!(http.cadence, LanePolicy::proxy().cadence);
    assert_eq!(http.retry, LanePolicy::webhook().retry);
    assert_eq!(http.tenant_concurrency, 48);
    assert_eq!(http.rules[0].verdict, Verdict::Success);
    assert!(config.outbound.ca_file.is_some());
    assert_eq!(config.endpoints.len(), 1);
}

#[test]
fn later_layers_win_key_by_key() {
    let file = "[server]\nlisten = '127.0.0.1:1111'\nconnections_max = 7\n[store]\nretention = '1h'\n";
    let env = [
        ("ENTREGA_SERVER__LISTEN", "127.0.0.1:2222"),
        ("entrega_lanes__http__RETRY__attempts", "3"),
        ("ENTREGA_LANES__HTTP__THROTTLE", "{ max_requests = 9, per = '1m', scope = 'tenant' }"),
        ("ENTREGA_OUTBOUND__ALLOW_NETWORKS", "10.0.0.0/8, 192.168.1.1"),
        ("ENTREGA_STORE__DATA", "2024"),
        ("ENTREGA_STORE__RETENTION", ""),
        ("ENTREGA_PORT_8080_TCP_ADDR", "10.0.0.1"),
    ];
    let config = load(file, &env).unwrap();
    assert_eq!(config.server.listen.port(), 2222);
    assert_eq!(config.server.connections_max, 7);
    assert_eq!(config.store.retention, Duration::from_secs(3600), "an empty variable is not set");
    assert_eq!(config.store.data, PathBuf::from("2024"), "a text, however it looks");
    let networks: Vec<String> = config.outbound.allow_networks.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.0.0.0/8", "192.168.1.1/32"]);
    let http = lane(&config, "http");
    assert_eq!(http.retry.attempts, 3);
    assert_eq!(http.retry.backoff, LanePolicy::http().retry.backoff);
    assert_eq!(http.throttle.as_ref().unwrap().scope, Scope::Tenant);

    let options = Options { listen: Some("[::1]:3333".parse().unwrap()), data: Some("d".into()), ..Options::default() };
    let config = load_with(file, &env, options).unwrap();
    assert_eq!((config.server.listen.port(), config.store.data), (3333, PathBuf::from("d")));
}

#[test]
fn development_opens_this_machine_beside_what_is_open() {
    let options = Options { dev: true, store: Some("memory".into()), ..Options::default() };
    let config = load_with("outbound.allow_networks = ['10.0.0.0/8']", &[], options).unwrap();
    let networks: Vec<String> = config.outbound.allow_networks.iter().map(ToString::to_string).collect();
    assert_eq!(networks, ["10.0.0.0/8", "127.0.0.0/8", "::1/128"]);
    assert!(config.filter().allow_http);
    assert_eq!(config.store.local(&config.lanes).export_dir, None, "a store in memory leaves no files");
}

#[test]
fn a_lane_of_ones_own_starts_from_the_shipped_policy() {
    let file = "[lanes.http]\ntimeout = '1s'\n[lanes.\"erp:calls\"]\nchannel = 'http'\nconcurrency = 2\nttl = 'none'\n";
    let config = load(file, &[]).unwrap();
    let expected = LanePolicy { concurrency: 2, tenant_concurrency: 1, ttl: None, ..LanePolicy::http() };
    assert_eq!(lane(&config, "erp:calls"), &expected);
    assert_eq!(lane(&config, "http").timeout, Duration::from_secs(1));
}

#[test]
fn one_tenant_gets_three_quarters_unless_said_otherwise() {
    for (concurrency, share) in [(1, 1), (2, 1), (3, 2), (4, 3), (10, 7), (64, 48)] {
        let config = load(&format!("lanes.http.concurrency = {concurrency}"), &[]).unwrap();
        assert_eq!(lane(&config, "http").tenant_concurrency, share, "of {concurrency}");
    }
    let config = load("[lanes.http]\ntenant_concurrency = 5\n", &[]).unwrap();
    assert_eq!(lane(&config, "http").tenant_concurrency, 5);
    let config = load("[lanes.http.fairness]\nenable_round_robin = false\n", &[]).unwrap();
    assert_eq!(lane(&config, "http").tenant_concurrency, 64, "without turns nobody can be held back");
}

#[test]
fn listed_waits_and_doubling_ones_replace_each_other_by_layer() {
    let file = "[lanes.http]\nretry = { delays = ['1m', '5m'] }\n";
    let listed = load(file, &[]).unwrap();
    let waits = Backoff::Listed(vec![Duration::from_secs(60), Duration::from_secs(300)]);
    assert_eq!(lane(&listed, "http").retry.backoff, waits);
    let doubling = load(file, &[("ENTREGA_LANES__HTTP__RETRY__BASE", "2s")]).unwrap();
    assert!(matches!(lane(&doubling, "http").retry.backoff, Backoff::Exponential { base, .. } if base.as_secs() == 2));
    let error = refusal("[lanes.http]\nretry = { delays = ['1m'], base = '1s' }\n", &[]);
    assert!(error.contains("lanes.http.retry.delays and lanes.http.retry.base exclude each other"), "{error}");
}

#[test]
fn rules_of_ones_own_come_before_those_of_the_dialect() {
    let file =
        "[lanes.http]\ndialect = 'webhook'\nclassify = [{ status = ['429', '500-599', 409], verdict = 'retry' }]\n";
    let config = load(file, &[]).unwrap();
    let http = lane(&config, "http");
    assert_eq!(http.rules.len(), 1 + http.dialect.rules().len());
    assert_eq!((http.rules[0].status.len(), http.rules[0].verdict), (3, Verdict::Retry));
}

#[test]
fn a_refusal_says_where_what_and_how_it_would_be_right() {
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);
    let table: [Case<'_>; 23] = [
        ("[lanes.http]\nretri = 1", &[], &["entrega.toml", "'lanes.http.retri'", "did you mean 'lanes.http.retry'?"]),
        ("[lanes.http.retri]\nx = 1", &[], &["entrega.toml", "'lanes.http.retri'"]),
        ("[sever]\nlisten = 'x'", &[], &["'sever'", "did you mean 'server'?"]),
        ("", &[("ENTREGA_SERVER__PORT", "1")], &["ENTREGA_SERVER__PORT:", "'server.port'", "known here: listen"]),
        ("", &[("ENTREGA_SERVER__", "1")], &["ENTREGA_SERVER__:", "ENTREGA_<SECTION>__<KEY>"]),
        ("lanes.http.timeout = '5 sec'", &[], &["lanes.http.timeout = \"5 sec\"", "a duration", "250ms"]),
        ("lanes.http.timeout = 5", &[], &["lanes.http.timeout = 5", "a duration"]),
        ("server.connections_max = 'many'", &[], &["server.connections_max = \"many\"", "from 1 to 1000000"]),
        ("", &[("ENTREGA_SERVER__LISTEN", "here")], &["ENTREGA_SERVER__LISTEN:", "\"here\"", "127.0.0.1:8080"]),
        ("lanes.http.breaker = { failures = 1, open = '1s', when_open = 'run' }", &[], &["\"hold\" or \"pass\""]),
        ("lanes.webhook.breaker.when_open = 'pass'", &[], &["lane 'webhook'", "when_open", "scope = \"lane\""]),
        ("lanes.http.cadence = { initial = '1s', min = '2s' }", &[], &["lanes.http.cadence.min", "as `initial`"]),
        ("lanes.http.cadence = { initial = '1s', penalty = 0.5 }", &[], &["cadence.penalty = 0.5", "from 1 to 100"]),
        ("lanes.http.cadence = { initial = '48h' }", &[], &["lane 'http'", "cadence.initial in ms"]),
        ("lanes.http.on_full = 'explode'", &[], &["\"refuse\" or \"preempt\""]),
        ("lanes.http.retry.jitter = 1.5", &[], &["lanes.http.retry.jitter = 1.5", "from 0 to 1"]),
        ("[lanes.\"a:b\"]\nthrottle = { per = '1s' }", &[], &["lanes.\"a:b\".throttle.max_requests is missing"]),
        ("lanes.http.concurrency = 0", &[], &["lane 'http'", "concurrency = 0"]),
        ("[lanes.Big]\nchannel = 'http'", &[], &["entrega.toml", "'Big' is not a lane name"]),
        ("lanes.http.classify = [{ status = ['5xx'], verdict = 'retry' }]", &[], &["classify[0].status[0]", "500-599"]),
        ("outbound.user_header = 'Authorization'", &[], &["outbound.user_header", "a header of your own"]),
        ("log.level = 'entrega=loud'", &[], &["log.level", "error, warn, info"]),
        ("[server", &[], &["entrega.toml", "line 1"]),
    ];
    for (file, env, parts) in table {
        let error = refusal(file, env);
        for part in parts {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}

#[test]
fn the_password_of_a_store_is_shown_nowhere() {
    let error = refusal("", &[("ENTREGA_STORE__KIND", "redis://user:hunter2@db:port")]);
    assert!(error.contains("redis://[[user]:password@]host") && !error.contains("hunter2"), "{error}");
    let config = load("", &[("ENTREGA_STORE__KIND", "redis://user:hunter2@db:6380/2")]).unwrap();
    let shown = format!("{config:?} {}", config.to_toml());
    assert!(shown.contains("redis://db:6380/2") && !shown.contains("hunter2"), "{shown}");
    let StoreKind::Redis(url) = &config.store.kind else { panic!("{:?}", config.store.kind) };
    assert_eq!(url.reveal(), "redis://user:hunter2@db:6380/2");
}

#[test]
fn a_public_address_needs_a_word() {
    for address in ["0.0.0.0:8080", "192.0.2.7:80", "[::]:8080", "[::ffff:192.0.2.7]:80"] {
        let error = refusal(&format!("server.listen = '{address}'"), &[]);
        assert!(error.contains("--insecure-listen") && error.contains("loopback"), "{error}");
        let options = Options { insecure_listen: true, ..Options::default() };
        assert!(load_with(&format!("server.listen = '{address}'"), &[], options).is_ok(), "{address}");
    }
    for address in ["127.0.0.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        assert!(load(&format!("server.listen = '{address}'"), &[]).is_ok(), "{address}");
    }
}

#[test]
fn a_named_file_must_be_there_and_the_usual_one_need_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.toml");
    let at = ConfigSources { file: ConfigFile::At(path.clone()), ..ConfigSources::default() };
    assert!(matches!(Config::load(at), Err(ConfigError::Unreadable { .. })));
    let if_there = ConfigSources { file: ConfigFile::IfThere(path), ..ConfigSources::default() };
    assert_eq!(Config::load(if_there).unwrap(), defaults());
}

#[test]
fn what_is_printed_loads_again_to_the_same() {
    let rich = "\
        [server]\nlisten = '[::1]:81'\nbody_timeout = '1500ms'\n\
        [outbound]\nallow_http = true\nallow_networks = ['10.0.0.0/8']\nca_file = '/a \"b\".pem'\n\
        [lanes.http]\nretry = { attempts = 3, delays = ['1m', '90s'] }\nttl = 'none'\n\
        classify = [{ status = ['409'], code = ['timeout'], header = 'x', message = \"it's\", verdict = 'success' }]\n\
        throttle = { max_requests = 9, per = '1m', scope = 'tenant' }\n\
        breaker = { failures = 5, open = '30s' }\n\
        [lanes.\"erp:calls\"]\nbreaker = { failures = 5, open = '30s', when_open = 'pass' }\n\
        cadence = { initial = '7ms', min = '3ms', max = '4s', slow_after = '1s', step = '1ms', penalty = 1.5 }\non_exhausted = 'blocked'\non_full = 'preempt'\n\
        dialect = 'connector'\nretry.jitter = 0.1\n";
    for file in ["", rich] {
        let config = load(file, &[]).unwrap();
        let printed = config.to_toml();
        let again = load(&printed, &[]).unwrap_or_else(|error| panic!("{error}\n{printed}"));
        assert_eq!(again, config, "{printed}");
    }
}

#[test]
fn the_operators_key_is_never_shown_and_never_weak() {
    let key = "an-admin-key-that-is-long";
    let env = [("ENTREGA_ADMIN_KEY", key)];
    let config = load("", &env).unwrap();
    assert_eq!(config.admin_key.as_ref().unwrap().reveal(), key);
    assert!(!format!("{config:?}").contains(key));
    let printed = config.to_toml();
    assert!(printed.contains("ENTREGA_ADMIN_KEY = \"***\"") && !printed.contains(key), "{printed}");
    assert_eq!(load(&printed, &env).unwrap(), config);
    for weak in ["short", "with a space in the middle", "with\na line of its own"] {
        let error = refusal("", &[("ENTREGA_ADMIN_KEY", weak)]);
        assert!(error.starts_with("ENTREGA_ADMIN_KEY") && !error.contains(weak), "{error}");
    }
    assert_eq!(load("", &[("ENTREGA_ADMIN_KEY", "")]).unwrap().admin_key, None);
}

/// One mistake at a time, a file with four took five starts.
#[test]
fn all_that_is_wrong_is_said_at_once_with_its_line() {
    let file = "[server]\nlisten = 'nowhere'\n\n[lanes.http]\nconcurency = 5\ntimeout = '10'\n\n[lanes.http.retry]\nattempts = 0\n[log]\nlevel = 'inf'\n";
    let error = load(file, &[("ENTREGA_SHUTDOWN__GRACE", "soon")]).unwrap_err();
    let ConfigError::Several(errors) = &error else { panic!("{error}") };
    assert_eq!(errors.len(), 6, "{error}");
    let error = error.to_string();
    for part in [
        "6 things are wrong",
        "lane 'http': retry.attempts",
        "entrega.toml:2: server.listen = \"nowhere\"",
        "entrega.toml:5: unknown key 'lanes.http.concurency'; did you mean 'lanes.http.concurrency'?",
        "entrega.toml:6: lanes.http.timeout = \"10\"",
        "entrega.toml:11: log.level = \"inf\"",
        "ENTREGA_SHUTDOWN__GRACE: shutdown.grace = \"soon\"",
    ] {
        assert!(error.contains(part), "{part} is not in\n{error}");
    }
}

#[test]
fn a_level_is_one_that_there_is() {
    for (level, is_good) in
        [("info", true), ("INFO,entrega=debug", true), ("off", true), ("inf", false), ("info,entrega=debg", false)]
    {
        assert_eq!(load(&format!("[log]\nlevel = '{level}'"), &[]).is_ok(), is_good, "{level}");
    }
}

#[test]
fn a_lane_with_a_colon_can_be_set_from_the_environment() {
    let env = [
        ("ENTREGA_LANES__EMAIL_SEND__CONCURRENCY", "3"),
        ("ENTREGA_LANES__ERP_CALLS__CONCURRENCY", "4"),
        ("ENTREGA_LANES__CONNECTOR_ERP__CHANNEL", "connector"),
        ("ENTREGA_LANES__CONNECTOR_ERP__CONCURRENCY", "2"),
    ];
    let file = "[lanes.'erp:calls']\ntimeout = '9s'\n[connectors.erp]\nbase_url = 'https://erp.example.com'\n";
    let config = load(file, &env).unwrap();
    assert_eq!(lane(&config, "connector:erp").concurrency, 2);
    assert_eq!((lane(&config, "email:send").concurrency, lane(&config, "erp:calls").concurrency), (3, 4));
    assert_eq!(lane(&config, "erp:calls").timeout, Duration::from_secs(9));
}

/// What was wrong was left out to see the rest, and then told of as missing.
#[test]
fn one_mistake_is_one_error() {
    for (file, key) in [
        ("[connectors.erp]\nbase_url = 'nowhere'\n", "connectors.erp.base_url"),
        ("[lanes.http]\nthrottle = { max_requests = 5, per = 'soon' }\n", "lanes.http.throttle.per"),
        ("[transports.main]\nurl = 'ftp://example.com'\n", "transports.main.url"),
        (
            "[tenants.acme.endpoints.default]\nurl = 'ftp://x'\nsecret = 'whsec_0123456789abcdef'\n",
            "endpoints.default.url",
        ),
        ("[server]\nlisten = '0.0.0.0:80'\ninsecure_listen = 'yes'\n", "server.insecure_listen"),
        (
            "[outbound]\nallow_networks = ['10.0.0.0/99']\n[connectors.erp]\nbase_url = 'https://10.1.2.3/'\n",
            "allow_networks[0]",
        ),
        ("[lanes.'proxy:score']\nchannel = 'prxy'\n", "channel"),
    ] {
        let error = load(file, &[]).unwrap_err();
        assert!(!matches!(error, ConfigError::Several(_)) && error.to_string().contains(key), "{key}: {error}");
    }
}

#[test]
fn a_program_without_a_file_gets_the_store_that_the_gateway_has() {
    let shipped = load("", &[]).unwrap().store;
    assert_eq!(shipped, entrega::StoreConfig::new(StoreKind::Embedded, shipped.data.clone()));
}
