//! The engine: everything a program needs to run lanes, put together.
//! Invariant: it owns nothing global; two engines can run in one process.

use std::sync::Arc;
use std::time::Duration;

use entrega_call::{AddressFilter, Client, ClientConfig, Clock};
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use http::HeaderValue;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::chance::secret_bytes;
use crate::channel::{Channel, Channels};
use crate::connector::{CONNECTOR, Connector, ConnectorChannel, Connectors};
use crate::dispatch::{Dispatch, RunError};
use crate::env::{Env, Lanes};
use crate::events::{EVENTS, EventChannel};
use crate::http::{HTTP, HttpChannel};
use crate::intake::Intake;
#[cfg(feature = "ses")]
use crate::mail::sns::Sns;
use crate::mail::transport::Transport;
use crate::mail::{MAIL, MailChannel, Mailbox, Mailer, Senders};
use crate::product::{Product, Products};
use crate::proxy::{PROXY, Proxy, ProxyChannel, Routes};
use crate::refusal::Refusal;
use crate::seal::Seal;
use crate::settle::Settler;
use crate::store::{Idempotency, Store};
use crate::submission::{NewJob, Taken};
use crate::upkeep;
use crate::webhook::{WEBHOOK, WebhookChannel, Webhooks};

/// Every product there is.
pub const PRODUCTS: Products = Products(ALL);
const ALL: &[Product] = &[HTTP, MAIL, EVENTS, WEBHOOK, PROXY, CONNECTOR];

/// Lanes, their store and their products.
pub struct Engine {
    env: Env,
    intake: Intake,
    dispatch: Dispatch,
    mail: Mailer,
    webhooks: Webhooks,
    proxy: Proxy,
    connectors: Arc<Connectors>,
    retention: Duration,
}

/// What an engine is made of. A program changes what it wants otherwise than [`EngineParts::over`] says.
pub struct EngineParts {
    /// Store, clock, chance, metrics and lanes.
    pub env: Env,
    /// Where calls may go.
    pub filter: AddressFilter,
    /// Makes the calls of HTTP jobs, webhooks and proxy routes.
    pub client: Client,
    /// Makes the calls of connectors.
    pub connector_client: Client,
    /// Seals what must stay secret at rest.
    pub seal: Arc<Seal>,
    /// Who mails are from that do not say.
    pub mail_from: Option<Mailbox>,
    /// Whom tenants may send as, beside what the store says.
    pub mail_senders: Senders,
    /// The right side of Message-IDs; the sender's domain if `None`.
    pub mail_domain: Option<String>,
    /// The ways out of mails, the first one first.
    pub transports: Vec<Box<dyn Transport>>,
    /// How reports of mails come in.
    #[cfg(feature = "ses")]
    pub sns: Option<Sns>,
    /// What webhooks call themselves.
    pub webhook_agent: HeaderValue,
    /// The proxy routes, by lane.
    pub routes: Routes,
    /// Third-party APIs beside those that the store keeps.
    pub connectors: Vec<Connector>,
    /// A program's own channels; one that has the name of a product takes the place of the product's.
    pub channels: Channels,
    /// How long ended jobs are kept.
    pub retention: Duration,
}

/// What webhooks call themselves unless somebody says otherwise.
pub const WEBHOOK_AGENT: HeaderValue = HeaderValue::from_static("EmailGateway/1.0");

impl EngineParts {
    /// All products over a store, with what is usual: only https to public addresses may be called, no mail can leave,
    /// and secrets are sealed with a key that goes with the process.
    ///
    /// # Panics
    /// Never: a client without extra certificates can always be set up.
    pub fn over(store: Arc<dyn Store>, clock: Clock, lanes: Lanes) -> EngineParts {
        let client = Client::new(ClientConfig::default()).expect("a client without extra certificates");
        EngineParts {
            env: Env::new(store, clock, lanes),
            filter: AddressFilter::default(),
            connector_client: client.clone(),
            client,
            seal: Arc::new(Seal::from_key(secret_bytes())),
            mail_from: None,
            mail_senders: Senders::new(),
            mail_domain: None,
            transports: Vec::new(),
            #[cfg(feature = "ses")]
            sns: None,
            webhook_agent: WEBHOOK_AGENT,
            routes: Routes::new(),
            connectors: Vec::new(),
            channels: Channels::new(),
            retention: Duration::from_hours(24),
        }
    }

    /// The same, with a channel of the program's own.
    #[must_use]
    pub fn channel(mut self, name: &str, channel: impl Channel) -> EngineParts {
        self.channels.insert(name.to_owned(), Arc::new(channel));
        self
    }

