//! Notices: what claims to come from SNS.
//! Invariant: nothing of it is called, as the deadline has passed before it could be.

use std::time::Duration;

use entrega::clock::Clock;
use entrega::sns::{Sns, SnsConfig, SnsError};
use entrega_call::{Client, ClientConfig};
use entrega_core::time::Time;
use tokio::runtime::Builder;

use crate::{Target, result};

const TOPIC: &str = "arn:aws:sns:us-east-1:123456789012:mails";

/// The envelope, its topic, its age, and where its certificate lies.
pub fn sns_message() -> Target {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let clock = Clock::manual(Time::from_millis(1_769_851_800_000));
    let client = Client::new(ClientConfig::default()).expect("a client");
    let config = SnsConfig { topics: vec![TOPIC.into()], certificate_hosts: Vec::new() };
    let sns = Sns::new(config, client, clock.clone()).expect("the topic is one");
    let attempt = move |input: &[u8]| {
        runtime.block_on(async {
            let now = clock.instant(Time::ZERO);
            let passed = now.checked_sub(Duration::from_secs(1)).unwrap_or(now);
            match sns.read(input, passed).await {
                Ok(message) => panic!("nobody signed this: {message:?}"),
                Err(SnsError::Certificate { url, .. }) => {
                    let known = "https://sns.us-east-1.amazonaws.com";
                    assert!(url.to_ascii_lowercase().starts_with(known), "{url}");
                    result("certificate")
                }
                Err(error) => result((std::mem::discriminant(&error), error.to_string().len().min(40))),
            }
        })
    };
    Target { name: "sns-message", seeds: Vec::new(), attempt: Box::new(attempt) }
}
