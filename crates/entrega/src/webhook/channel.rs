//! The `webhook` channel: an event, signed, for one endpoint.
//! Invariant: the body is byte for byte the same on every attempt; the moments in the headers are fresh.
//! Never: follows redirects, or calls an endpoint that is paused or disabled: its jobs wait.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use entrega_call::Client;
use entrega_core::outcome::{Fault, FaultKind, Outcome};
use entrega_core::time::Time;
use entrega_core::webhook::{BadSecret, WebhookSecret, sign, sign_standard_all};
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{Request, StatusCode};
use tokio::time::Instant;

use super::{EventBody, change_endpoint};
use crate::channel::Channel;
use crate::http::outcome;
use crate::seal::Seal;
use crate::store::{ClaimedJob, Endpoint, EndpointState, PutEndpointError, Store};
use entrega_call::Clock;

/// An endpoint that fails for so long is disabled.
pub const FAILING_MAX: Duration = Duration::from_hours(5 * 24);

/// Signed events.
pub struct WebhookChannel {
    client: Client,
    store: Arc<dyn Store>,
    seal: Arc<Seal>,
    clock: Clock,
    user_agent: HeaderValue,
}

impl WebhookChannel {
    /// Calls through this client, to the endpoints that this store knows, with the secrets that this seal opens.
    pub fn new(client: Client, store: Arc<dyn Store>, seal: Arc<Seal>, clock: Clock, user_agent: HeaderValue) -> Self {
        WebhookChannel { client, store, seal, clock, user_agent }
    }

    async fn deliver(&self, claimed: &ClaimedJob, deadline: Instant) -> Result<Outcome, Fault> {
        let event: EventBody =
            claimed.job.payload.read().map_err(|error| fault(FaultKind::Invalid, error.to_string()))?;
        let name = claimed.job.tenant.endpoint_name().unwrap_or_default();
        let company = claimed.job.tenant.company();
        let Some(endpoint) = self.store.endpoint(&company, name) else {
            return Err(fault(
                FaultKind::Held,
                format!("the endpoint '{name}' is not there any more; it waits for one"),
            ));
        };
        match endpoint.state {
            EndpointState::Enabled => {}
            EndpointState::Paused => return Err(fault(FaultKind::Held, format!("the endpoint '{name}' is paused"))),
            EndpointState::Disabled => {
                let why = endpoint.reason.as_deref().unwrap_or("an operator");
                return Err(fault(FaultKind::Held, format!("the endpoint '{name}' is disabled: {why}")));
            }
        }
        let request = self.request(claimed, &event, &endpoint)?;
        let outcome = outcome(self.client.call_for(company.as_str(), request, deadline).await);
        self.learn(&endpoint, outcome).await
    }

    fn request(&self, claimed: &ClaimedJob, event: &EventBody, endpoint: &Endpoint) -> Result<Request<Bytes>, Fault> {
        let invalid = |error: &dyn std::fmt::Display| fault(FaultKind::Invalid, error.to_string());
        let context = endpoint.context();
        let opened = endpoint.secrets.iter().map(|sealed| self.seal.open(sealed, &context));
        let secrets = opened.map(|secret| {
            // Sealed with another key: the operator's to mend, so it is tried again.
            let secret = secret.map_err(|error| fault(FaultKind::Crashed, error.to_string()))?;
            secret.reveal().parse().map_err(|error: BadSecret| invalid(&error))
        });
        let secrets = secrets.collect::<Result<Vec<WebhookSecret>, Fault>>()?;
        let newest = secrets.first().ok_or_else(|| fault(FaultKind::Invalid, "the endpoint has no secret"))?;
        // Receivers compare it with their own clocks.
        let now = self.clock.wall();
        let body = event.body.0.clone();
        let seconds = now.as_millis() / 1000;
        let mut request = Request::post(endpoint.url.as_str()).body(body.clone()).map_err(|error| invalid(&error))?;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, self.user_agent.clone());
        for (name, value) in [
            ("x-signature", sign(newest, &body)),
            ("x-event-id", event.event_id.clone()),
            ("traceparent", claimed.job.traceparent(claimed.attempt)),
            ("x-retry-count", (claimed.attempt - 1).to_string()),
            ("x-sent-at", now.as_millis().to_string()),
            ("webhook-id", event.event_id.clone()),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", sign_standard_all(&secrets, &event.event_id, seconds, &body)),
        ] {
            let value = HeaderValue::from_str(&value).map_err(|error| invalid(&error))?;
            headers.insert(HeaderName::from_static(name), value);
        }
        Ok(request)
    }

    /// An endpoint that is gone, or has failed for days, is disabled; what it did not get waits for it.
    async fn learn(&self, endpoint: &Endpoint, outcome: Outcome) -> Result<Outcome, Fault> {
        let now = self.clock.now();
        let (is_good, is_gone) = match &outcome {
            Outcome::Answer(answer) => (answer.status.is_success(), answer.status == StatusCode::GONE),
            _ => (false, false),
        };
        let failed_too_long = endpoint.failing_since.is_some_and(|since| !is_good && now.since(since) > FAILING_MAX);
        let is_news = match (is_good, endpoint.failing_since) {
            (true, since) => since.is_some(),
            (false, since) => is_gone || failed_too_long || since.is_none(),
        };
        if is_news {
            let reason = (is_gone || failed_too_long).then_some(if is_gone {
                "it answered 410 Gone"
            } else {
                "it failed for 5 days"
            });
            self.note(endpoint, (!is_good).then_some(now), reason).await;
        }
        match (is_gone || failed_too_long, outcome) {
            (false, outcome) => Ok(outcome),
            (true, Outcome::Answer(answer)) => Ok(Outcome::EndpointDisabled(answer)),
            (true, _) => Err(fault(FaultKind::Held, "the endpoint is disabled now; what it did not get waits for it")),
        }
    }

    /// Keeps what was learned, in the endpoint as it is now: it may have been changed during the call. It is worth little:
    /// where it cannot be kept, the next attempt learns it again.
    async fn note(&self, seen: &Endpoint, failing: Option<Time>, disabled: Option<&'static str>) {
        let (tenant, name) = (&seen.tenant, &seen.name);
        let change = |latest: Option<&Endpoint>| {
            let Some(latest) = latest.filter(|latest| latest.url == seen.url) else { return Ok(None) };
            let mut learned = latest.clone();
            learned.failing_since = failing.map(|now| latest.failing_since.unwrap_or(now));
            if let Some(reason) = disabled {
                learned.state = EndpointState::Disabled;
                learned.reason = Some(reason.into());
            }
            let is_news = learned != *latest;
            Ok::<_, PutEndpointError>(is_news.then(|| Endpoint { updated_at: self.clock.now(), ..learned }))
        };
        match (change_endpoint(&*self.store, tenant, name, change).await, disabled) {
            (Ok(Some(_)), Some(reason)) => tracing::warn!(target: "audit", companyId = %tenant, endpoint = name,
                errorReason = reason, operation = "endpoint.disable", "Endpoint disabled"),
            (Ok(_), _) => {}
            (Err(error), _) => tracing::warn!(companyId = %tenant, endpoint = name, errorReason = %error,
                "The state of an endpoint could not be kept"),
        }
    }
}

