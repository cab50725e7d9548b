//! What is thrown at what: a function per target.
//!
//! - `texts`: URLs, headers, waits, names, secrets, the configuration; `mails`: addresses and whole mails
//! - `callers`: what callers send to the API, as bodies and as raw bytes; `notices`: what claims to be from SNS
//! - `answers`: what destinations and mail servers answer; `apis`: what third-party APIs are asked and say; `records`, `journals`: what is on the disk

mod answers;
mod apis;
mod callers;
mod journals;
mod mails;
mod notices;
mod records;
mod texts;

pub use answers::{http_answer, smtp_conversation};
pub use apis::{rate_limit, relative_url, ses_report};
pub use callers::{api_call, http_request};
pub use journals::journal;
pub use mails::mail;
pub use notices::{certificate, sns_message};
pub use records::stored_record;
pub use texts::{config, headers, retry_after, smtp_url, url, webhook, words};
