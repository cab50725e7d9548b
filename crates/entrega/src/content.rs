//! Content: what the jobs of a product carry, from a caller's hands to bytes that are stored.
//! Invariant: content that passed its check can be sent; its destination masks people, but shows the URL of an HTTP job as it
//! was given.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use entrega_call::AddressFilter;
use entrega_core::payload::{Content, Payload};

use crate::refusal::Refusal;

/// What the jobs of a product carry.
pub trait JobContent: Content + Clone + fmt::Debug + Send + Sync + 'static {
    /// Where it goes, as people may read it: an address is masked, and so is whatever is somebody's own.
    fn destination(&self) -> String;

    /// Refuses what could not be sent, naming the field.
    fn check(&self, _filter: &AddressFilter) -> Result<(), Refusal> {
        Ok(())
    }
}

/// The same, of whichever product.
pub trait AnyContent: fmt::Debug + Send + Sync {
    /// The name of its product.
    fn kind(&self) -> &'static str;
    /// Where it goes; `None` where only the channel knows.
    fn destination(&self) -> Option<String>;
    /// Refuses what could not be sent.
    fn check(&self, filter: &AddressFilter) -> Result<(), Refusal>;
    /// As it is stored.
    fn payload(&self) -> Payload;
}

/// Content that a caller hands in.
pub type NewContent = Arc<dyn AnyContent>;

impl<C: JobContent> AnyContent for C {
    fn kind(&self) -> &'static str {
        C::KIND
    }

    fn destination(&self) -> Option<String> {
        Some(JobContent::destination(self))
    }

    fn check(&self, filter: &AddressFilter) -> Result<(), Refusal> {
        JobContent::check(self, filter)
    }

    fn payload(&self) -> Payload {
        Payload::of(self)
    }
}

/// Bytes for a channel that a program brought along; only that channel reads them.
#[derive(Clone, Debug, Default)]
pub struct Opaque(pub Bytes);

impl AnyContent for Opaque {
    fn kind(&self) -> &'static str {
        "opaque"
    }

    fn destination(&self) -> Option<String> {
        None
    }

    fn check(&self, _: &AddressFilter) -> Result<(), Refusal> {
        Ok(())
    }

    fn payload(&self) -> Payload {
        Payload::opaque(self.0.clone())
    }
}
