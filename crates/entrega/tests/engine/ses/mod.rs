//! The SES transport, against an emulation of SES that checks signatures, and against a server that answers as told.
//!
//! # Layout
//! - `moto`: the emulation, in a process of its own; `responder`: the server that answers as told
//! - `letter`: a mail to send, and the transport to send it over
//! - `sending`: what SES gets and how it is signed; `failing`: what it answers when it does not take a mail

mod failing;
mod letter;
mod sending;
