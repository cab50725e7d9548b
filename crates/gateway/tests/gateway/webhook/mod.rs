//! Events of mails, from the change of state to an endpoint that checks the signature.

mod addresses;
mod answers;
mod discarding;
mod events;
mod states;
mod strangers;
mod throttling;
