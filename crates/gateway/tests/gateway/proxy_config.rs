//! Proxy routes as an operator says them.

use std::time::Duration;

use entrega::StoreKind;
use entrega_core::name::LaneName;
use entrega_core::policy::LanePolicy;
use entrega_gateway::config::{Config, ConfigError, ConfigFile, ConfigSources};

fn load(toml: &str, env: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("entrega.toml");
    std::fs::write(&file, toml).unwrap();
    let env = env.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    Config::load(ConfigSources { file: ConfigFile::At(file), env, ..ConfigSources::default() })
}

fn lane(name: &str) -> LaneName {
    LaneName::new(name).unwrap()
}

#[test]
fn the_plain_names_of_the_environment_set_the_shipped_route() {
    let env = [
        ("UPSTREAM_URL", "https://score.example.com/v2"),
        ("CACHE_TTL_SEC", "30"),
        ("CACHE_STALE_SEC", "600"),
        ("REQUEST_TIMEOUT_MS", "1500"),
        ("JOB_TTL_MS", "20000"),
        ("QUEUE_MAX_SIZE", "7"),
        ("SCHEDULER_INITIAL_INTERVAL_MS", "400"),
        ("BREAKER_FAILURE_THRESHOLD", "9"),
        ("BREAKER_OPEN_WINDOW_MS", "12000"),
        ("REDIS_HOST", "cache.internal"),
        ("REDIS_PORT", "6380"),
    ];
    let config = load("[proxy.score]\nupstream_url = 'https://file.example.com'\n", &env).unwrap();
    let route = &config.routes[&lane("proxy:score")];
    assert_eq!(route.upstream.as_ref().unwrap().as_str(), "https://score.example.com/v2");
    assert_eq!((route.cache.ttl, route.cache.stale), (Duration::from_secs(30), Duration::from_secs(600)));
    let policy = &config.lanes[&lane("proxy:score")];
    assert_eq!(policy.timeout, Duration::from_millis(1500));
    assert_eq!((policy.ttl, policy.capacity), (Some(Duration::from_secs(20)), 7));
    let cadence = policy.cadence.as_ref().unwrap();
    assert_eq!((cadence.initial, cadence.min), (Duration::from_millis(400), Duration::from_millis(40)));
    let (breaker, _) = policy.breaker.as_ref().unwrap();
    assert_eq!((breaker.failures, breaker.open), (9, Duration::from_secs(12)));
    assert!(matches!(&config.store.kind, StoreKind::Redis(url) if url.reveal() == "redis://cache.internal:6380"));
    let only_host = load("", &[("REDIS_HOST", "r")]).unwrap();
    assert!(matches!(&only_host.store.kind, StoreKind::Redis(url) if url.reveal() == "redis://r:6379"));
    assert_eq!(load("", &[("REDIS_PORT", "tcp://10.0.0.1:6379")]).unwrap().store.kind, StoreKind::Embedded);
}

#[test]
fn a_plain_name_that_does_not_fit_is_refused_by_its_name() {
    for (name, text) in [
        ("JOB_TTL_MS", "soon"),
        ("JOB_TTL_MS", "-5"),
        ("QUEUE_MAX_SIZE", "many"),
        ("QUEUE_MAX_SIZE", "0"),
        ("CACHE_TTL_SEC", "1.5"),
        ("UPSTREAM_URL", "score.example.com"),
        ("UPSTREAM_URL", "http://score.example.com"),
        ("UPSTREAM_URL", "https://127.0.0.1/"),
    ] {
        let error = load("", &[(name, text)]).unwrap_err().to_string();
        assert!(error.contains(name) || error.contains("capacity"), "{name}={text}: {error}");
    }
}

const RATES: &str = "[proxy.rates]\nupstream_url = 'https://api.example.com/{pair}'\nparams = { pair = {} }\n\
                     cache = { key = 'cache:rates:{pair}', ttl = '1s', stale = '1m' }\n";

#[test]
fn a_route_has_a_lane_of_its_own_whether_or_not_one_was_written() {
    let config = load(RATES, &[]).unwrap();
    assert_eq!(*config.lanes[&lane("proxy:rates")], LanePolicy::proxy());
    let own = format!("{RATES}[lanes.'proxy:rates']\nchannel = 'proxy'\ncapacity = 3\n");
    assert_eq!(load(&own, &[]).unwrap().lanes[&lane("proxy:rates")].capacity, 3);
    let other = format!("{RATES}[lanes.'proxy:rates']\nchannel = 'http'\n");
    assert!(load(&other, &[]).unwrap_err().to_string().contains("channel = \"proxy\""));
    let alone = "[lanes.'proxy:lonely']\nchannel = 'proxy'\n";
    assert!(load(alone, &[]).unwrap_err().to_string().contains("[proxy.x]"));
}

#[test]
fn what_is_printed_reads_back_and_shows_no_header() {
    let text = RATES.replace("cache =", "headers = { authorization = 'Bearer s3cret' }\npublic = false\ncache =");
    let config = load(&text, &[]).unwrap();
    let printed = config.to_toml();
    assert!(!printed.contains("s3cret") && !format!("{config:?}").contains("s3cret"), "{printed}");
    let again = load(&printed, &[]).unwrap();
    let (one, other) = (&config.routes[&lane("proxy:rates")], &again.routes[&lane("proxy:rates")]);
    assert_eq!((&one.params, &one.cache, one.is_public), (&other.params, &other.cache, other.is_public));
    assert_eq!(one.upstream, other.upstream);
}

#[test]
fn what_is_wrong_with_a_route_is_named() {
    let with = |from: &str, to: &str| load(&RATES.replace(from, to), &[]).unwrap_err().to_string();
    for (from, to, key, hint) in [
        ("[proxy.rates]", "[proxy.Rates]", "proxy.Rates", "a-z"),
        ("pair = {}", "pair = { type = 'cnpj' }", "params.pair.type", "\"cpf\""),
        ("pair = {}", "pair = { pattern = '[' }", "params.pair.pattern", "regular expression"),
        ("pair = {}", "pair = { type = 'cpf', pattern = 'x' }", "params.pair.pattern", "left out"),
        ("pair = {}", "pair = {}, priority = {}", "params", "priority"),
        ("params = { pair = {} }", "params = {}", "params", "1 to 16"),
        ("pair = {}", "pair = { required = false }", "upstream_url", "required"),
        ("/{pair}", "/{other}", "upstream_url", "'other'"),
        ("/{pair}", "/{pair", "upstream_url", "{name}"),
        ("cache:rates:{pair}", "cache:rates", "cache.key", "'pair'"),
        ("cache:rates:{pair}", "rates:{pair}", "cache.key", "cache:"),
        ("ttl = '1s'", "ttl = 'a while'", "cache.ttl", "duration"),
        ("cache =", "headers = { host = 'x' }\ncache =", "headers", "may be set"),
    ] {
        let error = with(from, to);
        assert!(error.contains(key) && error.contains(hint), "{to}: {error}");
    }
}
