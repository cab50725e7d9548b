//! Proxy routes: a paced queue before a real upstream, over a store in memory and over Redis.

mod asking;
mod caching;
mod failing;
mod nodes;
mod pacing;
mod upstream;
