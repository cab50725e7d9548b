//! Notices: what claims to come from SNS, and the certificate that it is signed with.
//! Invariant: nothing that a notice names is called, as the deadline has passed before it could be; certificates come
//! from this process.

use std::time::Duration;

use entrega::mail::sns::{Sns, SnsConfig, SnsError};
use entrega_call::Clock;
use entrega_call::{AddressFilter, Client, ClientConfig};
use entrega_core::time::Time;
use serde_json::json;
use tokio::runtime::Builder;

use super::answers::responder;
use crate::{Target, result};

const TOPIC: &str = "arn:aws:sns:us-east-1:123456789012:mails";
/// When the messages of the corpus were sent.
const MOMENT: Time = Time::from_millis(1_769_851_800_000);

/// While one of the certificates of the corpus is valid.
const LATER: Time = Time::from_millis(1_893_456_000_000);

/// The envelope, its topic, its age, and where its certificate lies.
pub fn sns_message() -> Target {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let clock = Clock::manual(MOMENT);
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

/// What is served where a certificate should be.
pub fn certificate() -> Target {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (clock, (address, told)) = (Clock::manual(LATER), responder(false));
    let filter = AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse().expect("a network")] };
    let config = ClientConfig { filter, idle_per_host_max: 0, ..ClientConfig::default() };
    let client = runtime.block_on(async { Client::new(config) }).expect("a client");
    let hosts = vec![address.to_string()];
    let sns = Sns::new(SnsConfig { topics: vec![TOPIC.into()], certificate_hosts: hosts }, client, clock.clone());
    let (sns, mut count) = (sns.expect("the topic is one"), 0u64);
    let attempt = move |input: &[u8]| {
        // What was fetched is kept by its address.
        count += 1;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", input.len());
        *told.lock() = [head.as_bytes(), input].concat();
        let message = json!({
            "Type": "Notification", "MessageId": "m-1", "TopicArn": TOPIC, "Message": "{}", "Timestamp": LATER,
            "SignatureVersion": "2", "Signature": "AAEC", "SigningCertURL": format!("http://{address}/{count}.pem"),
        });
        let deadline = clock.now() + Duration::from_secs(5);
        let read = runtime.block_on(async { sns.read(message.to_string().as_bytes(), clock.instant(deadline)).await });
        match read {
            Ok(message) => panic!("nobody signed this: {message:?}"),
            Err(SnsError::Certificate { source, .. }) => {
                result(source.to_string().chars().take(60).collect::<String>())
            }
            // The certificate is one, and the message is signed with another key.
            Err(SnsError::Signature) => result("taken"),
            Err(error) => panic!("the message is good but for its signature: {error}"),
        }
    };
    Target { name: "certificate", seeds: Vec::new(), attempt: Box::new(attempt) }
}
