//! What every ledger must do, as a suite: one function per promise, each over a new and empty ledger.
//! Invariant: knows only the trait.
//!
//! [`exercise`] runs all of it; the tables are [`TABLES`].

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    Applied, Fence, Group, InboxEntry, Key, Ledger, Op, Owning, Room, Rows, Scan, Shard, Table, Token, Unit, Verdict,
    When,
};

const RECORDS: Table = Table { number: 0, name: "records", scanned: true };
const OTHERS: Table = Table { number: 1, name: "others", scanned: true };
/// The tables that a ledger is opened with for this.
pub const TABLES: [Table; 2] = [RECORDS, OTHERS];

const NODE: u64 = 7;
const PLENTY: usize = 1 << 20;

/// Runs the whole suite; `make` gives a new, empty ledger each time.
///
/// # Panics
/// If a promise is not kept.
pub async fn exercise<L: Ledger>(mut make: impl AsyncFnMut() -> L) {
    what_was_written_is_read_and_what_was_removed_is_not(&make().await).await;
    rows_are_scanned_both_ways_within_limits(&make().await).await;
    rows_of_a_scope_lie_together(&make().await).await;
    a_unit_whose_condition_does_not_hold_changes_nothing(&make().await).await;
    units_see_those_before_them(&make().await).await;
    many_units_take_effect_as_if_each_were_alone(&make().await).await;
    groups_are_applied_once_and_in_order(&make().await).await;
    a_group_over_several_shards_needs_all_of_them(&make().await).await;
    only_the_owner_writes(&make().await).await;
    a_shard_is_taken_over_when_its_owner_stands_still(&make().await).await;
    what_is_released_is_free_and_counts_on(&make().await).await;
    an_entry_stays_in_its_inbox_until_it_is_taken(&make().await).await;
    a_group_that_is_refused_appends_nothing(&make().await).await;
    signals_reach_whoever_listens(&make().await).await;
}

fn text(key: &str) -> Key {
    Key::Text(key.into())
}

fn put(key: &str, value: &'static str) -> Unit {
    Unit { when: Vec::new(), ops: vec![Op::Put(RECORDS, text(key), value.into())] }
}

fn append(shard: &Shard, value: &'static str) -> Unit {
    Unit { when: Vec::new(), ops: vec![Op::Append(shard.clone(), value.into())] }
}

async fn write(ledger: &dyn Ledger, fences: Vec<Fence>, units: Vec<Unit>) -> Applied {
    ledger.write(&[Group { fences, units }], Room::New).await.unwrap().remove(0)
}

async fn write_free(ledger: &dyn Ledger, units: Vec<Unit>) -> Vec<Verdict> {
    match write(ledger, Vec::new(), units).await {
        Applied::Applied(verdicts) => verdicts,
        other => panic!("{other:?}"),
    }
}

async fn value(ledger: &dyn Ledger, key: &str) -> Option<String> {
    let found = ledger.read(RECORDS, &[text(key)]).await.unwrap().remove(0);
    found.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
}

fn keys(rows: &Rows) -> Vec<&str> {
    rows.iter().map(|(key, _)| std::str::from_utf8(key).unwrap()).collect()
}

async fn owned(ledger: &dyn Ledger, shard: &Shard) -> (Token, u64) {
    match ledger.own(shard, NODE, None).await.unwrap() {
        Owning::Owned { token, seq } => (token, seq),
        other => panic!("{other:?}"),
    }
}

fn fence(shard: &Shard, token: Token, seq: u64) -> Fence {
    Fence { shard: shard.clone(), token, seq }
}

const DONE: Applied = Applied::Applied(Vec::new());

fn is_done(applied: &Applied) -> bool {
    matches!(applied, Applied::Applied(verdicts) if verdicts.iter().all(|verdict| *verdict == Verdict::Done))
}

