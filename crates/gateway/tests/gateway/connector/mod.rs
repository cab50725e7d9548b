//! Requests to third-party APIs: waiting and as jobs, over a store in memory and over Redis, before a real server.

mod api;
mod limits;
mod once;
mod retrying;
mod setting;
