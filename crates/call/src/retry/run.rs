//! One operation on its way: admit, attempt, judge, wait, and again.
//! Invariant: between two attempts lies at least the backoff and what the destination asked for.
//! Never: keeps more than the last result.

use std::sync::Arc;
use std::time::Duration;

use entrega_core::lane::GateKind;
use entrega_core::outcome::{FaultKind, Lesson};
use entrega_core::policy::RETRY_AFTER_MAX;
use entrega_core::time::Time;
use tokio::time::{sleep_until, timeout_at};

use super::classifier::{Classifier, Description, Judgement};
use super::end::{AttemptError, Completed, GaveUp, Stopped};
use super::log::{self, EndedWith, Subject};
use super::observe::{AttemptEnded, GivenUp, Observer, ThrottleWaited, Waiting};
use super::operation::{AttemptContext, Operation};
use super::{Retrier, RetryPolicy};
use crate::gate::{OnThrottleTimeout, Passage, SharedTurn, SharedTurns, ThrottleWait};

pub(super) struct Run<'a, C> {
    world: &'a Retrier,
    operation: &'a Operation<C>,
    policy: &'a RetryPolicy,
    key: Arc<str>,
    /// After this nothing starts or goes on.
    deadline: Time,
    /// The number of the last attempt.
    attempt: u32,
}

/// What an attempt had to pass, and has to tell what came of it.
struct Admitted {
    passage: Option<Passage>,
    turn: Option<SharedTurn>,
}

impl Admitted {
    async fn settle(self, lesson: Lesson, took: Duration) {
        if let Some(passage) = self.passage {
            passage.settle(lesson);
        }
        if let Some(turn) = self.turn {
            turn.learn(lesson, took).await;
        }
    }
}

/// An attempt that ended, and what that means.
struct Ended<T, E> {
    result: Result<T, AttemptError<E>>,
    judgement: Judgement,
    lesson: Lesson,
    description: Description,
}

impl<T, E> Ended<T, E> {
    fn with(&self) -> EndedWith {
        if self.result.is_ok() { EndedWith::Response } else { EndedWith::Exception }
    }
}

impl<'a, C> Run<'a, C> {
    pub(super) fn new(world: &'a Retrier, operation: &'a Operation<C>, policy: &'a RetryPolicy) -> Run<'a, C> {
        let total = policy.total.map_or(Time::NEVER, |total| world.clock.now() + total);
        let deadline = operation.deadline.map_or(Time::NEVER, |deadline| world.clock.time(deadline));
        let made = || format!("{:032x}", world.chance.id_bits()).into();
        let key = operation.idempotency_key.clone().unwrap_or_else(made);
        Run { world, operation, policy, key, deadline: total.min(deadline), attempt: 0 }
    }

    pub(super) async fn until_it_ends<T, E, F, Fut>(mut self, mut attempt: F) -> Result<Completed<T>, GaveUp<E>>
    where
        C: Classifier<T, E>,
        F: FnMut(AttemptContext) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        if let Some(budget) = &self.world.gates.budget {
            budget.call();
        }
        let mut last = None;
        loop {
            let admitted = match self.admit().await {
                Ok(admitted) => admitted,
                Err(stopped) => return self.give_up(last, stopped),
            };
            let started = self.world.clock.now();
            let ended = self.attempt_once(&mut attempt).await;
            admitted.settle(ended.lesson, self.world.clock.now().since(started)).await;
            let after = match ended.judgement {
                Judgement::Success => return self.end(ended, None),
                Judgement::Permanent => return self.end(ended, Some(Stopped::Permanent)),
                Judgement::Retry { after } => after,
            };
            if let Err(stopped) = self.wait(after, &ended).await {
                return self.give_up(Some(ended), stopped);
            }
            last = Some(ended);
        }
    }