async fn what_was_written_is_read_and_what_was_removed_is_not(ledger: &dyn Ledger) {
    write_free(ledger, vec![put("a", "1"), put("b", "2")]).await;
    let mut unit = put("c", "3");
    unit.remove(RECORDS, text("a"));
    unit.put(OTHERS, Key::Id([9; 16]), Vec::new());
    write_free(ledger, vec![unit]).await;
    let found = ledger.read(RECORDS, &[text("c"), text("a"), text("b")]).await.unwrap();
    assert_eq!(found, [Some(Bytes::from_static(b"3")), None, Some(Bytes::from_static(b"2"))]);
    let found = ledger.read(OTHERS, &[Key::Id([9; 16]), text("b")]).await.unwrap();
    assert_eq!(found, [Some(Bytes::new()), None], "tables are apart, and an empty value is a value");
    assert_eq!(write(ledger, Vec::new(), Vec::new()).await, DONE);
}

async fn rows_are_scanned_both_ways_within_limits(ledger: &dyn Ledger) {
    write_free(ledger, ["d", "b", "a", "c"].map(|key| put(key, "12345678")).into()).await;
    let up = ledger.scan(RECORDS, Scan::UpFrom(b"b"), 2, PLENTY).await.unwrap();
    assert_eq!((keys(&up), up.has_more()), (vec!["b", "c"], true));
    let up = ledger.scan(RECORDS, Scan::UpFrom(b"b"), 3, PLENTY).await.unwrap();
    assert_eq!((keys(&up), up.has_more()), (vec!["b", "c", "d"], false));
    let down = ledger.scan(RECORDS, Scan::DownFrom(Some(b"c")), PLENTY, PLENTY).await.unwrap();
    assert_eq!((keys(&down), down.has_more()), (vec!["b", "a"], false));
    let down = ledger.scan(RECORDS, Scan::DownFrom(None), 1, PLENTY).await.unwrap();
    assert_eq!((keys(&down), down.has_more()), (vec!["d"], true));
    let few = ledger.scan(RECORDS, Scan::UpFrom(b""), PLENTY, 10).await.unwrap();
    assert_eq!((keys(&few), few.has_more()), (vec!["a", "b"], true), "no more after so many bytes");
    let one = ledger.scan(RECORDS, Scan::UpFrom(b""), PLENTY, 0).await.unwrap();
    assert_eq!(keys(&one), ["a"], "one, however large");
    assert!(ledger.scan(RECORDS, Scan::UpFrom(b"e"), PLENTY, PLENTY).await.unwrap().is_empty());
}

async fn rows_of_a_scope_lie_together(ledger: &dyn Ledger) {
    let mut unit = Unit::default();
    for (scope, number) in [("http", 2), ("http:eu", 9), ("http", 1), ("email:send", 5)] {
        unit.put(OTHERS, Key::Scoped(scope.into(), [number; 16]), Vec::new());
    }
    unit.remove(OTHERS, Key::Scoped("http".into(), [8; 16]));
    write_free(ledger, vec![unit]).await;
    let prefix = Key::prefix("http");
    let rows = ledger.scan(OTHERS, Scan::UpFrom(&prefix), PLENTY, PLENTY).await.unwrap();
    let ids: Vec<&[u8]> = rows.iter().filter_map(|(key, _)| key.strip_prefix(&*prefix)).collect();
    assert_eq!(ids, [[1; 16], [2; 16]]);
}

async fn a_unit_whose_condition_does_not_hold_changes_nothing(ledger: &dyn Ledger) {
    write_free(ledger, vec![put("taken", "old")]).await;
    let mut first = put("one", "1");
    first.when_absent(RECORDS, text("free"));
    first.when_absent(RECORDS, text("taken"));
    let mut second = put("two", "2");
    second.when_is(RECORDS, text("taken"), Bytes::from_static(b"old"));
    let mut third = put("three", "3");
    third.when_is(RECORDS, text("taken"), Bytes::from_static(b"other"));
    let mut fourth = put("four", "4");
    fourth.when_is(RECORDS, text("free"), Bytes::new());
    let verdicts = write_free(ledger, vec![first, second, third, fourth]).await;
    assert_eq!(verdicts, [Verdict::Not(1), Verdict::Done, Verdict::Not(0), Verdict::Not(0)]);
    for (key, is_there) in [("one", false), ("two", true), ("three", false), ("four", false)] {
        assert_eq!(value(ledger, key).await.is_some(), is_there, "{key}");
    }
}

