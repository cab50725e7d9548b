//! Mails from the API to a real SMTP server, over the stores.

mod email {
    mod failing;
    mod fairness;
    mod logging;
    mod partial;
    mod refusing;
    mod repeating;
    mod reporting;
    mod routes;
    mod sending;
    #[cfg(feature = "ses")]
    mod ses;
    mod world;
}
#[path = "sns/amazon.rs"]
#[allow(dead_code, reason = "the tests of SNS use more of it")]
mod amazon;
mod http_server;
mod log;
#[cfg(feature = "ses")]
#[path = "ses/moto.rs"]
#[allow(dead_code, reason = "the tests of SES use more of it")]
mod moto;
#[path = "redis/mod.rs"]
mod redis;
#[cfg(feature = "ses")]
#[path = "ses/responder.rs"]
#[allow(dead_code, reason = "the tests of SES use more of it")]
mod responder;
#[path = "smtp_server/mod.rs"]
mod smtp_server;
