//! The gateway in this process: its configuration, its API, and what comes of calls of it.
//!
//! # Layout
//! - `config`, `mail_config`, `endpoint_config`, `proxy_config`: from files and variables to what runs
//! - `api`: every route, with nothing running behind it
//! - `email`, `webhook`, `proxy`, `connector`: the products from end to end, in the `world` of a gateway that runs

mod api;
mod config;
mod connector;
mod email;
mod endpoint_config;
mod mail_config;
mod proxy;
mod proxy_config;
mod webhook;
mod world;