    /// Passes the gates. The breaker is passed last, for nobody should wait for a turn with a probe in hand, but looked
    /// at first, for nobody should wait for a turn that is of no use.
    async fn admit(&self) -> Result<Admitted, Stopped> {
        self.check_deadline()?;
        let (gates, clock) = (&self.world.gates, &self.world.clock);
        if gates.breaker.as_ref().is_some_and(|breaker| breaker.is_shut_for(gates.breaker_wait_max)) {
            return Err(Stopped::BreakerOpen);
        }
        let until = self.deadline.min(clock.now() + gates.throttle_wait_max);
        if let Some(throttle) = &gates.throttle {
            let waited = throttle.wait_for(&self.operation.tenant, until.since(clock.now())).await;
            let (took, timed_out) = match waited {
                ThrottleWait::Waited { took } => (took, false),
                ThrottleWait::TimedOut { took } => (took, true),
            };
            self.observe(|it| it.throttle_waited(ThrottleWaited { operation: &self.operation.name, took, timed_out }));
            if timed_out {
                self.throttle_timed_out(took)?;
                throttle.start_anyway();
            }
        }
        let turn = match &gates.shared {
            Some(shared) => Some(self.take_shared_turn(shared, until).await?),
            None => None,
        };
        let passage = match &gates.breaker {
            Some(breaker) => {
                let left = self.deadline.since(clock.now());
                Some(breaker.pass(gates.breaker_wait_max.min(left)).await.map_err(|_| Stopped::BreakerOpen)?)
            }
            None => None,
        };
        self.check_deadline()?;
        Ok(Admitted { passage, turn })
    }

    /// Passes the gate that other processes pass as well.
    async fn take_shared_turn(&self, shared: &SharedTurns, until: Time) -> Result<SharedTurn, Stopped> {
        let gates = &self.world.gates;
        let left = until.since(self.world.clock.now());
        let waited = shared.wait(&self.operation.tenant, left, gates.breaker_wait_max).await;
        let waited = waited.map_err(|_| Stopped::BreakerOpen)?;
        let (took, timed_out) = (waited.took, waited.turn.is_none());
        self.observe(|it| it.throttle_waited(ThrottleWaited { operation: &self.operation.name, took, timed_out }));
        if let Some(turn) = waited.turn {
            return Ok(turn);
        }
        self.check_deadline()?;
        if gates.on_throttle_timeout == OnThrottleTimeout::Fail {
            return Err(self.throttle_timed_out(took).err().unwrap_or(Stopped::ThrottleTimedOut));
        }
        let turn = shared.start_anyway().await.map_err(|hold| match hold.gate {
            GateKind::Breaker => Stopped::BreakerOpen,
            _ => Stopped::ThrottleTimedOut,
        })?;
        self.throttle_timed_out(took)?;
        Ok(turn)
    }

    fn check_deadline(&self) -> Result<(), Stopped> {
        let is_over = self.world.clock.now() >= self.deadline;
        if is_over { Err(Stopped::DeadlineTooClose) } else { Ok(()) }
    }

    fn throttle_timed_out(&self, took: Duration) -> Result<(), Stopped> {
        self.check_deadline()?;
        let gates = &self.world.gates;
        let proceeds = gates.on_throttle_timeout == OnThrottleTimeout::Proceed;
        log::throttle_timed_out(&self.subject(), self.attempt + 1, took, gates.throttle_wait_max, proceeds);
        if proceeds { Ok(()) } else { Err(Stopped::ThrottleTimedOut) }
    }

