//! Mail: from what a caller asks for to bytes at a server, and what is heard of it afterwards.
//! Invariant: nobody gets a mail twice who was seen to get it; what became of it is told to whoever listens.
//! Never: lets a text end its line, or shows an address in full.
//!
//! # Layout
//! In the order in which a mail meets them:
//! - `request`, `address`: the rules for what a caller asks for; `content`: a mail that passed them
//! - `channel`: an attempt; `message`: the bytes that leave; `route`: a transport behind its breaker
//! - `transport`: what a transport is; `smtp`, `ses`: the two there are; `settings`: how they are set up
//! - `event`: what is told of a mail
//! - `feedback`: what is heard of it later; `sns`: how Amazon says it

mod address;
mod channel;
mod content;
mod event;
#[cfg(feature = "ses")]
mod feedback;
pub mod message;
mod request;
mod route;
#[cfg(feature = "ses")]
pub mod ses;
mod settings;
pub mod smtp;
#[cfg(feature = "ses")]
pub mod sns;
pub mod transport;

use std::collections::BTreeMap;
use std::sync::Arc;

use entrega_core::name::TenantName;
use entrega_core::policy::LanePolicy;
use entrega_core::sender::SenderRule;

pub use self::address::check_mailbox;
pub use self::channel::MailChannel;
pub use self::content::{Attachment, Mail, Mailbox};
#[cfg(feature = "ses")]
pub use self::feedback::FeedbackOutcome;
pub use self::request::{
    ATTACHMENTS_BYTES_MAX, ATTACHMENTS_MAX, AttachmentRequest, HEADERS_MAX, MAIL_BODY_BYTES_MAX, MailRequest,
    RECIPIENTS_MAX, SUBJECT_CHARS_MAX, check_mail,
};
pub use self::settings::{MailConfig, TransportConfig, TransportError, TransportKind};

use crate::env::Env;
use crate::product::Product;
use crate::refusal::Refusal;

/// Whom tenants may send as, where the configuration says so.
pub type Senders = BTreeMap<TenantName, Arc<[SenderRule]>>;

/// The label under which a mail's external id is carried into logs and dead letters.
pub const EXTERNAL_ID: &str = "externalId";

/// Mails.
pub const MAIL: Product = Product {
    job_id: |chance, now| chance.job_id(now).of_mail(),
    follow_ups: event::follow_ups,
    ..Product::new::<Mail>(LanePolicy::mail, |_| "takes mails; send one with POST /v1/email/send".into())
};

/// What mails need beside a lane and a channel.
pub struct Mailer {
    env: Env,
    from: Option<Mailbox>,
    senders: Senders,
    has_transport: bool,
    #[cfg(feature = "ses")]
    sns: Option<sns::Sns>,
}

impl Mailer {
    /// Mails of an engine; `from` is who those are from that do not say, `senders` what the configuration binds tenants to.
    pub fn new(env: Env, from: Option<Mailbox>, senders: Senders, has_transport: bool) -> Mailer {
        Mailer {
            env,
            from,
            senders,
            has_transport,
            #[cfg(feature = "ses")]
            sns: None,
        }
    }

    /// Hears of mails through these topics.
    #[cfg(feature = "ses")]
    #[must_use]
    pub fn listening(self, sns: Option<sns::Sns>) -> Mailer {
        Mailer { sns, ..self }
    }

    /// Reads what Amazon reports; `None` where no topic is listened to.
    #[cfg(feature = "ses")]
    pub fn sns(&self) -> Option<&sns::Sns> {
        self.sns.as_ref()
    }

    /// Who a mail is from that does not say.
    pub fn from(&self) -> Option<&Mailbox> {
        self.from.as_ref()
    }

    /// Whom a tenant may send as, and whether the configuration says so; anybody if there are none.
    pub fn senders(&self, tenant: &TenantName) -> (Arc<[SenderRule]>, bool) {
        match self.senders.get(tenant) {
            Some(configured) => (configured.clone(), true),
            None => (self.env.store.senders(tenant), false),
        }
    }

    /// Refuses a mail from somebody whom its tenant may not send as.
    pub fn check_sender(&self, tenant: &TenantName, mail: &Mail) -> Result<(), Refusal> {
        let (allowed, _) = self.senders(tenant);
        match allowed.is_empty() || allowed.iter().any(|rule| rule.allows(&mail.from.address)) {
            true => Ok(()),
            false => Err(Refusal::OtherSender {
                from: mail.from.address.clone(),
                allowed: allowed.iter().map(SenderRule::as_str).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// Whether mails can leave.
    pub fn has_transport(&self) -> bool {
        self.has_transport
    }
}
