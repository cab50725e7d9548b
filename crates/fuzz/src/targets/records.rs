//! Records: what is on the disk, one of them changed.
//! Invariant: a store over it opens or says why not, and whatever is asked of it gets an answer or an error.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega::clock::Clock;
use entrega::settle::Attempted;
use entrega::store::local::{Batch, Disk, DiskError, HeapDisk, Key, LocalOptions, LocalStore, Order, Table, Visit};
use entrega::store::{CountBy, DeadLetterFilter, DeadLetterStore as _, JobFilter, JobStore as _, Page, Registry as _};
use entrega_core::id::JobId;
use entrega_core::name::LaneName;
use entrega_core::outcome::{Answer, Outcome};
use http::{HeaderMap, StatusCode};
use tokio::runtime::Builder;

use crate::world::{World, config};
use crate::{Target, result};

/// A disk that can be looked at while a store uses it.
#[derive(Clone, Default)]
struct Shared(Arc<HeapDisk>);

impl Disk for Shared {
    fn read(&self, table: Table, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, DiskError> {
        self.0.read(table, key, see)
    }
    fn scan(&self, table: Table, order: Order<'_>, visit: Visit<'_>) -> Result<(), DiskError> {
        self.0.scan(table, order, visit)
    }
    fn commit(&self, batch: Batch) -> Result<(), DiskError> {
        self.0.commit(batch)
    }
    fn free_bytes(&self) -> Option<u64> {
        self.0.free_bytes()
    }
    fn kind(&self) -> &'static str {
        self.0.kind()
    }
    fn durability(&self) -> &'static str {
        self.0.durability()
    }
}

struct Row {
    table: Table,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The number of a row, and what stands in it instead.
pub fn stored_record() -> Target {
    let folder = tempfile::tempdir().expect("a folder for the configuration");
    let options = config(folder.path()).local_store();
    let rows = rows(options.clone());
    let seeds = rows.iter().zip(0..=u8::MAX).map(|(row, number)| [&[number][..], &row.value].concat()).collect();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let attempt = move |input: &[u8]| {
        let (number, value) = input.split_first().map_or((0, input), |(number, value)| (*number, value));
        let changed = usize::from(number) % rows.len();
        let disk = HeapDisk::default();
        let mut batch = Batch::default();
        for (place, row) in rows.iter().enumerate() {
            let value = if place == changed { value } else { &row.value };
            batch.put(row.table, key(&row.key), value.to_vec());
        }
        disk.commit(batch).expect("memory takes everything");
        match LocalStore::open(Box::new(disk), Clock::system(), options.clone()) {
            Ok(store) => result((changed, runtime.block_on(ask(&store, &rows)))),
            Err(error) => result((changed, std::mem::discriminant(&error))),
        }
    };
    Target { name: "stored-record", seeds, attempt: Box::new(attempt) }
}

fn key(bytes: &[u8]) -> Key {
    match <[u8; 16]>::try_from(bytes) {
        Ok(id) => Key::Id(id),
        Err(_) => Key::Text(String::from_utf8(bytes.to_vec()).expect("other keys are texts")),
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
    failures.push(store.keys().await.is_err());
    failures.push(store.tenants().await.is_err());
    failures.push(store.replay_runs().await.is_err());
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
    let disk = Shared::default();
    let store = LocalStore::open(Box::new(disk.clone()), Clock::system(), options).expect("it opens");
    let world = World::with(|engine| engine.store = Arc::new(store));
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
    for table in Table::ALL {
        let mut see = |key: &[u8], value: &[u8]| {
            rows.push(Row { table, key: key.to_vec(), value: value.to_vec() });
            std::ops::ControlFlow::Continue(())
        };
        disk.scan(table, Order::UpFrom(b""), &mut see).expect("memory can be read");
    }
    let has_rows = |table: &Table| rows.iter().any(|row| row.table == *table);
    assert!(Table::ALL.iter().all(has_rows) && rows.len() <= usize::from(u8::MAX), "{} rows", rows.len());
    rows
}

/// Attempts everything in the lane `http`; the destination answers with this status.
fn answer(world: &World, status: u16) {
    let lane = LaneName::new("http").expect("a name");
    let engine = &world.engine;
    let policy = engine.policy(&lane).expect("a lane");
    world.runtime.block_on(async {
        let claimed = engine.store.claim(&lane, 10).await.expect("it claims").jobs;
        let settled = claimed.into_iter().map(|claimed| {
            let outcome = Outcome::Answer(Answer {
                status: StatusCode::from_u16(status).expect("a status"),
                headers: HeaderMap::new(),
                body: Bytes::from_static(b"{\"ok\":true}"),
                truncated: false,
                retry_after: None,
            });
            let took = Duration::from_millis(5);
            engine.settlement(&policy, Attempted { claimed, started_at: engine.clock.now(), took, outcome })
        });
        engine.store.settle(&lane, settled.collect()).await.expect("it settles");
        engine.store.flush().await.expect("it writes");
    });
}
