//! Mails from the API to a real SMTP server, over the stores.

mod failing;
mod fairness;
mod logging;
mod partial;
mod refusing;
mod repeating;
mod reporting;
mod routes;
mod sending;
#[cfg(feature = "ses")]
mod ses;
