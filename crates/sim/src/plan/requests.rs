//! Requests: who comes, when, and what for.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use entrega::content::{NewContent, Opaque};
use entrega::mail::{Mail, Mailbox};
use entrega::proxy::ProxyCall;
use entrega::submission::NewJob;
use entrega_core::job::Priority;
use std::sync::Arc;

use super::{
    CALLERS_MS, CALLS_LANE, DOWN_LANE, MAIL_LANE, PACED_LANE, PlannedRequest, START, TENANTS, lane_name, ms,
    tenant_name,
};
use crate::connector::{self, CONNECTOR_LANE};
use crate::route::{PARAM, PROXY_LANE};

/// What is asked of the proxy, over and over.
const QUESTIONS: u32 = 3;

/// Some who come by themselves; in some runs, many at once besides.
pub(super) fn draw(rng: &mut fastrand::Rng) -> Vec<PlannedRequest> {
    let mut requests: Vec<PlannedRequest> = (0..rng.u32(12..28)).map(|number| request(rng, number)).collect();
    if rng.u32(0..3) == 0 {
        burst(rng, &mut requests);
    }
    if rng.u32(0..3) == 0 {
        questions(rng, &mut requests);
    }
    if rng.u32(0..3) == 0 {
        calls(rng, &mut requests);
    }
    requests
}

fn request(rng: &mut fastrand::Rng, number: u32) -> PlannedRequest {
    let lane = match rng.u32(0..14) {
        0..4 => CALLS_LANE,
        4..6 => DOWN_LANE,
        6..8 => PACED_LANE,
        8..10 => MAIL_LANE,
        10..12 => CONNECTOR_LANE,
        _ => PROXY_LANE,
    };
    let content: NewContent = match lane {
        PROXY_LANE => Arc::new(question(rng.u32(0..QUESTIONS))),
        CONNECTOR_LANE => Arc::new(connector::call(number)),
        MAIL_LANE => Arc::new(mail(number)),
        _ => Arc::new(Opaque(format!("body {number}").into())),
    };
    // Some come together, so that there is a queue to take turns in.
    let at_ms = rng.u64(0..CALLERS_MS);
    let at_ms = if rng.bool() { at_ms / 2_000 * 2_000 } else { at_ms };
    let key = (rng.u32(0..3) == 0).then(|| format!("key-{number}"));
    PlannedRequest {
        at: START + ms(at_ms),
        tenant: tenant_name(rng.u32(0..TENANTS)),
        key: key.clone(),
        waits: rng.bool(),
        job: NewJob {
            lane: lane_name(lane),
            priority: Priority::ALL[rng.usize(0..3)],
            content,
            labels: BTreeMap::new(),
            ttl: (rng.u32(0..4) == 0).then(|| ms(rng.u64(100..4_000))),
            delay: if rng.u32(0..4) == 0 { ms(rng.u64(1..2_000)) } else { Duration::ZERO },
            idempotency_key: key,
        },
    }
}

fn question(number: u32) -> ProxyCall {
    ProxyCall { params: BTreeMap::from([(PARAM.into(), format!("q{number}"))]) }
}

/// Many ask the same few questions at once.
fn questions(rng: &mut fastrand::Rng, requests: &mut Vec<PlannedRequest>) {
    let first = requests.len() as u32;
    let at = START + ms(rng.u64(0..CALLERS_MS));
    for number in 0..rng.u32(6..16) {
        let mut request = request(rng, first + number);
        request.at = at + ms(rng.u64(0..1_500));
        request.job.lane = lane_name(PROXY_LANE);
        request.job.content = Arc::new(question(rng.u32(0..QUESTIONS)));
        (request.job.delay, request.job.ttl) = (Duration::ZERO, None);
        requests.push(request);
    }
}

/// Many call the API at once.
fn calls(rng: &mut fastrand::Rng, requests: &mut Vec<PlannedRequest>) {
    let first = requests.len() as u32;
    let at = START + ms(rng.u64(0..CALLERS_MS));
    for number in first..first + rng.u32(6..16) {
        let mut request = request(rng, number);
        request.at = at + ms(rng.u64(0..1_000));
        request.job.lane = lane_name(CONNECTOR_LANE);
        request.job.content = Arc::new(connector::call(number));
        (request.job.delay, request.job.ttl) = (Duration::ZERO, None);
        requests.push(request);
    }
}

/// One tenant wants much at once, another a little: they must take turns.
fn burst(rng: &mut fastrand::Rng, requests: &mut Vec<PlannedRequest>) {
    let first = requests.len() as u32;
    let at = START + ms(rng.u64(0..CALLERS_MS));
    for number in 0..14 {
        let mut request = request(rng, first + number);
        request.tenant = tenant_name(if number < 10 { 3 } else { 4 });
        request.at = at;
        request.job.lane = lane_name(CALLS_LANE);
        request.job.content = Arc::new(Opaque(Bytes::from_static(b"burst")));
        (request.job.priority, request.job.delay, request.job.ttl) = (Priority::Normal, Duration::ZERO, None);
        requests.push(request);
    }
}

fn mail(number: u32) -> Mail {
    let mailbox = |address: String| Mailbox { name: None, address };
    Mail {
        from: mailbox("gateway@example.com".into()),
        reply_to: None,
        to: vec![mailbox(format!("somebody{number}@example.com"))],
        cc: Vec::new(),
        bcc: Vec::new(),
        subject: format!("body {number}"),
        text: Some("hello".into()),
        html: None,
        attachments: Vec::new(),
        headers: Vec::new(),
    }
}