async fn units_see_those_before_them(ledger: &dyn Ledger) {
    let once = |key, value: &'static str| {
        let mut unit = put(key, value);
        unit.when_absent(RECORDS, text(key));
        unit
    };
    let mut gone = Unit::default();
    gone.remove(RECORDS, text("key"));
    let units = vec![once("key", "1"), once("key", "2"), gone, once("key", "3")];
    assert_eq!(write_free(ledger, units).await, [Verdict::Done, Verdict::Not(0), Verdict::Done, Verdict::Done]);
    assert_eq!(value(ledger, "key").await.as_deref(), Some("3"));
    let groups = ["4", "5"].map(|value| Group { fences: Vec::new(), units: vec![once("other", value)] });
    let applied = ledger.write(&groups, Room::Must).await.unwrap();
    assert_eq!(applied, [Applied::Applied(vec![Verdict::Done]), Applied::Applied(vec![Verdict::Not(0)])]);
}

/// A ledger may do alike operations of many units together; nothing of that may be seen.
async fn many_units_take_effect_as_if_each_were_alone(ledger: &dyn Ledger) {
    let key = |number: u32| format!("{number:04}");
    let mut units = Vec::new();
    for number in 0..1200 {
        // Every third key is used by the unit before it; each unit removes what the one ten before it put.
        let used = if number % 3 == 2 { number - 1 } else { number };
        let mut unit = Unit::default();
        unit.when_absent(RECORDS, text(&key(used)));
        unit.put(RECORDS, text(&key(used)), number.to_string());
        if number >= 10 && number % 5 == 0 {
            unit.remove(RECORDS, text(&key(number - 10)));
        }
        units.push(unit);
    }
    let plain = (2000..2100).map(|number| Op::Put(RECORDS, text(&key(number)), number.to_string().into()));
    units.push(Unit { when: Vec::new(), ops: plain.collect() });
    let mut last = put("2000", "changed");
    last.when_is(RECORDS, text("2000"), Bytes::from_static(b"2000"));
    units.push(last);

    // The same by hand, one unit after the other.
    let (mut rows, mut expected) = (BTreeMap::<String, String>::new(), Vec::new());
    for unit in &units {
        let name = |key: &Key| String::from_utf8(key.to_vec()).unwrap();
        let fails = |when: &When| !when.expect.holds(rows.get(&name(&when.key)).map(String::as_bytes));
        let verdict = unit.when.iter().position(fails).map_or(Verdict::Done, Verdict::Not);
        for op in unit.ops.iter().filter(|_| verdict == Verdict::Done) {
            match op {
                Op::Put(_, key, value) => drop(rows.insert(name(key), String::from_utf8(value.clone()).unwrap())),
                Op::Remove(_, key) => drop(rows.remove(&name(key))),
                Op::Append(..) | Op::Take(..) => {}
            }
        }
        expected.push(verdict);
    }
    assert_eq!(write_free(ledger, units).await, expected);
    let found = ledger.scan(RECORDS, Scan::UpFrom(b""), PLENTY, PLENTY).await.unwrap();
    let found: Vec<_> = found.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    let rows: Vec<_> = rows.into_iter().map(|(key, value)| (key.into_bytes(), value.into_bytes())).collect();
    assert!(found == rows, "{} rows, not {}", found.len(), rows.len());
}

