//! Answers: what destinations and mail servers say.
//! Invariant: whatever it is, the attempt ends, keeps no more than its cap, and says what happened.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use entrega::mail::smtp::{SmtpConfig, SmtpTransport};
use entrega::mail::transport::{Limits, Outgoing, Sent, Transport as _};
use entrega_call::Clock;
use entrega_call::{AddressFilter, Client, ClientConfig};
use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use http::Request;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use crate::{Target, result};

/// Two that wait for each other wait so long.
const PATIENCE: Duration = Duration::from_millis(60);
const ANSWER_BYTES_MAX: usize = 1024;
/// Between the parts of what a server says: it waits for us to speak.
const TURN: u8 = 2;

/// Says what it was told to, part by part, to whoever connects. Its thread ends with the process.
pub(super) fn responder(speaks_first: bool) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it listens");
    let told: Arc<Mutex<Vec<u8>>> = Arc::default();
    let lines = told.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let lines = lines.lock().clone();
            speak(stream, &lines, speaks_first);
        }
    });
    (address, told)
}

fn speak(mut stream: TcpStream, lines: &[u8], speaks_first: bool) {
    let (mut heard, mut is_our_turn) = ([0; 4096], speaks_first);
    // A peer that is gone, or does not read, is what is tried here too.
    drop(stream.set_read_timeout(Some(PATIENCE)));
    drop(stream.set_write_timeout(Some(PATIENCE)));
    for part in lines.split(|byte| *byte == TURN) {
        if !is_our_turn && !matches!(stream.read(&mut heard), Ok(1..)) {
            return;
        }
        is_our_turn = false;
        if stream.write_all(part).is_err() {
            return;
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// What a destination answers to a call.
pub fn http_answer() -> Target {
    let (runtime, clock, (address, told)) = (runtime(), Clock::system(), responder(false));
    let filter = AddressFilter { allow_http: true, allow_networks: vec!["127.0.0.0/8".parse().expect("a network")] };
    let config =
        ClientConfig { filter, answer_bytes_max: ANSWER_BYTES_MAX, idle_per_host_max: 0, ..ClientConfig::default() };
    let client = runtime.block_on(async { Client::new(config) }).expect("a client");
    let attempt = move |input: &[u8]| {
        *told.lock() = input.to_vec();
        let request = Request::post(format!("http://{address}/")).body(Bytes::from_static(b"{}")).expect("a request");
        match runtime.block_on(async { client.call(request, clock.instant(clock.now() + PATIENCE)).await }) {
            Ok(answer) => {
                assert!(answer.body.len() <= ANSWER_BYTES_MAX, "{} bytes", answer.body.len());
                result((answer.status.as_u16(), answer.truncated, answer.headers.len().min(3)))
            }
            Err(error) => {
                assert!(!error.reason().is_empty() && !error.code().is_empty());
                result((error.code(), error.reason().split(':').next_back().map(str::to_owned)))
            }
        }
    };
    Target { name: "http-answer", seeds: Vec::new(), attempt: Box::new(attempt) }
}

/// What a mail server says in a whole conversation.
pub fn smtp_conversation() -> Target {
    let (runtime, clock, (address, told)) = (runtime(), Clock::system(), responder(true));
    let config = SmtpConfig::from_url(&format!("smtp://127.0.0.1:{}", address.port())).expect("a URL");
    let transport = SmtpTransport::new("main", SmtpConfig { idle_max: 0, ..config }).expect("a transport");
    let tenant = TenantName::new("ours").expect("a name");
    let recipients = ["ann@example.org", "bob@example.org"];
    let attempt = move |input: &[u8]| {
        *told.lock() = input.to_vec();
        let mail = Outgoing {
            id: JobId::from_parts(Time::from_millis(1), 1),
            tenant: &tenant,
            from: "shop@example.com",
            recipients: &recipients,
            message: Bytes::from_static(b"Subject: Hello\r\n\r\nHello.\r\n"),
        };
        let deadline = clock.now() + PATIENCE;
        match runtime.block_on(async { transport.send(&mail, Limits::until(clock.instant(deadline))).await }) {
            Sent::Unreached(refusal) => {
                assert!(!refusal.reason().is_empty() && refusal.message.len() < 4096, "{refusal:?}");
                result((refusal.status, refusal.code))
            }
            Sent::Answered { refusals, ambiguous, .. } => {
                assert_eq!(refusals.len(), recipients.len());
                let codes: Vec<_> = refusals.into_iter().map(|refusal| refusal.map(|refusal| refusal.code)).collect();
                result((codes, ambiguous))
            }
        }
    };
    Target { name: "smtp-conversation", seeds: Vec::new(), attempt: Box::new(attempt) }
}
