//! Names: how a host's name becomes addresses.
//! Invariant: a resolver is asked once for each connection, and the filter judges whatever it says: a client with a
//! resolver of its own may call no more than any other.
//! Never: connects.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;

/// A look-up under way.
pub type LookUp<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Looks names up.
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    /// The addresses of a name, in the order to try them.
    fn look_up<'a>(&'a self, host: &'a str) -> LookUp<'a>;
}

/// Asks the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn look_up<'a>(&'a self, host: &'a str) -> LookUp<'a> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|found| found.ip()).collect()) })
    }
}