    async fn attempt_once<T, E, F, Fut>(&mut self, attempt: &mut F) -> Ended<T, E>
    where
        C: Classifier<T, E>,
        F: FnMut(AttemptContext) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.attempt += 1;
        let clock = &self.world.clock;
        let started = clock.now();
        let timeout = started + self.policy.timeout;
        let deadline = clock.instant(self.deadline.min(timeout));
        let context = AttemptContext {
            attempt: self.attempt,
            attempts_max: self.policy.attempts_max(),
            deadline,
            idempotency_key: Arc::clone(&self.key),
            operation: Arc::clone(&self.operation.name),
            fields: Arc::clone(&self.operation.fields),
        };
        let result = timeout_at(deadline, attempt(context)).await;
        let now = clock.now();
        let mut ended = match result {
            Ok(result) => self.judge(result, now),
            Err(_) => timed_out(),
        };
        // Whoever has less patience than the destination is given learns nothing about it.
        if ended.result.is_err() && self.deadline < timeout && now >= self.deadline {
            ended.lesson = Lesson::Nothing;
        }
        self.tell(&ended, now.since(started));
        ended
    }

    fn judge<T, E>(&self, result: Result<T, E>, now: Time) -> Ended<T, E>
    where
        C: Classifier<T, E>,
    {
        let classifier = &self.operation.classifier;
        let judgement = classifier.judge(&result, now);
        let lesson = classifier.lesson(&result, now);
        if let Some(throttle) = &self.world.gates.throttle {
            let pause = match judgement {
                Judgement::Retry { after } => after,
                Judgement::Success | Judgement::Permanent => None,
            };
            throttle.learn(lesson, pause, classifier.rate_limit(&result, now));
        }
        let description = classifier.describe(&result);
        Ended { result: result.map_err(AttemptError::Failed), judgement, lesson, description }
    }

    fn tell<T, E>(&self, ended: &Ended<T, E>, took: Duration) {
        let is_retryable = matches!(ended.judgement, Judgement::Retry { .. });
        log::attempt_ended(&self.subject(), self.attempt, took, is_retryable, &ended.description);
        self.observe(|observer| {
            observer.attempt_ended(AttemptEnded {
                operation: &self.operation.name,
                attempt: self.attempt,
                took,
                is_retryable,
                is_success: ended.judgement == Judgement::Success,
                description: &ended.description,
            });
        });
    }

    /// Waits until the next attempt may start, unless there is none.
    async fn wait<T, E>(&self, after: Option<Duration>, ended: &Ended<T, E>) -> Result<(), Stopped> {
        if self.attempt >= self.policy.attempts_max() {
            return Err(Stopped::AttemptsUsedUp);
        }
        let backoff = &self.policy.backoff;
        let base_delay = backoff.delay(self.attempt, 0.5);
        let asked = after.unwrap_or(Duration::ZERO).min(RETRY_AFTER_MAX);
        let final_delay = backoff.delay(self.attempt, self.world.chance.roll()).max(asked);
        let at = self.world.clock.now() + final_delay;
        if at >= self.deadline {
            return Err(Stopped::DeadlineTooClose);
        }
        // Asked last: what is not retried anyway must not take from the others' budget.
        if self.world.gates.budget.as_ref().is_some_and(|budget| !budget.retry()) {
            return Err(Stopped::BudgetSpent);
        }
        log::retrying(&self.subject(), ended.with(), self.attempt, final_delay, &ended.description);
        log::waiting(&self.subject(), self.attempt, base_delay, final_delay);
        let operation = &*self.operation.name;
        self.observe(|it| it.waiting(Waiting { operation, attempt: self.attempt, base_delay, final_delay }));
        sleep_until(self.world.clock.instant(at)).await;
        Ok(())
    }

    /// Ends with the last result, if there was one, although it was worth another attempt.
    fn give_up<T, E>(&self, last: Option<Ended<T, E>>, stopped: Stopped) -> Result<Completed<T>, GaveUp<E>> {
        let operation = &*self.operation.name;
        self.observe(|it| it.gave_up(GivenUp { operation, attempts: self.attempt, stopped }));
        match last {
            Some(ended) => {
                log::gave_up(&self.subject(), ended.with(), self.attempt, stopped, &ended.description);
                self.end(ended, Some(stopped))
            }
            None => {
                let about = Description::default();
                log::gave_up(&self.subject(), EndedWith::Exception, self.attempt, stopped, &about);
                Err(GaveUp { operation: operation.to_owned(), attempts: 0, stopped, last: None })
            }
        }
    }

    fn end<T, E>(&self, ended: Ended<T, E>, stopped: Option<Stopped>) -> Result<Completed<T>, GaveUp<E>> {
        match ended.result {
            Ok(value) => Ok(Completed { value, attempts: self.attempt, stopped }),
            Err(error) => Err(GaveUp {
                operation: self.operation.name.as_ref().to_owned(),
                attempts: self.attempt,
                // A classifier may call an error a success, yet there is no answer to give back.
                stopped: stopped.unwrap_or(Stopped::Permanent),
                last: Some(error),
            }),
        }
    }

    fn observe(&self, tell: impl FnOnce(&dyn Observer)) {
        if let Some(observer) = &self.world.observer {
            tell(&**observer);
        }
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            operation: &self.operation.name,
            idempotency_key: &self.key,
            fields: &self.operation.fields,
            attempts_max: self.policy.attempts_max(),
        }
    }
}

/// An attempt without a result: the destination took too long, and may do better.
fn timed_out<T, E>() -> Ended<T, E> {
    let description = Description { error_code: Some(FaultKind::Timeout.code().to_owned()), ..Description::default() };
    Ended {
        result: Err(AttemptError::TimedOut),
        judgement: Judgement::Retry { after: None },
        lesson: Lesson::Down,
        description,
    }
}