async fn groups_are_applied_once_and_in_order(ledger: &dyn Ledger) {
    let shard = Shard::new("lane");
    let (token, seq) = owned(ledger, &shard).await;
    assert_eq!(seq, 0);
    let counted = |seq| {
        let mut unit = append(&shard, "x");
        unit.put(RECORDS, text("a"), format!("{seq}"));
        let mut never = put("never", "1");
        never.when_is(RECORDS, text("a"), Bytes::from_static(b"nothing"));
        (vec![fence(&shard, token, seq)], vec![unit, never])
    };
    let inbox = async || ledger.inbox(&shard, PLENTY, PLENTY).await.unwrap().len();
    for _ in 0..3 {
        let (fences, units) = counted(1);
        let answer = Applied::Applied(vec![Verdict::Done, Verdict::Not(0)]);
        assert_eq!(write(ledger, fences, units).await, answer, "a repeat gets the first answer");
        assert_eq!(inbox().await, 1, "and does nothing");
    }
    let (fences, units) = counted(2);
    assert!(matches!(write(ledger, fences, units).await, Applied::Applied(_)));
    assert_eq!(inbox().await, 2);
    for seq in [1, 4] {
        let (fences, units) = counted(seq);
        assert_eq!(write(ledger, fences, units).await, Applied::Rewound(shard.clone(), 2), "{seq} is not the next");
    }
    assert_eq!((inbox().await, value(ledger, "a").await.as_deref()), (2, Some("2")));
}

async fn a_group_over_several_shards_needs_all_of_them(ledger: &dyn Ledger) {
    let (one, other) = (Shard::new("one"), Shard::new("other"));
    let ((a, _), (b, _)) = (owned(ledger, &one).await, owned(ledger, &other).await);
    let both = vec![fence(&one, a, 1), fence(&other, b, 1)];
    assert!(is_done(&write(ledger, both, vec![put("a", "1")]).await));
    let bad = Token { epoch: b.epoch + 1, ..b };
    let half = vec![fence(&one, a, 2), fence(&other, bad, 2)];
    assert_eq!(write(ledger, half, vec![put("a", "2")]).await, Applied::Fenced(other.clone()));
    assert_eq!(value(ledger, "a").await.as_deref(), Some("1"));
    let both = vec![fence(&one, a, 2), fence(&other, b, 2)];
    assert!(is_done(&write(ledger, both, vec![put("a", "3")]).await), "what was refused moved no number");
}

async fn only_the_owner_writes(ledger: &dyn Ledger) {
    let shard = Shard::new("lane");
    let nobody = Token { epoch: 1, node: NODE };
    assert_eq!(
        write(ledger, vec![fence(&shard, nobody, 1)], vec![put("a", "0")]).await,
        Applied::Fenced(shard.clone())
    );
    let (old, _) = owned(ledger, &shard).await;
    assert!(is_done(&write(ledger, vec![fence(&shard, old, 1)], vec![put("a", "1")]).await));
    let Owning::Held { token, beat } = ledger.own(&shard, NODE + 1, None).await.unwrap() else { panic!("it is held") };
    assert_eq!(token, old);
    let taken = ledger.own(&shard, NODE + 1, Some((token, beat))).await.unwrap();
    let Owning::Owned { token: new, seq } = taken else { panic!("{taken:?}") };
    assert_eq!(seq, 1, "the number of the last group goes on");
    assert_ne!(new, old);
    for seq in [1, 2] {
        let late = write(ledger, vec![fence(&shard, old, seq)], vec![put("a", "late")]).await;
        assert_eq!(late, Applied::Fenced(shard.clone()), "also one that was sent before, and a repeat");
    }
    assert!(is_done(&write(ledger, vec![fence(&shard, new, 2)], vec![put("b", "2")]).await));
    assert_eq!(value(ledger, "a").await.as_deref(), Some("1"));
    let beats = ledger.beat(&[(shard.clone(), old), (shard.clone(), new)]).await.unwrap();
    assert_eq!(beats.standing, [false, true]);
}

