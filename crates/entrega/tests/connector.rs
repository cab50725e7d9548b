//! Requests to third-party APIs: waiting and as jobs, over a store in memory and over Redis, before a real server.

mod connector {
    mod api;
    mod limits;
    mod once;
    mod retrying;
    mod setting;
}
#[path = "email/world.rs"]
mod gateway;
mod http_server;
#[path = "redis/mod.rs"]
mod redis;
