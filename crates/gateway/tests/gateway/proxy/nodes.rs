//! Several nodes before one upstream: one cadence, one breaker, one cache.

use std::time::Duration;

use serde_json::json;

use super::upstream::{Mood, Upstream, ask, assert_paced, config, cpf, ended};
use crate::world::Gateway;
use entrega_testkit::redis::{self, RedisServer};

async fn two_nodes(redis: &RedisServer, config: &str) -> [Gateway; 2] {
    [Gateway::on(&redis.url(), config).await, Gateway::on(&redis.url(), config).await]
}

/// Puts one question so often, at both nodes in turn; one call is under way then, and all wait for it.
async fn ask_while_it_hangs(nodes: &[Gateway; 2], upstream: &Upstream, times: usize) -> Vec<String> {
    upstream.is(Mood::Hangs);
    let mut ids = Vec::new();
    for number in 0..times {
        ids.push(ask(&nodes[number % 2], &cpf(1), "normal").await);
    }
    upstream.wait_for(1).await;
    // reason: the others have their ticks by then, and wait for the call under way.
    tokio::time::sleep(Duration::from_millis(200)).await;
    ids
}

#[tokio::test]
async fn two_nodes_never_call_twice_in_one_tick() {
    if redis::is_left_out() {
        return;
    }
    let (redis, upstream) = (RedisServer::start(&[]), Upstream::start().await);
    let lane = "cadence = { initial = \"100ms\", min = \"100ms\" }\nttl = \"1h\"";
    let nodes = two_nodes(&redis, &config(&upstream, "", lane)).await;
    let mut ids = Vec::new();
    for number in 0..30 {
        ids.push(ask(&nodes[number as usize % 2], &cpf(number), "normal").await);
    }
    let calls = upstream.wait_for(30).await;
    assert_paced(&calls, Duration::from_millis(100));
    for id in &ids {
        assert_eq!(ended(&nodes[0], id).await["state"], "done", "whichever node ran it");
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn equal_questions_at_two_nodes_make_one_call_and_an_answer_serves_both() {
    if redis::is_left_out() {
        return;
    }
    let (redis, upstream) = (RedisServer::start(&[]), Upstream::start().await);
    let nodes = two_nodes(&redis, &config(&upstream, "", "cadence = { initial = \"5ms\" }\nttl = \"1h\"")).await;
    let ids = ask_while_it_hangs(&nodes, &upstream, 8).await;
    upstream.is(Mood::Well);
    for id in &ids {
        assert_eq!(ended(&nodes[1], id).await["result"]["body"], r#"{"call":1,"score":700}"#);
    }
    for node in &nodes {
        let id = ask(node, &cpf(1), "normal").await;
        assert_eq!(ended(node, &id).await["result"]["cache"]["stale"], false);
    }
    assert_eq!(upstream.calls().len(), 1);
    for node in nodes {
        node.stop().await;
    }
}

/// Whoever waited for the call of another node made its own when that failed, between two ticks.
#[tokio::test]
async fn a_call_that_fails_fails_for_equal_questions_at_the_other_node() {
    if redis::is_left_out() {
        return;
    }
    let (redis, upstream) = (RedisServer::start(&[]), Upstream::start().await);
    let nodes = two_nodes(&redis, &config(&upstream, "", "cadence = { initial = \"5ms\" }\nttl = \"1h\"")).await;
    let ids = ask_while_it_hangs(&nodes, &upstream, 6).await;
    upstream.is(Mood::Says(503));
    for id in &ids {
        assert_eq!(ended(&nodes[1], id).await["state"], "dlq");
    }
    assert_eq!(upstream.calls().len(), 1, "nobody calls after waiting");
    upstream.is(Mood::Well);
    let id = ask(&nodes[1], &cpf(1), "normal").await;
    assert_eq!(ended(&nodes[1], &id).await["state"], "done", "the next question has a tick of its own");
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn what_one_node_learns_of_an_upstream_the_other_knows() {
    if redis::is_left_out() {
        return;
    }
    let (redis, upstream) = (RedisServer::start(&[]), Upstream::start().await);
    let lane = "cadence = { initial = \"5ms\" }\nttl = \"1h\"\n\
                breaker = { failures = 3, open = \"1m\", when_open = \"pass\" }";
    let nodes = two_nodes(&redis, &config(&upstream, "", lane)).await;
    upstream.is(Mood::Says(503));
    for number in 0..3 {
        let id = ask(&nodes[0], &cpf(number), "normal").await;
        assert_eq!(ended(&nodes[0], &id).await["state"], "dlq");
    }
    for number in 10..15 {
        let id = ask(&nodes[1], &cpf(number), "normal").await;
        assert_eq!(ended(&nodes[1], &id).await["attempts"][0]["code"], json!("breaker_aberto"));
    }
    assert_eq!(upstream.calls().len(), 3);
    for node in nodes {
        node.stop().await;
    }
}