fn fault(kind: FaultKind, message: impl Into<String>) -> Fault {
    Fault { kind, message: message.into() }
}

#[async_trait]
impl Channel for WebhookChannel {
    async fn attempt(&self, claimed: &ClaimedJob, deadline: Instant) -> Outcome {
        self.deliver(claimed, deadline).await.unwrap_or_else(Outcome::Fault)
    }
}

#[cfg(test)]
mod tests {
    use entrega_call::ClientConfig;
    use entrega_core::name::{LaneName, TenantName};
    use entrega_core::policy::LanePolicy;
    use entrega_core::time::Time;
    use entrega_ledger::HeapLedger;

    use super::*;
    use crate::store::local::tables::TABLES;
    use crate::store::local::{LocalOptions, LocalStore};
    use crate::store::{EndpointOrigin, JobStore as _};
    use crate::webhook::event::test_event;

    const SECRET: &str = "whsec_0123456789abcdefghijABCDEFGHIJKL";

    /// The clock was read once per process: after a correction, signatures were ten minutes old and nobody took them.
    #[tokio::test]
    async fn a_signature_follows_a_correction_of_the_clock() {
        let clock = Clock::manual(Time::from_millis(1_700_000_000_000));
        let lane = LaneName::new("webhook").unwrap();
        let lanes = [(lane.clone(), Arc::new(LanePolicy::webhook()))].into();
        let ledger = Arc::new(HeapLedger::new(&TABLES));
        let store = Arc::new(LocalStore::open(ledger, clock.clone(), LocalOptions::new(lanes)).await.unwrap());
        let (acme, url) = (TenantName::new("acme").unwrap(), "https://acme.example.com/hooks");
        let seal = Arc::new(Seal::from_key([7; 32]));
        let mut endpoint = Endpoint::new(acme.clone(), "default", url, EndpointOrigin::Api, clock.now());
        endpoint.secrets = vec![seal.seal(SECRET, &endpoint.context()).unwrap()];
        let id = entrega_core::id::JobId::from_parts(clock.now(), 1);
        store.submit(vec![test_event(id, &acme, "default", clock.now())]).await.unwrap();
        let claimed = store.claim(&lane, 1).await.unwrap().jobs.remove(0);
        let client = Client::new(ClientConfig::default()).unwrap();
        let agent = HeaderValue::from_static("test");
        let channel = WebhookChannel::new(client, store, seal, clock.clone(), agent);
        let event: EventBody = claimed.job.payload.read().unwrap();
        for (correction_ms, seconds) in [(0, 1_700_000_000_u64), (600_000, 1_700_000_600), (-1_200_000, 1_699_999_400)]
        {
            clock.correct_wall(correction_ms);
            let request = channel.request(&claimed, &event, &endpoint).unwrap();
            let header = |name: &str| request.headers()[name].to_str().unwrap().to_owned();
            assert_eq!(header("webhook-timestamp"), seconds.to_string());
            assert_eq!(header("x-sent-at"), (seconds * 1_000).to_string());
            let secrets = [SECRET.parse().unwrap()];
            let signature = sign_standard_all(&secrets, &event.event_id, seconds, &event.body.0);
            assert_eq!(header("webhook-signature"), signature);
        }
    }
}
