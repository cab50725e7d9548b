//! Gates before destinations that are called without a queue, over all nodes.
//! Invariant: they are the gates of lanes, by the same rules; a gate is a lane that has no jobs.

use std::time::Duration;

use async_trait::async_trait;
use entrega_core::lane::GateKind;
use entrega_core::outcome::Lesson;
use redis::Value;

use super::answer::Reader;
use super::link::store_error;
use super::schema::LaneKeys;
use super::script::{Call, Verb};
use super::{RedisStore, Shared};
use crate::store::{GateKeeper, GateName, Passing, StoreError};

const READING: Reader = Reader("a gate");

impl Shared {
    async fn at_gate(&self, gate: &GateName, more: impl FnOnce(Call) -> Call) -> Result<Value, StoreError> {
        let keys = LaneKeys::new(&self.options.prefix, &gate.name, &gate.policy, 0);
        let call = more(Call::on(self, &keys, Verb::Gate));
        call.make(self).await.map_err(|error| store_error(&error))
    }
}

fn passing(answer: Value) -> Result<Passing, StoreError> {
    let [held, pause] = READING.fields(answer)?;
    let held = READING.word(held)?;
    if held == "through" {
        return Ok(Passing::Through);
    }
    let kind = GateKind::ALL.into_iter().find(|kind| kind.as_str() == held);
    let kind = kind.ok_or_else(|| READING.wrong(held))?;
    let pause = match pause {
        Value::Nil => None,
        micros => Some(Duration::from_micros(READING.number(&micros)?)),
    };
    Ok(Passing::Held(kind, pause))
}

#[async_trait]
impl GateKeeper for RedisStore {
    async fn pass(&self, gate: &GateName) -> Result<Passing, StoreError> {
        passing(self.shared.at_gate(gate, |call| call.arg("pass")).await?)
    }

    async fn pass_anyway(&self, gate: &GateName) -> Result<Passing, StoreError> {
        passing(self.shared.at_gate(gate, |call| call.arg("anyway")).await?)
    }

    async fn learn(&self, gate: &GateName, lesson: Lesson, took: Duration) -> Result<(), StoreError> {
        let (word, pause) = match lesson {
            Lesson::Up => ("up", None),
            Lesson::Down => ("down", None),
            Lesson::Slower(pause) => ("slower", pause),
            Lesson::Nothing | Lesson::Apart | Lesson::Unused => ("nothing", None),
        };
        let micros = |length: Duration| u64::try_from(length.as_micros()).unwrap_or(u64::MAX);
        let pause = pause.map_or_else(|| "-1".to_owned(), |pause| micros(pause).to_string());
        let learn = |call: Call| call.arg("learn").arg(word).arg(pause).arg(micros(took));
        self.shared.at_gate(gate, learn).await.map(drop)
    }
}
