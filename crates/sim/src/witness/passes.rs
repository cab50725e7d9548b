//! Passes: who was let through the gate before the API, as the API counts its calls.
//! Invariant: moments are those that really were. The gate is not asked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use entrega_call::RetryPolicy;
use entrega_core::time::Time;

use crate::witness::Broken;

/// How somebody got past the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// It had its turn.
    Turn,
    /// It waited for too long, and goes anyway.
    Anyway,
    /// The same, and the gate could not be told.
    Uncounted,
}

/// One request with all its calls: for whom, and since when somebody has it.
pub type Request = (String, Time);

/// What is known of a request.
#[derive(Debug, Default)]
struct Made {
    calls: u32,
    /// The API asked not to be called before.
    quiet_until: Option<Time>,
}

/// Somebody was let through.
#[derive(Clone, Copy, Debug)]
struct Given {
    at: Time,
    /// When it asked.
    asked_at: Time,
    pass: Pass,
}

/// All passes and calls.
#[derive(Debug)]
pub struct Passes {
    throttle: Option<(u32, Duration)>,
    /// Those that nobody used yet.
    open: Vec<Given>,
    /// Since when, and until when the API asked everybody for a pause.
    paused: (Time, Time),
    /// Those that counted.
    counted: Vec<Given>,
    requests: BTreeMap<Request, Made>,
    /// For what each call was.
    calls: Vec<Request>,
}

/// Whether a gate can have let all of them through. Where it is far away, it counted each somewhere between the question and
/// its answer, in an order that nobody saw: some order must do.
fn fits(counted: &[Given], max: u32, per: Duration) -> bool {
    let mut left = counted.to_vec();
    left.sort_by_key(|given| given.at);
    Placing { max: max as usize, per, starts: Vec::new(), tries: TRIES_MAX }.place(&mut left)
}

/// Orders that are tried; calls that are too many are too many in all of them.
const TRIES_MAX: u32 = 20_000;

/// Looks for an order in which a gate can have counted calls.
struct Placing {
    max: usize,
    per: Duration,
    /// When it counted those that are placed.
    starts: Vec<Time>,
    tries: u32,
}

impl Placing {
    /// The earliest moment at which the next is counted.
    fn earliest(&self, given: &Given) -> Time {
        let free = self.starts.len().checked_sub(self.max).map_or(Time::ZERO, |index| self.starts[index] + self.per);
        if given.pass == Pass::Turn { given.asked_at.max(free) } else { given.asked_at }
    }

    /// Whether all that are left can be counted after those that are placed: next comes the one that was answered first, or
    /// the one that can be counted first.
    fn place(&mut self, left: &mut Vec<Given>) -> bool {
        if left.is_empty() || self.tries == 0 {
            return left.is_empty();
        }
        self.tries -= 1;
        let soonest = (0..left.len()).min_by_key(|index| self.earliest(&left[*index])).unwrap_or(0);
        for index in BTreeSet::from([0, soonest]) {
            let given = left.remove(index);
            let start = self.earliest(&given);
            if start <= given.at || given.pass != Pass::Turn {
                let place = self.starts.partition_point(|other| *other <= start);
                self.starts.insert(place, start);
                if self.place(left) {
                    return true;
                }
                self.starts.remove(place);
            }
            left.insert(index, given);
        }
        false
    }
}

impl Passes {
    /// Of an API that allows so many starts in an interval.
    pub fn new(throttle: Option<(u32, Duration)>) -> Passes {
        Passes {
            throttle,
            open: Vec::new(),
            paused: (Time::ZERO, Time::ZERO),
            counted: Vec::new(),
            requests: BTreeMap::new(),
            calls: Vec::new(),
        }
    }

    /// The store was opened again: nobody is left who was let through.
    pub fn forgotten(&mut self) {
        self.open.clear();
        self.paused = (Time::ZERO, Time::ZERO);
    }

    /// The ledger has lost what it knew of calls.
    pub fn lost(&mut self) {
        self.counted.clear();
        self.paused = (Time::ZERO, Time::ZERO);
    }

    /// The gate heard that the API asks for a pause.
    pub fn paused(&mut self, now: Time, until: Time) {
        if until > self.paused.1 {
            self.paused = (now, until);
        }
    }

    /// Somebody was let through who had asked at a moment.
    pub fn given(&mut self, now: Time, asked_at: Time, pass: Pass) -> Result<(), Broken> {
        self.open.push(Given { at: now, asked_at, pass });
        let (since, until) = self.paused;
        match pass != Pass::Uncounted && since <= asked_at && now < until {
            true => Err(("never_early", "goes although the API asked for a pause".into())),
            false => Ok(()),
        }
    }

    /// The API is called, late if somebody stood still before that; gives the number of the call.
    pub fn called(&mut self, now: Time, request: Request, is_late: bool) -> (usize, Result<(), Broken>) {
        // A turn that is not used at once is lost, for whoever waited for it was gone.
        self.open.retain(|given| given.at == now);
        let given = self.open.pop();
        let pass = given.map(|given| given.pass);
        self.counted.extend(given.filter(|given| given.pass != Pass::Uncounted));
        let is_full = |(max, per)| !fits(&self.counted, max, per);
        let made = self.requests.entry(request.clone()).or_default();
        made.calls += 1;
        let attempts = RetryPolicy::connector().attempts;
        let checked = match pass {
            None if is_late => Ok(()),
            None => Err(("throttle_respected", "is called without a turn".into())),
            Some(Pass::Turn) if self.throttle.is_some_and(is_full) => {
                Err(("throttle_respected", "is one call too many".into()))
            }
            Some(_) if made.quiet_until.is_some_and(|until| now < until) => {
                Err(("never_early", "is called before the API allows".into()))
            }
            Some(_) if made.calls > attempts => {
                Err(("attempts_bounded", format!("is called {} times of {attempts}", made.calls)))
            }
            Some(_) => Ok(()),
        };
        self.calls.push(request);
        (self.calls.len() - 1, checked)
    }

    /// The API asked not to be called for the same before a moment.
    pub fn asked_for_patience(&mut self, call: usize, until: Time) {
        if let Some(made) = self.requests.get_mut(&self.calls[call]) {
            made.quiet_until = Some(until);
        }
    }

    /// Whether a body is what the API answered to the last call for a request.
    pub fn is_last_answer(&self, request: &Request, body: &[u8]) -> bool {
        let last = self.calls.iter().rposition(|call| call == request);
        last.is_some_and(|call| body.ends_with(format!(" answer {call}").as_bytes()))
    }

    /// How often the API was called for a request.
    pub fn calls_of(&self, request: &Request) -> u32 {
        self.requests.get(request).map_or(0, |made| made.calls)
    }
}
