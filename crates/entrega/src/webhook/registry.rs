//! The endpoints of an engine: set up, changed and removed by callers, tested, and given up.
//! Invariant: a tenant never has more than [`ENDPOINTS_MAX`]; what the configuration says is changed there, but for the
//! state; a secret that was made here is given once, to whoever asked for it.

use std::sync::Arc;

use entrega_call::AddressFilter;
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::throttle::Rate;
use entrega_core::time::Time;
use tokio::sync::Mutex;

use super::endpoint::{
    BadEndpoint, ENDPOINTS_MAX, EVENT_TYPES_MAX, check_event_type, check_name, check_secret, check_throttle, check_url,
    new_secret,
};
use super::waiting::release_waiting;
use super::{Discarded, change_endpoint, discard_waiting};
use crate::env::Env;
use crate::intake::Intake;
use crate::refusal::Refusal;
use crate::seal::{Seal, SealError, Sealed};
use crate::secret::Secret;
use crate::store::{Endpoint, EndpointOrigin, EndpointState, PutEndpointError, StoreError};
use crate::webhook::event::{event_id, test_event};

/// Why one is disabled that a caller disabled.
const DISABLED_BY_CALLER: &str = "disabled through the API";

/// What an endpoint is to be; what is left out has its default, but for the secret.
#[derive(Clone, Debug, Default)]
pub struct EndpointRequest {
    /// Where webhooks go.
    pub url: String,
    /// What they are signed with; one that is there keeps its own, a new one gets one.
    pub secret: Option<String>,
    /// Whether it is called; it is unless this says otherwise.
    pub enabled: Option<bool>,
    /// Whether what is for it waits for now.
    pub paused: Option<bool>,
    /// Which events it gets; all if `None` or empty.
    pub event_types: Option<Vec<String>>,
    /// How often it is called at most.
    pub throttle: Option<Rate>,
}

/// An endpoint that was set.
#[derive(Debug)]
pub struct EndpointPut {
    /// As it is kept.
    pub endpoint: Arc<Endpoint>,
    /// The secret, if it was made just now.
    pub secret: Option<String>,
    /// Whether there was none of this name.
    pub is_new: bool,
}

