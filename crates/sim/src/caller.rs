//! Callers: each comes at its time, comes back when it is turned away, and goes when it is answered.
//! Invariant: whoever has a job taken is told so once it is safe; whoever waits for the API's answer has it, or the reason
//! why there is none, in the time that it gave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use entrega::Engine;
use entrega::connector::ConnectorCall;
use entrega::connector::Names;
use entrega::proxy::ProxyCall;
use entrega::proxy::{NotAsked, Question};
use entrega::refusal::Refusal;
use entrega::store::Idempotency;
use entrega::store::StoreError;
use entrega::submission::{NewJob, Taken};
use entrega_core::name::TenantName;

use crate::node::{Doors, House};
use crate::plan::PlannedRequest;
use crate::route::ROUTE;
use crate::witness::Waiting;

/// How often a caller comes back who was turned away.
const RETURNS_MAX: u32 = 20;
const RETURN_AFTER: Duration = Duration::from_millis(1_100);
/// How long a caller waits for the API's answer.
const PATIENCE: Duration = Duration::from_secs(4);

/// The call of a caller who waits for its answer.
fn waiting_call(request: &PlannedRequest) -> Option<ConnectorCall> {
    request.job.content.payload().read().ok().filter(|_| request.waits)
}

/// One caller, from when it comes until it goes.
pub async fn call(house: Arc<House>, number: usize) {
    let (life, world) = (&house.life, &house.life.world);
    let request = &world.plan.requests[number];
    if !world.open.lock()[number] {
        return;
    }
    life.wait_until(request.at).await;
    match waiting_call(request) {
        Some(call) => wait_for_answer(&house.doors, number, &request.tenant, &call).await,
        None => {
            // Whoever has a key may be impatient and come twice.
            let mut is_impatient = is_impatient(request, number);
            for _ in 0..RETURNS_MAX {
                match hand_in(&house, number, request, &mut is_impatient).await {
                    Some(after) => life.wait(after).await,
                    None => break,
                }
            }
        }
    }
    world.open.lock()[number] = false;
}

/// One visit of a caller at one of several nodes; when it comes back, if it does.
pub async fn visit(house: &House, number: usize) -> Option<Duration> {
    let world = &house.life.world;
    let request = &world.plan.requests[number];
    let again = match waiting_call(request) {
        Some(call) => {
            wait_for_answer(&house.doors, number, &request.tenant, &call).await;
            None
        }
        None => {
            let was_accepted = world.accepted.lock().contains(&number);
            let mut is_impatient = is_impatient(request, number) && !was_accepted;
            hand_in(house, number, request, &mut is_impatient).await
        }
    };
    if again.is_none() {
        world.open.lock()[number] = false;
    }
    again
}

fn is_impatient(request: &PlannedRequest, number: usize) -> bool {
    request.key.is_some() && number.is_multiple_of(2)
}

/// Hands a request in; when it is handed in again, if it is.
async fn hand_in(house: &House, number: usize, request: &PlannedRequest, is_impatient: &mut bool) -> Option<Duration> {
    let (life, world) = (&house.life, &house.life.world);
    let keys: Vec<Idempotency> =
        request.key.iter().filter_map(|key| Idempotency::new(key, &[key.as_bytes()])).collect();
    match ask(&house.doors, request, &keys).await {
        None => Some(RETURN_AFTER),
        Some(Ok(taken)) => {
            let mut witness = world.witness.lock();
            witness.troubles.repeated += u32::from(taken.is_repeat);
            witness.acknowledged(life.clock.now(), taken.id);
            drop(witness);
            world.accepted.lock().insert(number);
            std::mem::take(is_impatient).then_some(Duration::ZERO)
        }
        Some(Err(Refusal::Store(StoreError::DiskFull { .. } | StoreError::Unreachable { .. }))) => Some(RETURN_AFTER),
        Some(Err(Refusal::Full { .. })) => None,
        other => {
            let detail = format!("request {number} was answered {other:?}");
            world.witness.lock().break_promise("engine_goes_on", detail);
            None
        }
    }
}

/// Hands a request in at a node; nobody answers where that is gone, or dies over it.
async fn ask(doors: &Doors, request: &PlannedRequest, keys: &[Idempotency]) -> Option<Result<Taken, Refusal>> {
    let (life, engine) = doors.find()?;
    let asked = async {
        match question(&request.job, keys) {
            None => engine.submit_once(&request.tenant, vec![(request.job.clone(), keys.to_vec())]).await.pop(),
            Some(question) => Some(put_to(&engine, &request.tenant, question).await),
        }
    };
    tokio::select! {
        biased;
        () = life.died() => None,
        answer = asked => answer,
    }
}

/// What a request asks of the proxy, if it does.
fn question(job: &NewJob, keys: &[Idempotency]) -> Option<Question> {
    let call: ProxyCall = job.content.payload().read().ok()?;
    let params = call.params.into_iter().collect();
    Some(Question { params, priority: job.priority, idempotency: keys.first().cloned(), labels: BTreeMap::new() })
}

async fn put_to(engine: &Engine, tenant: &TenantName, question: Question) -> Result<Taken, Refusal> {
    let route = engine.proxy().route(ROUTE).expect("the route that every engine has");
    engine.proxy().ask(tenant, route, question).await.map_err(|refused| match refused {
        NotAsked::Refused(refusal) => refusal,
        other => panic!("a question that fits was not asked: {other}"),
    })
}

/// Has a node call the API, and waits. Whoever comes when all are away leaves, and so does whose node dies over it.
async fn wait_for_answer(doors: &Doors, number: usize, tenant: &TenantName, call: &ConnectorCall) {
    let Some((life, engine)) = doors.find() else { return };
    let now = life.clock.now();
    let name = life.world.witness.lock().begins_to_wait(number);
    let until = life.moment() + PATIENCE;
    let names = Names { request_id: Some(name.clone()), ..Names::default() };
    let result = tokio::select! {
        biased;
        () = life.died() => return,
        result = engine.connectors().send(tenant, call, names, life.clock.instant(now + PATIENCE)) => result,
    };
    let waiting = Waiting { name, until, node: life.number() };
    life.world.witness.lock().waited(life.clock.now(), &waiting, &result);
}
