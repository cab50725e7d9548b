//! The SMTP transport against real servers.
//!
//! # Layout
//! - `world`: a transport, and mails to send through it
//! - `answering`: what each recipient is told; `losing`: connections that break, at every point, or hang
//! - `opening`: servers that do not want to begin; `encrypting`: TLS and logins
//! - `keeping`: connections that are used again; `writing`: what arrives is what was sent
//! - `volume`: many mails at once, against Postfix's `smtp-sink`

mod answering;
mod encrypting;
mod keeping;
mod losing;
mod opening;
mod volume;
mod world;
mod writing;