/// Why an endpoint could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Something about it is wrong.
    #[error("{field}: must be {source}")]
    Invalid {
        /// Which field.
        field: String,
        /// What would be right.
        source: BadEndpoint,
    },
    /// It is to be disabled and paused.
    #[error("paused: a disabled endpoint is not called anyway; leave one out")]
    DisabledAndPaused,
    /// The tenant has as many as it may.
    #[error("this tenant has {ENDPOINTS_MAX} endpoints; remove one, or let several event types share one")]
    TooMany,
    /// Its place is in the configuration.
    #[error(
        "this endpoint is from the configuration: change it there and start again; here it can be enabled, paused and \
         disabled, with its url and without a secret"
    )]
    Configured,
    /// There is none of this name.
    #[error("there is no endpoint with this id")]
    Unknown,
    /// Others were faster again and again, or the store failed.
    #[error(transparent)]
    Put(#[from] PutEndpointError),
    /// A secret could not be sealed.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The endpoints of an engine.
pub struct Webhooks {
    env: Env,
    intake: Intake,
    seal: Arc<Seal>,
    filter: AddressFilter,
    /// Held from counting a tenant's endpoints to putting one more, so that there are never too many; and callers who
    /// change one at once take turns instead of trying again.
    changes: Mutex<()>,
}

impl Webhooks {
    /// Endpoints that this store knows, with secrets that this seal opens, at addresses that this filter lets through.
    pub fn new(env: Env, intake: Intake, seal: Arc<Seal>, filter: AddressFilter) -> Webhooks {
        Webhooks { env, intake, seal, filter, changes: Mutex::default() }
    }

    /// Sets an endpoint up, or changes the one that is there.
    pub async fn put(
        &self,
        tenant: &TenantName,
        name: &str,
        request: EndpointRequest,
    ) -> Result<EndpointPut, EndpointError> {
        let request = self.checked(name, request)?;
        let _one_at_a_time = self.changes.lock().await;
        let (mut secret, mut is_new) = (None, false);
        let change = |kept: Option<&Endpoint>| {
            let endpoint;
            (endpoint, secret) = self.changed(&request, kept, tenant, name)?;
            is_new = kept.is_none();
            Ok::<_, EndpointError>(Some(endpoint))
        };
        let endpoint = change_endpoint(&*self.env.store, tenant, name, change).await?.ok_or(EndpointError::Unknown)?;
        if endpoint.state == EndpointState::Enabled {
            // What waited for it need not wait for upkeep, nor this answer for what waited.
            tokio::spawn(release_waiting(self.env.clone()));
        }
        Ok(EndpointPut { endpoint, secret, is_new })
    }

    /// Makes a new secret; the one before it stays valid beside it.
    pub async fn rotate_secret(&self, tenant: &TenantName, name: &str) -> Result<EndpointPut, EndpointError> {
        let made = new_secret();
        let secrets = |kept: &Endpoint| {
            let newest = self.seal.seal(&made, &kept.context())?;
            Ok(std::iter::once(newest).chain(kept.secrets.first().cloned()).collect())
        };
        let endpoint = self.change_secrets(tenant, name, secrets).await?;
        Ok(EndpointPut { endpoint, secret: Some(made), is_new: false })
    }

    /// Only the newest secret signs from now on.
    pub async fn forget_old_secret(&self, tenant: &TenantName, name: &str) -> Result<Arc<Endpoint>, EndpointError> {
        self.change_secrets(tenant, name, |kept| Ok(kept.secrets.iter().take(1).cloned().collect())).await
    }

    /// What an endpoint's webhooks are signed with, newest first.
    pub fn secrets(&self, endpoint: &Endpoint) -> Result<Vec<Secret>, SealError> {
        let context = endpoint.context();
        endpoint.secrets.iter().map(|sealed| self.seal.open(sealed, &context)).collect()
    }

    /// Forgets an endpoint.
    pub async fn remove(&self, tenant: &TenantName, name: &str) -> Result<(), EndpointError> {
        let _one_at_a_time = self.changes.lock().await;
        let found = self.env.store.endpoint(tenant, name).ok_or(EndpointError::Unknown)?;
        refuse_configured(&found)?;
        match self.env.store.remove_endpoint(tenant, name).await? {
            true => Ok(()),
            false => Err(EndpointError::Unknown),
        }
    }

    /// Sends an endpoint a `webhook.test`, signed and delivered like every event; the ids of the job and of the event.
    pub async fn send_test(&self, endpoint: &Endpoint) -> Result<(JobId, String), Refusal> {
        let now = self.env.clock.now();
        let event = self.env.chance.job_id(now);
        let job = test_event(event, &endpoint.tenant, &endpoint.name, now);
        let job_id = job.id;
        self.intake.submit_internal(job).await?;
        Ok((job_id, event_id(event)))
    }

    /// Gives up what waits for an endpoint, which need not be there any more; goes on after `after`.
    pub async fn discard_waiting(
        &self,
        tenant: &TenantName,
        name: &str,
        reason: &str,
        after: Option<JobId>,
    ) -> Result<Discarded, StoreError> {
        discard_waiting(&self.env, tenant, name, reason, after).await
    }

    /// Gives an endpoint other secrets, made of those it has.
    async fn change_secrets(
        &self,
        tenant: &TenantName,
        name: &str,
        secrets: impl Fn(&Endpoint) -> Result<Vec<Sealed>, SealError>,
    ) -> Result<Arc<Endpoint>, EndpointError> {
        let _one_at_a_time = self.changes.lock().await;
        let change = |kept: Option<&Endpoint>| {
            let kept = kept.ok_or(EndpointError::Unknown)?;
            refuse_configured(kept)?;
            let secrets = secrets(kept)?;
            Ok::<_, EndpointError>(Some(Endpoint { secrets, updated_at: self.env.clock.now(), ..kept.clone() }))
        };
        change_endpoint(&*self.env.store, tenant, name, change).await?.ok_or(EndpointError::Unknown)
    }

    /// Refuses what cannot be, naming the field.
    fn checked(&self, name: &str, mut request: EndpointRequest) -> Result<EndpointRequest, EndpointError> {
        let must_be = |field: &str| {
            let field = field.to_owned();
            move |source| EndpointError::Invalid { field, source }
        };
        check_name(name).map_err(must_be("name"))?;
        check_url(&self.filter, &request.url).map_err(must_be("url"))?;
        if let Some(secret) = &request.secret {
            check_secret(secret).map_err(must_be("secret"))?;
        }
        if let Some(event_types) = &mut request.event_types {
            if event_types.len() > EVENT_TYPES_MAX {
                return Err(must_be("eventTypes")(BadEndpoint::EventTypes));
            }
            for (index, event_type) in event_types.iter().enumerate() {
                check_event_type(event_type).map_err(must_be(&format!("eventTypes[{index}]")))?;
            }
            event_types.sort();
            event_types.dedup();
        }
        if let Some(rate) = request.throttle {
            check_throttle(rate, self.env.lanes.values()).map_err(must_be("throttle"))?;
        }
        match (request.enabled, request.paused) {
            (Some(false), Some(true)) => Err(EndpointError::DisabledAndPaused),
            _ => Ok(request),
        }
    }

    /// The endpoint that a request makes of the one there is, and the secret to show.
    fn changed(
        &self,
        request: &EndpointRequest,
        kept: Option<&Endpoint>,
        tenant: &TenantName,
        name: &str,
    ) -> Result<(Endpoint, Option<String>), EndpointError> {
        match kept {
            None if self.env.store.endpoints_of(tenant).len() >= ENDPOINTS_MAX => return Err(EndpointError::TooMany),
            Some(kept) if !request.leaves_as_configured(kept) => refuse_configured(kept)?,
            _ => {}
        }
        let (secrets, secret) = self.secrets_after(&Endpoint::context_of(tenant, name), request, kept)?;
        let (state, reason, failing_since) = request.state(kept);
        let now = self.env.clock.now();
        let configured = kept.filter(|kept| kept.origin == EndpointOrigin::Config);
        let (event_types, throttle) = match configured {
            Some(configured) => (configured.event_types.clone(), configured.throttle),
            None => (request.event_types.clone().unwrap_or_default(), request.throttle),
        };
        let endpoint = Endpoint {
            tenant: tenant.clone(),
            name: name.to_owned(),
            secrets,
            state,
            reason,
            failing_since,
            origin: kept.map_or(EndpointOrigin::Api, |kept| kept.origin),
            event_types,
            throttle,
            url: request.url.clone(),
            created_at: kept.map_or(now, |kept| kept.created_at),
            updated_at: now,
            version: kept.map_or(0, |kept| kept.version),
        };
        Ok((endpoint, secret))
    }

    /// The secrets after a change, and the one to show.
    fn secrets_after(
        &self,
        context: &str,
        request: &EndpointRequest,
        kept: Option<&Endpoint>,
    ) -> Result<(Vec<Sealed>, Option<String>), SealError> {
        let seal = &self.seal;
        match (&request.secret, kept) {
            (None, Some(kept)) => Ok((kept.secrets.clone(), None)),
            (None, None) => {
                let made = new_secret();
                Ok((vec![seal.seal(&made, context)?], Some(made)))
            }
            (Some(given), kept) => {
                // One that does not open is replaced as well: that is the way out when the key is lost.
                let is_kept =
                    |sealed: &&Sealed| seal.open(sealed, context).is_ok_and(|secret| secret.reveal() == given);
                match kept.filter(|kept| kept.secrets.first().as_ref().is_some_and(is_kept)) {
                    Some(kept) => Ok((kept.secrets.clone(), None)),
                    None => Ok((vec![seal.seal(given, context)?], None)),
                }
            }
        }
    }
}

fn refuse_configured(endpoint: &Endpoint) -> Result<(), EndpointError> {
    match endpoint.origin {
        EndpointOrigin::Config => Err(EndpointError::Configured),
        EndpointOrigin::Api => Ok(()),
    }
}

impl EndpointRequest {
    /// What it stands at afterwards; what is called again starts with a clean record.
    fn state(&self, kept: Option<&Endpoint>) -> (EndpointState, Option<String>, Option<Time>) {
        let is_same_url = kept.filter(|kept| kept.url == self.url);
        let failing_since = is_same_url.and_then(|kept| kept.failing_since);
        match (self.enabled.unwrap_or(true), self.paused.unwrap_or(false)) {
            (false, _) => {
                let reason =
                    kept.filter(|kept| kept.state == EndpointState::Disabled).and_then(|kept| kept.reason.clone());
                (EndpointState::Disabled, reason.or_else(|| Some(DISABLED_BY_CALLER.into())), failing_since)
            }
            (true, true) => (EndpointState::Paused, None, failing_since),
            (true, false) => {
                let was_called = kept.is_none_or(|kept| kept.state == EndpointState::Enabled);
                (EndpointState::Enabled, None, failing_since.filter(|_| was_called))
            }
        }
    }

    /// Whether it asks for no more than the configuration says, but for the state.
    fn leaves_as_configured(&self, kept: &Endpoint) -> bool {
        let event_types = self.event_types.as_ref();
        self.url == kept.url
            && self.secret.is_none()
            && event_types.is_none_or(|wanted| *wanted == kept.event_types)
            && (self.throttle.is_none() || self.throttle == kept.throttle)
    }
}
