//! Proxy routes: a paced queue before a real upstream, over a store in memory and over Redis.

mod proxy {
    mod asking;
    mod caching;
    mod failing;
    mod nodes;
    mod pacing;
    mod upstream;
}
#[path = "email/world.rs"]
mod gateway;
mod http_server;
#[path = "redis/mod.rs"]
mod redis;
