//! What is counted of proxy routes, under the names that their dashboards know.
//! Invariant: every question that was taken is counted once as `processed`, `fallback`, `failed` or `dropped`.

use entrega_core::breaker::BreakerState;
use entrega_core::decide::Transition;
use entrega_core::name::LaneName;
use entrega_core::outcome::{FaultKind, Outcome};
use metrics::{Counter, Recorder as _};
use metrics_exporter_prometheus::PrometheusRecorder;

use super::{METADATA, key};
use crate::store::LaneView;

/// Words for why an old answer had to do that are shown from the start, so that a rate has a beginning.
const MOTIVES: [&str; 3] = ["breaker_aberto", "timeout", "erro_5xx"];

/// The counters of one route.
pub struct ProxyMetrics<'a> {
    recorder: &'a PrometheusRecorder,
    route: &'a str,
}

impl<'a> ProxyMetrics<'a> {
    /// Those of the route that a lane belongs to; `None` for any other lane.
    pub(super) fn of(recorder: &'a PrometheusRecorder, lane: &'a LaneName) -> Option<ProxyMetrics<'a>> {
        lane.proxy_route().map(|route| ProxyMetrics { recorder, route })
    }

    /// Registers what is there from the start.
    pub(super) fn register(&self) {
        for status in ["processed", "failed", "dropped", "fallback"] {
            self.jobs(status).increment(0);
        }
        for motive in MOTIVES {
            self.counter("proxy_fallbacks_total", &[("motivo", motive)]).increment(0);
        }
        self.counter("proxy_timeouts_total", &[]).increment(0);
    }

    /// A question was answered without a place in the lane.
    pub fn answered(&self) {
        self.jobs("processed").increment(1);
        self.counter("proxy_cache_hits_total", &[]).increment(1);
    }

    /// A question was dropped: refused by a full lane, pushed out, or too old.
    pub fn dropped(&self) {
        self.jobs("dropped").increment(1);
    }

    /// A question came to its end, or to another attempt.
    pub fn settled(&self, outcome: &Outcome, transition: &Transition) {
        let failure = match outcome {
            Outcome::Cached(cached) => cached.instead_of.as_deref(),
            other => Some(other),
        };
        if let Some(failure) = failure {
            self.upstream(failure);
        }
        match (transition, outcome) {
            (Transition::Done, Outcome::Cached(cached)) => match &cached.instead_of {
                Some(failure) => {
                    self.jobs("fallback").increment(1);
                    self.counter("proxy_fallbacks_total", &[("motivo", failure.motive())]).increment(1);
                }
                None => self.answered(),
            },
            (Transition::Done, _) => self.jobs("processed").increment(1),
            (Transition::DeadLetter { .. } | Transition::Blocked { .. }, _) => self.jobs("failed").increment(1),
            // Counted where the job is dropped.
            (Transition::Retry { .. } | Transition::Dropped { .. }, _) => {}
        }
    }

    /// How its lane stands. In Redis the counts are those of all nodes together.
    pub(super) fn look(&self, lane: &LaneView) {
        self.gauge("proxy_queue_size", f64::from(lane.sizes.waiting()));
        if let Some(breaker) = &lane.breaker {
            let state = match breaker.state {
                BreakerState::Closed => 0.0,
                BreakerState::Open(_) => 1.0,
                BreakerState::HalfOpen => 2.0,
            };
            self.gauge("proxy_circuit_state", state);
            self.counter("proxy_circuit_open_total", &[]).absolute(breaker.opened);
            self.counter("proxy_circuit_half_open_total", &[]).absolute(breaker.half_opened);
            self.counter("proxy_circuit_close_total", &[]).absolute(breaker.closed);
        }
        if let Some(cadence) = &lane.cadence {
            self.gauge("proxy_interval_seconds", cadence.interval.as_secs_f64());
            self.counter("proxy_rate_limit_penalties_total", &[]).absolute(cadence.penalties);
        }
    }

    /// What came of a call.
    fn upstream(&self, came: &Outcome) {
        let code = match came {
            Outcome::Answer(answer) if answer.status.is_client_error() || answer.status.is_server_error() => {
                answer.status.as_u16().to_string()
            }
            // Nobody was called, or it was counted for another job.
            Outcome::Fault(fault) if matches!(fault.kind, FaultKind::BreakerOpen | FaultKind::Shared) => return,
            Outcome::Fault(fault) => fault.kind.code().to_owned(),
            _ => return,
        };
        if code == FaultKind::Timeout.code() {
            self.counter("proxy_timeouts_total", &[]).increment(1);
        }
        self.counter("proxy_upstream_errors_total", &[("code", &code)]).increment(1);
    }

    fn jobs(&self, status: &str) -> Counter {
        self.counter("proxy_jobs_total", &[("status", status)])
    }

    fn gauge(&self, name: &'static str, value: f64) {
        self.recorder.register_gauge(&key(name, &[("route", self.route)]), &METADATA).set(value);
    }

    fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        let labels = [labels, &[("route", self.route)]].concat();
        self.recorder.register_counter(&key(name, &labels), &METADATA)
    }
}
