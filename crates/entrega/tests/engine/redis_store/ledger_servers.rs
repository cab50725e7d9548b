//! The ledger on servers that are refused, forget everything, or fall silent.

use std::time::Duration;

use entrega_call::Clock;
use entrega_ledger::redis::{RedisLedger, RedisOptions};
use entrega_ledger::{Applied, Fence, Group, Ledger as _, LedgerError, Room, Shard, Token};

use super::ledger::{open, options, owned, put};
use super::sentinels::Watched;
use super::world::{bounded, eventually, info, signal};
use entrega_testkit::encrypted_redis::Encrypted;
use entrega_testkit::redis::{self, RedisServer};

const ANSWERED_WITHIN: Duration = Duration::from_secs(6);
const BEAT_ANSWERED_WITHIN: Duration = Duration::from_secs(3);
const GOES_ON_WITHIN: Duration = Duration::from_secs(10);
/// The silence is noticed, a replica promoted, and found.
const FAILOVER_MAX: Duration = Duration::from_secs(25);

async fn refusal(options: RedisOptions) -> String {
    match RedisLedger::open(options).await {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error.to_string(),
    }
}

fn group(shard: &Shard, token: Token, seq: u64) -> [Group; 1] {
    [Group { fences: vec![Fence { shard: shard.clone(), token, seq }], units: vec![put(1, b"x")] }]
}

fn is_emptied<T: std::fmt::Debug>(answer: Result<T, LedgerError>) {
    match answer {
        Err(LedgerError::Broken { reason, .. }) => assert!(reason.contains("was emptied"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

/// A node went on after its server was emptied, and took over shards that nobody remembered: what it wrote was mixed with
/// what a node that was started anew had begun.
#[tokio::test]
async fn after_the_server_was_emptied_nothing_is_written_any_more() {
    if redis::is_left_out() {
        return;
    }
    let server = RedisServer::start(&[]);
    let options = options(&server.url());
    let ledger = RedisLedger::open(options.clone()).await.unwrap();
    let shard = Shard::new("lane");
    let (token, seq) = owned(&ledger, &shard).await;
    ledger.write(&group(&shard, token, seq + 1), Room::Must).await.unwrap();
    let free = [Group { fences: Vec::new(), units: vec![put(1, b"x")] }];
    assert_eq!(server.command(&["FLUSHALL"]), "OK");
    for _ in 0..2 {
        is_emptied(ledger.write(&group(&shard, token, seq + 2), Room::Must).await);
        is_emptied(ledger.write(&free, Room::New).await);
        is_emptied(ledger.own(&shard, 1, None).await);
        is_emptied(ledger.beat(&[(shard.clone(), token)]).await);
    }
    assert_eq!(server.command(&["DBSIZE"]), "0", "nothing was written");
    let begun_anew = RedisLedger::open(options.clone()).await.unwrap();
    let (theirs, _) = owned(&begun_anew, &Shard::new("other")).await;
    is_emptied(ledger.own(&shard, 1, None).await);
    is_emptied(ledger.beat(&[]).await);
    is_emptied(ledger.write(&free, Room::New).await);
    is_emptied(ledger.write(&group(&shard, token, seq + 2), Room::Must).await);
    let joined = RedisLedger::open(options).await.unwrap();
    assert_eq!(joined.beat(&[(Shard::new("other"), theirs)]).await.unwrap().standing, [true], "whoever joins knows it");
}

#[tokio::test]
async fn data_of_an_older_version_are_refused() {
    if redis::is_left_out() {
        return;
    }
    let server = RedisServer::start(&[]);
    let options = options(&server.url());
    server.command(&["HSET", &format!("{}:registry", options.prefix), "format", "4"]);
    let refusal = refusal(options.clone()).await;
    assert!(refusal.contains("older version") && refusal.contains("redis_prefix"), "{refusal}");
    assert!(refusal.contains(&options.prefix) && refusal.contains(&server.url()), "{refusal}");
    assert_eq!(server.command(&["DBSIZE"]), "1", "nothing was written");
    RedisLedger::open(RedisOptions { prefix: "another".into(), ..options }).await.unwrap();
}

#[tokio::test]
async fn a_server_that_would_lose_records_is_refused_unless_that_is_meant() {
    if redis::is_left_out() {
        return;
    }
    let server = RedisServer::start(&["--appendonly", "no"]);
    let options = options(&server.url());
    let said = refusal(options.clone()).await;
    assert!(said.contains("appendonly yes") && said.contains("--allow-unsafe-redis"), "{said}");
    assert_eq!(server.command(&["DBSIZE"]), "0", "nothing was written");
    let ledger = RedisLedger::open(RedisOptions { allow_unsafe: true, ..options.clone() }).await.unwrap();
    let health = ledger.health();
    assert!(health.durability.contains("memory only") && health.trouble.is_none(), "{health:?}");
    assert!(health.server.is_some() && health.memory.is_some_and(|memory| memory.used_bytes > 0), "{health:?}");
    let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &server.port().to_string()]);
    let said = refusal(RedisOptions { url: replica.url(), ..options }).await;
    assert!(said.contains("replica"), "{said}");
}

/// Scripts are gone with every restart and failover; the server says so before it does anything.
#[tokio::test]
async fn a_server_that_forgot_the_scripts_is_given_them_again() {
    if redis::is_left_out() {
        return;
    }
    let server = RedisServer::start(&[]);
    let ledger = open(&server.url()).await;
    let shard = Shard::new("lane");
    let (token, seq) = owned(&ledger, &shard).await;
    assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "OK");
    let applied = ledger.write(&group(&shard, token, seq + 1), Room::New).await.unwrap();
    assert!(matches!(applied.as_slice(), [Applied::Applied(_)]), "{applied:?}");
    assert_eq!(server.command(&["SCRIPT", "FLUSH"]), "OK");
    assert_eq!(ledger.beat(&[(shard, token)]).await.unwrap().standing, [true]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stands_still_is_given_up_in_time_and_then_goes_on() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let (ledger, clock) = (open(&server.url()).await, Clock::system());
        let shard = Shard::new("lane");
        let (token, seq) = owned(&ledger, &shard).await;
        let pid = info(&server, "server", "process_id");
        signal("STOP", pid);
        let start = clock.now();
        let write = async {
            let written = ledger.write(&group(&shard, token, seq + 1), Room::Must).await;
            (written, clock.now().since(start))
        };
        let beat = async {
            let beaten = ledger.beat(&[(shard.clone(), token)]).await;
            (beaten, clock.now().since(start))
        };
        let ((written, write_took), (beaten, beat_took)) = tokio::join!(write, beat);
        let trouble = ledger.health().trouble;
        signal("CONT", pid);
        assert!(matches!(written, Err(LedgerError::Unclear { .. })), "{written:?}");
        assert!(matches!(beaten, Err(LedgerError::Unclear { .. })), "{beaten:?}");
        assert!(write_took < ANSWERED_WITHIN && beat_took < BEAT_ANSWERED_WITHIN, "{write_took:?} {beat_took:?}");
        assert!(trouble.is_some_and(|trouble| trouble.contains(&server.url())), "it is reported");
        let again = async || {
            let written = ledger.write(&group(&shard, token, seq + 1), Room::Must).await;
            written.map_err(|error| error.to_string())
        };
        let applied = eventually(GOES_ON_WITHIN, "the same write goes on", again).await;
        assert!(matches!(applied.as_slice(), [Applied::Applied(_)]), "{applied:?}");
        let is_well = async || ledger.health().trouble.map_or(Ok(()), Err);
        eventually(GOES_ON_WITHIN, "it is well again", is_well).await;
    })
    .await;
}