async fn a_shard_is_taken_over_when_its_owner_stands_still(ledger: &dyn Ledger) {
    let shard = Shard::new("lane");
    let (owner, _) = owned(ledger, &shard).await;
    let Owning::Held { token, beat } = ledger.own(&shard, NODE + 1, None).await.unwrap() else { panic!("it is held") };
    assert_eq!(ledger.beat(&[(shard.clone(), owner)]).await.unwrap().standing, [true]);
    let seen = ledger.own(&shard, NODE + 1, Some((token, beat))).await.unwrap();
    assert!(matches!(seen, Owning::Held { beat: now, .. } if now != beat), "it lives: {seen:?}");
}

async fn what_is_released_is_free_and_counts_on(ledger: &dyn Ledger) {
    let shard = Shard::new("lane");
    let (first, _) = owned(ledger, &shard).await;
    assert!(is_done(&write(ledger, vec![fence(&shard, first, 1)], vec![put("a", "1")]).await));
    ledger.release(&shard, Token { node: NODE + 1, ..first }).await.unwrap();
    assert!(matches!(ledger.own(&shard, NODE, None).await.unwrap(), Owning::Held { .. }), "only its owner gives it up");
    ledger.release(&shard, first).await.unwrap();
    let (second, seq) = owned(ledger, &shard).await;
    assert_eq!(seq, 1);
    assert_ne!(first, second, "the same node, and another ownership");
    ledger.release(&shard, first).await.unwrap();
    assert!(is_done(&write(ledger, vec![fence(&shard, second, 2)], vec![put("a", "2")]).await));
}

async fn an_entry_stays_in_its_inbox_until_it_is_taken(ledger: &dyn Ledger) {
    let (shard, other) = (Shard::new("lane"), Shard::new("lane:other"));
    let (token, _) = owned(ledger, &shard).await;
    write_free(ledger, vec![append(&shard, "a"), append(&other, "z"), append(&shard, "b")]).await;
    write_free(ledger, vec![append(&shard, "c")]).await;
    let values = |entries: &[InboxEntry]| entries.iter().map(|entry| entry.bytes.clone()).collect::<Vec<_>>();
    let entries = ledger.inbox(&shard, PLENTY, PLENTY).await.unwrap();
    assert_eq!(values(&entries), ["a", "b", "c"]);
    assert_eq!(ledger.inbox(&shard, 2, PLENTY).await.unwrap(), entries[..2]);
    assert_eq!(ledger.inbox(&shard, PLENTY, 0).await.unwrap(), entries[..1]);
    let take = Unit { when: Vec::new(), ops: vec![Op::Take(shard.clone(), entries[1].id)] };
    assert!(is_done(&write(ledger, vec![fence(&shard, token, 1)], vec![take]).await));
    write_free(ledger, vec![append(&shard, "d")]).await;
    assert_eq!(values(&ledger.inbox(&shard, PLENTY, PLENTY).await.unwrap()), ["a", "c", "d"]);
    assert_eq!(values(&ledger.inbox(&other, PLENTY, PLENTY).await.unwrap()), ["z"]);
}

async fn a_group_that_is_refused_appends_nothing(ledger: &dyn Ledger) {
    let (shard, other) = (Shard::new("lane"), Shard::new("other"));
    let (token, _) = owned(ledger, &shard).await;
    let stale = fence(&shard, Token { epoch: token.epoch + 1, ..token }, 1);
    assert_eq!(write(ledger, vec![stale], vec![append(&other, "a")]).await, Applied::Fenced(shard.clone()));
    let mut refused = append(&other, "b");
    refused.when_is(RECORDS, text("missing"), Bytes::new());
    assert_eq!(write_free(ledger, vec![refused]).await, [Verdict::Not(0)]);
    assert!(ledger.inbox(&other, PLENTY, PLENTY).await.unwrap().is_empty());
}

async fn signals_reach_whoever_listens(ledger: &dyn Ledger) {
    let mut heard = ledger.listen();
    ledger.signal("lane").await.unwrap();
    assert_eq!(&*heard.recv().await.unwrap(), "lane");
}
