//! The ledgers that ship, against the suite of what every ledger must do.

use entrega_ledger::conformance::{TABLES, exercise};
use entrega_ledger::{Group, HeapLedger, Key, Ledger as _, LsmLedger, Room, Scan, Unit};
use futures_util::FutureExt as _;

#[tokio::test]
async fn the_ledger_in_memory_does_what_every_ledger_must() {
    exercise(async || HeapLedger::new(&TABLES)).await;
}

#[tokio::test]
async fn the_ledger_on_disk_does_what_every_ledger_must() {
    let dir = tempfile::tempdir().unwrap();
    let mut number = 0;
    exercise(async || {
        number += 1;
        LsmLedger::open(&dir.path().join(number.to_string()), &TABLES).unwrap()
    })
    .await;
}

/// Up to ten thousand records were read on a thread that also delivers.
#[tokio::test]
async fn a_long_read_holds_up_nobody_and_a_short_one_costs_no_other_thread() {
    let dir = tempfile::tempdir().unwrap();
    let ledger = LsmLedger::open(dir.path(), &TABLES).unwrap();
    let keys: Vec<Key> = (0..200u8).map(|number| Key::Id([number; 16])).collect();
    let mut unit = Unit::default();
    keys.iter().for_each(|key| unit.put(TABLES[0], key.clone(), vec![1; 10]));
    ledger.write(&[Group { fences: Vec::new(), units: vec![unit] }], Room::New).await.unwrap();
    for (count, is_short) in [(20, true), (200, false)] {
        let mut read = Box::pin(ledger.read(TABLES[0], &keys[..count]));
        let at_once = read.as_mut().now_or_never();
        assert_eq!(at_once.is_some(), is_short, "{count} keys");
        for scan in [Scan::UpFrom(b""), Scan::DownFrom(None)] {
            let mut rows = Box::pin(ledger.scan(TABLES[0], scan, count, usize::MAX));
            let at_once = rows.as_mut().now_or_never();
            assert_eq!(at_once.is_some(), is_short, "{count} rows");
            let rows = match at_once {
                Some(rows) => rows.unwrap(),
                None => rows.await.unwrap(),
            };
            assert_eq!(rows.len(), count);
        }
    }
}