/// Whoever only waits notices a restart as well, and hears the others afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_signals_are_heard_again() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let server = RedisServer::start(&[]);
        let ledger = open(&server.url()).await;
        server.restart();
        let mut heard = ledger.listen();
        let signal = async || {
            ledger.signal("lane").await.map_err(|error| error.to_string())?;
            let waited = tokio::time::timeout(Duration::from_millis(200), heard.recv()).await;
            waited.map_err(|_| "nothing was heard".to_owned())?.map_err(|error| error.to_string())
        };
        let topic = eventually(GOES_ON_WITHIN, "a signal is heard", signal).await;
        assert_eq!(&*topic, "lane");
    })
    .await;
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_not_talked_to() {
    if redis::is_left_out() {
        return;
    }
    let encrypted = Encrypted::start();
    let refusal = refusal(options(&format!("rediss://joe:s3cret@127.0.0.1:{}", encrypted.port))).await;
    assert!(refusal.contains("certificate") && !refusal.contains("s3cret"), "{refusal}");
}

/// As when its machine is gone: nothing is refused or cut, nothing is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_master_falls_silent_the_ledger_goes_on_with_the_promoted_replica() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let watched = Watched::start().await;
        let ledger = open(&watched.url()).await;
        let shard = Shard::new("lane");
        let (token, seq) = owned(&ledger, &shard).await;
        ledger.write(&group(&shard, token, seq + 1), Room::Must).await.unwrap();
        watched.is_copied().await;
        signal("STOP", info(&watched.master, "server", "process_id"));
        let write = async || {
            let written = ledger.write(&group(&shard, token, seq + 2), Room::Must).await;
            written.map_err(|error| error.to_string())
        };
        let applied = eventually(FAILOVER_MAX, "the write goes on with the other server", write).await;
        assert!(matches!(applied.as_slice(), [Applied::Applied(_)]), "the owner is known there: {applied:?}");
        assert!(watched.replica.command(&["INFO", "replication"]).contains("role:master"));
        let mut heard = ledger.listen();
        let beat = async || {
            let beats = ledger.beat(&[(shard.clone(), token)]).await.map_err(|error| error.to_string())?;
            assert_eq!(beats.standing, [true]);
            ledger.signal("lane").await.map_err(|error| error.to_string())?;
            let waited = tokio::time::timeout(Duration::from_millis(200), heard.recv()).await;
            waited.map_err(|_| "nothing was heard".to_owned())?.map_err(|error| error.to_string())
        };
        eventually(FAILOVER_MAX, "beats and signals go on there", beat).await;
    })
    .await;
}