    /// Puts the engine together. Nothing is delivered before [`Engine::run`].
    pub fn build(self) -> Engine {
        let env = self.env;
        let (store, clock, client) = (&env.store, &env.clock, &self.client);
        let routes = Arc::new(self.routes);
        let connectors = Connectors::new(
            self.connectors,
            env.clone(),
            self.seal.clone(),
            self.connector_client,
            self.filter.clone(),
        );
        let connectors = Arc::new(connectors);
        let has_transport = !self.transports.is_empty() || self.channels.contains_key(MAIL.name);
        let http = HttpChannel::new(client.clone());
        let mail = MailChannel::new(self.transports, store.clone(), clock.clone(), self.mail_domain);
        let webhook =
            WebhookChannel::new(client.clone(), store.clone(), self.seal.clone(), clock.clone(), self.webhook_agent);
        let of_products: [(Product, Arc<dyn Channel>); ALL.len()] = [
            (HTTP, Arc::new(http)),
            (MAIL, Arc::new(mail)),
            (EVENTS, Arc::new(EventChannel::new(store.clone(), clock.clone()))),
            (WEBHOOK, Arc::new(webhook)),
            (PROXY, Arc::new(ProxyChannel::new(client.clone(), store.clone(), clock.clone(), routes.clone()))),
            (CONNECTOR, Arc::new(ConnectorChannel::new(connectors.clone()))),
        ];
        let mut channels: Channels =
            of_products.into_iter().map(|(product, channel)| (product.name.to_owned(), channel)).collect();
        channels.extend(self.channels);
        let channels = Arc::new(channels);
        let intake = Intake::new(env.clone(), PRODUCTS, self.filter.clone());
        let mail = Mailer::new(env.clone(), self.mail_from, self.mail_senders, has_transport);
        #[cfg(feature = "ses")]
        let mail = mail.listening(self.sns);
        Engine {
            dispatch: Dispatch { env: env.clone(), channels, settler: Settler::new(env.clone(), PRODUCTS) },
            mail,
            webhooks: Webhooks::new(env.clone(), intake.clone(), self.seal, self.filter),
            proxy: Proxy::new(env.clone(), intake.clone(), routes),
            connectors,
            retention: self.retention,
            intake,
            env,
        }
    }
}

/// An engine that runs.
#[must_use = "an engine runs until it is stopped"]
pub struct Running {
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Running {
    /// Lets attempts under way end, and waits for that.
    pub async fn stop(self) -> Result<(), RunError> {
        self.shutdown.cancel();
        self.ended().await
    }

    /// Waits until it ends by itself.
    ///
    /// # Panics
    /// If the engine did.
    pub async fn ended(self) -> Result<(), RunError> {
        match self.task.await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(ended) => ended,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(ended)) => Err(RunError::StoreFailed { reason: format!("the engine's task ended: {ended}") }),
        }
    }
}

impl Engine {
    /// Takes jobs for a tenant in one durable write. Each gets its own answer: a bad one does not harm the others.
    pub async fn submit(&self, tenant: &TenantName, new: Vec<NewJob>) -> Vec<Result<JobId, Refusal>> {
        self.intake.submit(tenant, new).await
    }

    /// Takes one job.
    pub async fn submit_one(&self, tenant: &TenantName, new: NewJob) -> Result<JobId, Refusal> {
        self.submit(tenant, vec![new]).await.pop().expect("one answer per job")
    }

    /// The same, where each job may have keys that make it one job however often it is handed in: the first that is
    /// known decides.
    pub async fn submit_once(
        &self,
        tenant: &TenantName,
        new: Vec<(NewJob, Vec<Idempotency>)>,
    ) -> Vec<Result<Taken, Refusal>> {
        self.intake.submit_once(tenant, new).await
    }

    /// Runs every lane until `shutdown`, then lets attempts finish for at most `grace`. Whatever is cut off starts
    /// over the next time.
    pub async fn run(&self, shutdown: CancellationToken, grace: Duration) -> Result<(), RunError> {
        let upkeep = tokio::spawn(upkeep::run(self.env.clone(), shutdown.clone()));
        let ran = self.dispatch.run(shutdown, grace).await;
        upkeep.abort();
        // Whatever ended one lane, what the others attempted is recorded, and the rest is given back.
        let flushed = self.env.store.flush().await;
        let released = self.env.store.release().await;
        ran?;
        flushed?;
        Ok(released?)
    }

    /// Runs it on a task of its own, until it is stopped.
    pub fn start(self: Arc<Self>, grace: Duration) -> Running {
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        Running { shutdown, task: tokio::spawn(async move { self.run(stop, grace).await }) }
    }

    /// Where jobs are safe: look at them, pause lanes, keep keys.
    pub fn store(&self) -> &dyn Store {
        &*self.env.store
    }

    /// What the parts of the engine share.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Mails.
    pub fn mail(&self) -> &Mailer {
        &self.mail
    }

    /// Endpoints, and what waits for them.
    pub fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// Questions to upstreams.
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Third-party APIs.
    pub fn connectors(&self) -> &Connectors {
        &self.connectors
    }

    /// How long ended jobs are kept.
    pub fn retention(&self) -> Duration {
        self.retention
    }
}
