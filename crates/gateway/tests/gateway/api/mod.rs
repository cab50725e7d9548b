//! The HTTP API against a real listener: who may call what, what is refused and how, and what comes back.
//! No dispatcher runs, so jobs stay where they are put.
//!
//! # Layout
//! - `world`: a server and a client for it; `access`: every route with every kind of wrong caller
//! - `submissions`, `once`, `calls`, `dead_letters`, `operations`, `endpoints`, `discarding`, `shapes`: what the routes do
//! - `document`: what the OpenAPI document says is true; `connections`: slow and greedy callers, shutdown

mod access;
mod calls;
mod connections;
mod dead_letters;
mod discarding;
mod document;
mod endpoints;
mod once;
mod operations;
mod shapes;
mod submissions;
mod world;
