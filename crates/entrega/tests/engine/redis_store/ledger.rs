//! The ledger on a real Redis server, against the suite of what every ledger must do, and what only it must. Servers that
//! are refused, forget or fall silent are in `ledger_servers`.

use std::sync::atomic::{AtomicU32, Ordering};

use entrega_ledger::conformance::{TABLES, exercise};
use entrega_ledger::redis::RedisOptions;
use entrega_ledger::{
    Applied, Fence, Group, Key, Ledger as _, LedgerError, Owning, RedisLedger, Room, Scan, Shard, Table, Token, Unit,
};

use entrega_testkit::redis;

pub(super) fn options(url: &str) -> RedisOptions {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let prefix = format!("ledger{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    RedisOptions { url: url.to_owned(), prefix, allow_unsafe: false }
}

pub(super) async fn open(url: &str) -> RedisLedger {
    RedisLedger::open(options(url)).await.unwrap()
}

#[tokio::test]
async fn the_ledger_on_redis_does_what_every_ledger_must() {
    if redis::is_left_out() {
        return;
    }
    let url = redis::shared().url();
    exercise(async || open(&url).await).await;
}

pub(super) async fn owned(ledger: &RedisLedger, shard: &Shard) -> (Token, u64) {
    match ledger.own(shard, 1, None).await.unwrap() {
        Owning::Owned { token, seq } => (token, seq),
        other => panic!("{other:?}"),
    }
}

pub(super) fn put(count: usize, value: &[u8]) -> Unit {
    let mut unit = Unit::default();
    for number in 0..count {
        unit.put(TABLES[0], Key::Text(format!("{number:06}")), value);
    }
    unit
}

/// A script takes at most some thousand values from its arguments at once.
#[tokio::test]
async fn a_large_group_is_applied_whole() {
    if redis::is_left_out() {
        return;
    }
    let ledger = open(&redis::shared().url()).await;
    let count = 5_000;
    ledger.write(&[Group { fences: Vec::new(), units: vec![put(count, b"x")] }], Room::New).await.unwrap();
    let rows = ledger.scan(TABLES[0], Scan::UpFrom(b""), usize::MAX, usize::MAX).await.unwrap();
    assert_eq!(rows.len(), count);
    let mut gone = Unit::default();
    (0..count).for_each(|number| gone.remove(TABLES[0], Key::Text(format!("{number:06}"))));
    ledger.write(&[Group { fences: Vec::new(), units: vec![gone] }], Room::Must).await.unwrap();
    assert!(ledger.scan(TABLES[0], Scan::DownFrom(None), 1, 1).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_server_without_room_refuses_what_is_new_and_takes_what_must_be() {
    if redis::is_left_out() {
        return;
    }
    let server = redis::RedisServer::start(&["--maxmemory", "3mb"]);
    let ledger = open(&server.url()).await;
    let shard = Shard::new("lane");
    let (token, mut seq) = owned(&ledger, &shard).await;
    let mut write = async |room| {
        let fences = vec![Fence { shard: shard.clone(), token, seq: seq + 1 }];
        let written = ledger.write(&[Group { fences, units: vec![put(1, &[b'x'; 500_000])] }], room).await;
        seq += u64::from(written.is_ok());
        written
    };
    let mut refused = None;
    for number in 0..20 {
        let mut unit = Unit::default();
        unit.put(TABLES[1], Key::Text(number.to_string()), vec![b'y'; 300_000]);
        if let Err(error) = ledger.write(&[Group { fences: Vec::new(), units: vec![unit] }], Room::New).await {
            refused = Some(error);
            break;
        }
    }
    assert!(matches!(refused, Some(LedgerError::Full { .. })), "{refused:?}");
    assert!(matches!(write(Room::New).await, Err(LedgerError::Full { .. })), "nothing of it happened");
    assert!(matches!(write(Room::Must).await.unwrap().as_slice(), [Applied::Applied(_)]));
    assert_eq!(ledger.beat(&[(shard, token)]).await.unwrap().standing, [true], "an owner lives on");
    owned(&ledger, &Shard::new("another")).await;
}

/// A table that is only read by its keys needs no order.
#[tokio::test]
async fn a_table_that_is_never_scanned_has_no_index() {
    if redis::is_left_out() {
        return;
    }
    let server = redis::RedisServer::start(&[]);
    let ledger = open(&server.url()).await;
    let table = Table { scanned: false, ..TABLES[0] };
    let mut unit = Unit::default();
    unit.put(table, Key::Text("a".into()), b"1");
    unit.put(TABLES[1], Key::Text("a".into()), b"1");
    ledger.write(&[Group { fences: Vec::new(), units: vec![unit] }], Room::New).await.unwrap();
    assert!(ledger.read(table, &[Key::Text("a".into())]).await.unwrap()[0].is_some());
    let keys = server.command(&["KEYS", "*:index:*"]);
    assert!(keys.ends_with(&format!(":index:{}", TABLES[1].name)) && keys.lines().count() == 1, "{keys}");
    let refused = ledger.scan(table, Scan::DownFrom(None), 1, 1).await.unwrap_err();
    assert!(matches!(refused, LedgerError::Bad { .. }), "{refused}");
}

/// How many beats are answered until this is, and what it gives.
async fn beats_during<T>(ledger: &RedisLedger, held: (Shard, Token), doing: impl Future<Output = T>) -> (usize, T) {
    let (mut doing, mut count) = (std::pin::pin!(doing), 0);
    let held = [held];
    loop {
        tokio::select! {
            biased;
            done = &mut doing => return (count, done),
            beats = ledger.beat(&held) => {
                assert_eq!(beats.unwrap().standing, [true]);
                count += 1;
            }
        }
    }
}

/// An owner that waits behind the rows of a large table would lose its shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beats_are_answered_while_a_large_table_is_read() {
    if redis::is_left_out() {
        return;
    }
    let (rows, value) = (4_000, [b'x'; 20_000]);
    let server = redis::RedisServer::start(&[]);
    let ledger = open(&server.url()).await;
    let shard = Shard::new("lane");
    let (token, _) = owned(&ledger, &shard).await;
    let keys: Vec<Key> = (0..rows).map(|number| Key::Text(format!("{number:06}"))).collect();
    for some in keys.chunks(500) {
        let mut unit = Unit::default();
        some.iter().for_each(|key| unit.put(TABLES[0], key.clone(), value));
        ledger.write(&[Group { fences: Vec::new(), units: vec![unit] }], Room::New).await.unwrap();
    }
    let scan = ledger.scan(TABLES[0], Scan::UpFrom(b""), usize::MAX, usize::MAX);
    let (count, found) = beats_during(&ledger, (shard.clone(), token), scan).await;
    assert_eq!(found.unwrap().len(), rows);
    assert!(count >= 5, "{count} beats");
    // One answer of 80 MB: on the same connection, nothing would be answered before it.
    let (count, found) = beats_during(&ledger, (shard, token), ledger.read(TABLES[0], &keys)).await;
    assert!(found.unwrap().iter().all(Option::is_some));
    assert!(count >= 2, "{count} beats");
}

/// The server is stopped and starts again: what was not answered is unclear, and is known when it is repeated.
#[tokio::test]
async fn after_an_outage_the_same_write_goes_on() {
    if redis::is_left_out() {
        return;
    }
    let server = redis::RedisServer::start(&[]);
    let ledger = open(&server.url()).await;
    let shard = Shard::new("lane");
    let (token, seq) = owned(&ledger, &shard).await;
    let group = |seq| [Group { fences: vec![Fence { shard: shard.clone(), token, seq }], units: vec![put(1, b"x")] }];
    ledger.write(&group(seq + 1), Room::Must).await.unwrap();
    server.kill();
    let lost = ledger.write(&group(seq + 2), Room::Must).await.unwrap_err();
    assert!(matches!(lost, LedgerError::Unclear { .. }), "{lost}");
    server.restart();
    let mut tries = 0;
    let applied = loop {
        match ledger.write(&group(seq + 2), Room::Must).await {
            Ok(applied) => break applied,
            Err(LedgerError::Unclear { .. }) if tries < 50 => tries += 1,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(matches!(applied.as_slice(), [Applied::Applied(_)]), "{applied:?}");
    let again = ledger.write(&group(seq + 2), Room::Must).await.unwrap();
    assert_eq!(again, applied, "a repeat gets the first answer");
}
