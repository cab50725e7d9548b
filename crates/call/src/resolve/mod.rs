//! Names: how a host's name becomes addresses.
//! Invariant: a resolver is asked once for each connection, and the filter judges whatever it says: a client with a
//! resolver of its own may call no more than any other.
//! Never: connects.
//!
//! # Layout
//! - here: what a resolver is, and the operating system's own; `names`: one that asks name servers itself, within limits

mod names;

use std::fmt;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

pub use names::{NameLimits, NameResolver};

/// A look-up under way.
pub type LookUp<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Looks names up.
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    /// The addresses of a name, in the order to try them.
    fn look_up<'a>(&'a self, host: &'a str) -> LookUp<'a>;

    /// The same for a tenant, by a resolver that shares itself out among them.
    fn look_up_for<'a>(&'a self, host: &'a str, tenant: Option<&'a str>) -> LookUp<'a> {
        let _ = tenant;
        self.look_up(host)
    }
}

/// Asks the operating system, on a thread for each look-up: for programs that make a call now and then.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn look_up<'a>(&'a self, host: &'a str) -> LookUp<'a> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|found| found.ip()).collect()) })
    }
}
