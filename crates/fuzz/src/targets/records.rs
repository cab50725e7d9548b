//! Records: what is on the disk, one of them changed.
//! Invariant: a store over it opens or says why not, and whatever is asked of it gets an answer or an error.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega::PRODUCTS;
use entrega::settle::{Attempted, Settler};
use entrega::store::local::tables::{CALLS, FIGURES, NODES, ORDERS, TABLES};
use entrega::store::local::{LocalOptions, LocalStore};
use entrega::store::{CountBy, DeadLetterFilter, DeadLetterStore as _, JobFilter, JobStore as _, Page, Registry as _};
use entrega_call::Clock;
use entrega_core::id::JobId;
use entrega_core::name::LaneName;
use entrega_core::outcome::{Answer, Outcome};
use entrega_ledger::{Group, HeapLedger, Key, Scan, Table, Unit};
use http::{HeaderMap, StatusCode};
use tokio::runtime::Builder;

use crate::world::{World, config};
use crate::{Target, result};

struct Row {
    table: Table,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The number of a row, and what stands in it instead.
pub fn stored_record() -> Target {
    let folder = tempfile::tempdir().expect("a folder for the configuration");
    let config = config(folder.path());
    let options = config.store.local(&config.lanes);
    let rows = rows(options.clone());
    let seeds = rows.iter().zip(0..=u8::MAX).map(|(row, number)| [&[number][..], &row.value].concat()).collect();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let attempt = move |input: &[u8]| {
        let (number, value) = input.split_first().map_or((0, input), |(number, value)| (*number, value));
        let changed = usize::from(number) % rows.len();
        let heap = HeapLedger::new(&TABLES);
        let mut unit = Unit::default();
        for (place, row) in rows.iter().enumerate() {
            let value = if place == changed { value } else { &row.value };
            unit.put(row.table, key(&row.key), value.to_vec());
        }
        heap.apply(&[Group { fences: Vec::new(), units: vec![unit] }]).expect("memory takes everything");
        runtime.block_on(async {
            match LocalStore::open(Arc::new(heap), Clock::system(), options.clone()).await {
                Ok(store) => result((changed, ask(&store, &rows).await)),
                Err(error) => result((changed, std::mem::discriminant(&error))),
            }
        })
    };
    Target { name: "stored-record", seeds, attempt: Box::new(attempt) }
}

fn key(bytes: &[u8]) -> Key {
    match bytes.split_last_chunk() {
        Some(([], id)) => Key::Id(*id),
        Some(([scope @ .., 0], id)) => Key::Scoped(String::from_utf8_lossy(scope).into(), *id),
        _ => Key::Text(String::from_utf8(bytes.to_vec()).expect("other keys are texts")),
    }
}

/// Everything one can ask about what is there; how often the answer was an error.
async fn ask(store: &LocalStore, rows: &[Row]) -> Vec<bool> {
    let mut failures = Vec::new();
    for id in rows.iter().filter_map(|row| <[u8; 16]>::try_from(row.key.as_slice()).ok()).map(JobId::from_bytes) {
        failures.push(store.job(id).await.is_err());
        failures.push(store.explain(id).await.is_err());
        failures.push(store.dead_letter(id).await.is_err());
    }
    failures.push(store.jobs(&JobFilter::default(), Page { after: None, limit: 100 }).await.is_err());
    let page = Page { after: None, limit: 100 };
    failures.push(store.dead_letters(&DeadLetterFilter::default(), page).await.is_err());
    failures.push(store.dead_letter_counts(CountBy::Code, None).await.is_err());
    failures.push(store.keys(Page { after: None, limit: 100 }).await.is_err());
    failures.push(store.tenants().await.is_err());
    failures.push(store.replay_runs(None, Page { after: None, limit: 100 }).await.is_err());
    for lane in ["http", "email:send"] {
        let claimed = store.claim(&LaneName::new(lane).expect("a name"), 10).await;
        failures.push(claimed.is_err());
    }
    failures.push(store.sweep().await.is_err());
    failures.push(store.flush().await.is_err());
    failures
}

/// Rows of every table, as a gateway writes them.
fn rows(options: LocalOptions) -> Vec<Row> {
    let heap = Arc::new(HeapLedger::new(&TABLES));
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let opened = runtime.block_on(LocalStore::open(heap.clone(), Clock::system(), options));
    let store = opened.expect("it opens");
    let world = World::with(|parts| parts.env.store = Arc::new(store));
    let taken = |path: &str, body: &str| {
        let method = if path.contains("/endpoints/") { "PUT" } else { "POST" };
        let once = format!("idempotency-key: {}\r\n", result(body));
        let (status, answer) = world.call(method, path, once.as_bytes(), body.as_bytes());
        assert!(status < 300, "{path}: {status} {}", String::from_utf8_lossy(&answer));
    };
    let job = r#"{"request": {"url": "https://example.com/a", "body": {"n": 1}}, "labels": {"a": "b"}}"#;
    for status in [404, 503, 200] {
        taken("/v1/jobs", &job.replace("/a", &format!("/{status}")).replace("\"n\"", &format!("\"n{status}\"")));
        answer(&world, status);
    }
    taken("/v1/email/send", r#"{"from": "a@e.com", "to": "b@e.com", "subject": "c", "text": "d"}"#);
    taken("/v1/keys", r#"{"tenant": "ours", "scopes": ["read"]}"#);
    taken("/v1/suppressions", r#"{"address": "b@e.com", "reason": "asked"}"#);
    taken("/v1/dlq/replay", r#"{"filter": {"code": "none"}}"#);
    taken("/v1/tenants/default/endpoints/main", r#"{"url": "https://example.com/"}"#);
    taken("/v1/lanes/http/pause", "");
    let mut rows = Vec::new();
    for table in TABLES {
        let found = heap.rows(table, Scan::UpFrom(b""), usize::MAX, usize::MAX);
        rows.extend(found.iter().map(|(key, value)| Row { table, key: key.to_vec(), value: value.to_vec() }));
    }
    let has_rows = |table: &Table| rows.iter().any(|row| row.table == *table);
    // What only nodes that share a ledger write is not there.
    let is_anybodys = |table: &&Table| ![ORDERS, FIGURES, CALLS, NODES].contains(table);
    let has_all = TABLES.iter().filter(is_anybodys).all(has_rows);
    assert!(has_all && rows.len() <= usize::from(u8::MAX), "{} rows", rows.len());
    rows
}

/// Attempts everything in the lane `http`; the destination answers with this status.
fn answer(world: &World, status: u16) {
    let lane = LaneName::new("http").expect("a name");
    let engine = &world.engine;
    let policy = engine.env().policy(&lane).expect("a lane");
    let settler = Settler::new(engine.env().clone(), PRODUCTS);
    world.runtime.block_on(async {
        let claimed = engine.store().claim(&lane, 10).await.expect("it claims").jobs;
        let settled = claimed.into_iter().map(|claimed| {
            let outcome = Outcome::Answer(Answer {
                status: StatusCode::from_u16(status).expect("a status"),
                headers: HeaderMap::new(),
                body: Bytes::from_static(b"{\"ok\":true}"),
                truncated: false,
                retry_after: None,
            });
            let took = Duration::from_millis(5);
            settler.settlement(
                &policy,
                Attempted { claimed, started_at: engine.env().clock.now(), took, outcome, rules: Vec::new() },
            )
        });
        engine.store().settle(&lane, settled.collect()).await.expect("it settles");
        engine.store().flush().await.expect("it writes");
    });
}
