//! Events of mails, from the change of state to an endpoint that checks the signature.

mod webhook {
    mod addresses;
    mod answers;
    mod discarding;
    mod events;
    mod receiver;
    mod states;
    mod strangers;
    mod throttling;
}
#[path = "email/world.rs"]
mod gateway;
mod http_server;
mod log;
#[path = "redis/mod.rs"]
mod redis;
#[path = "smtp_server/mod.rs"]
mod smtp_server;
