//! Events of mails, from the change of state to an endpoint that checks the signature.

mod webhook {
    mod addresses;
    mod answers;
    mod discarding;
    mod events;
    mod receiver;
    mod states;
    mod strangers;
}
#[path = "email/world.rs"]
#[allow(dead_code, reason = "the tests of mail use more of it")]
mod gateway;
mod log;
#[path = "redis/mod.rs"]
mod redis;
#[path = "smtp_server/mod.rs"]
mod smtp_server;
