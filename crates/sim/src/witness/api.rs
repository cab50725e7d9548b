//! What is seen of calls to the API behind the connector, by jobs and by callers who wait.

use std::time::Duration;

use entrega::connector::{Failed, Replied};
use entrega::store::GateName;
use entrega_core::id::JobId;
use entrega_core::name::LaneName;
use entrega_core::outcome::Lesson;
use entrega_core::time::Time;

use super::passes::{Pass, Request};
use super::{Broken, Witness};
use crate::connector::CONNECTOR_LANE;

/// How much later a gate may hear what somebody told it who did not wait for the answer.
const HEARD_LATE: Duration = Duration::from_secs(4);

/// What may come on top of that: a store that does not answer is waited for, and time goes on in steps.
const MARGIN: Duration = Duration::from_millis(1_005);

/// Somebody who waits for the API's answer.
pub struct Waiting {
    /// The name of its request.
    pub name: String,
    /// Until when.
    pub until: Time,
    /// At which node.
    pub node: usize,
}

impl Witness {
    /// Somebody was let through the gate.
    pub fn passed(&mut self, now: Time, asked_at: Time, gate: &GateName, pass: Pass) {
        self.note(now, format_args!("passes {} by {pass:?}", gate.name));
        self.troubles.went_anyway += u32::from(pass != Pass::Turn);
        let held = match pass {
            Pass::Turn | Pass::Anyway => self.breakers.check_claim(now, asked_at, &gate.name),
            Pass::Uncounted => Ok(()),
        };
        let checked = self.passes.given(self.drift.moment(now), self.drift.moment(asked_at), pass).and(held);
        self.judge(checked.map_err(|(checker, why)| (checker, format!("a call {why}"))));
    }

    /// A call told something about the API.
    pub fn gate_learned(&mut self, now: Time, asked_at: Time, gate: &GateName, lesson: Lesson) {
        self.breakers.learned(now, asked_at, &gate.name, &gate.policy, lesson);
        // What holds nothing at all remembers nothing either.
        if let Lesson::Slower(Some(pause)) = lesson
            && (gate.policy.throttle.is_some() || gate.policy.breaker.is_some())
        {
            self.passes.paused(self.drift.moment(now), self.drift.moment(asked_at) + pause);
        }
    }

    /// Somebody tells a gate something, which may be heard from now on.
    pub fn gate_learning(&mut self, now: Time, gate: &GateName, lesson: Lesson) {
        self.breakers.learning(now, &gate.name, &gate.policy, lesson);
    }

    /// The same, and whoever told it went before it was answered, or was told that nobody knows.
    pub fn gate_may_learn(&mut self, now: Time, asked_at: Time, gate: &GateName, lesson: Lesson) {
        self.breakers.may_learn(now + HEARD_LATE, asked_at, &gate.name, &gate.policy, lesson);
    }

    /// A call leaves, for a job or for somebody who waits; gives its number.
    pub fn calling(&mut self, now: Time, node: usize, name: &str) -> usize {
        self.troubles.called += 1;
        self.note(now, format_args!("calls the API for {name}"));
        let moment = self.drift.moment(now);
        let held = match name.parse::<JobId>() {
            Ok(id) => {
                let lane = LaneName::new(CONNECTOR_LANE).expect("a lane name");
                let held = self.rewound.excuse(&lane, moment, self.hands.calling(id));
                held.map(|since| since.unwrap_or(moment))
            }
            Err(_) => Ok(Time::ZERO),
        };
        let since = held.as_ref().copied().unwrap_or_default();
        let is_late = self.owners.has_just_resumed(node, moment);
        let (number, checked) = self.passes.called(moment, (name.to_owned(), since), is_late);
        self.judge(held.map(drop).and(checked).map_err(|(checker, why)| (checker, format!("{name} {why}"))));
        number
    }

    /// The API asked not to be called before a moment for what this call was for.
    pub fn asked_for_patience(&mut self, call: usize, until: Time) {
        self.passes.asked_for_patience(call, self.drift.moment(until));
    }

    /// A caller begins to wait; gives the name of its request, which is another in another life.
    pub fn begins_to_wait(&mut self, caller: usize) -> String {
        self.troubles.waited += 1;
        format!("caller {caller}, the {}. to wait", self.troubles.waited)
    }

    /// Somebody who waited got an answer, or the reason why there is none.
    pub fn waited(&mut self, now: Time, waiting: &Waiting, result: &Result<Replied, Failed>) {
        let (moment, name) = (self.drift.moment(now), &waiting.name);
        self.troubles.answered += u32::from(result.is_ok());
        let what = match result {
            Ok(replied) => format!("{} after {} attempts", replied.answer.status, replied.attempts),
            Err(failed) => failed.to_string(),
        };
        self.note(now, format_args!("{name} gets {what}"));
        // What its node still has to do after it stood still takes no longer than what is left to do at the end.
        let resumed_at = self.owners.resumed_at(waiting.node).unwrap_or(Time::ZERO);
        let checked = match result {
            _ if moment > waiting.until.max(resumed_at) + MARGIN => {
                Err(("callers_answered", "is answered too late".to_owned()))
            }
            Ok(replied) => self.check_reply((name.clone(), Time::ZERO), replied),
            Err(failed) if failed.to_string().trim().is_empty() => {
                Err(("ends_have_reasons", "is not told why there is no answer".into()))
            }
            Err(_) => Ok(()),
        };
        self.judge(checked.map_err(|(checker, why)| (checker, format!("{name} {why}"))));
    }

    fn check_reply(&self, request: Request, replied: &Replied) -> Result<(), Broken> {
        let calls = self.passes.calls_of(&request);
        match () {
            _ if replied.attempts != calls => {
                Err(("answers_true", format!("is told of {} attempts, and there were {calls}", replied.attempts)))
            }
            _ if !self.passes.is_last_answer(&request, &replied.answer.body) => {
                Err(("answers_true", "gets an answer that is not to its last call".into()))
            }
            _ => Ok(()),
        }
    }
}
