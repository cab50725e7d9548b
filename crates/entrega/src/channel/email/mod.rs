//! The `email` channel: a mail, written out and handed to the first transport that can be reached.
//! Invariant: nobody gets a mail twice who was seen to get it: an attempt goes only to those who are left.
//! Never: judges a refusal; the rules do, recipient by recipient.

pub mod message;
pub mod smtp;
#[cfg(feature = "ses")]
pub mod ses;
pub mod transport;
