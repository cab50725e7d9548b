//! A receiver of Entrega's webhooks, on the standard library, `entrega-core` and `serde_json`.
//! Invariant: an event is handled once, in its order among those of its mail unless its predecessors are lost or late.
//! Never: looks into a body that no secret of ours has signed.
//!
//! ```sh
//! WEBHOOK_SECRET=whsec_… PORT=8000 cargo run -p entrega-receiver
//! ```
//!
//! `WEBHOOK_SECRET` may hold several secrets with spaces between them, for the time of a rotation. An event whose
//! predecessor is missing is held back for `GAP_WAIT_MS` to twice that (default: ten minutes), then handled without it.
//! Of HTTP there is only what the example needs; with a framework, `Receiver::receive` is what a route calls.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::error::Error;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use entrega_core::webhook::{self, WebhookSecret};
use serde::Deserialize;

const WORKERS: usize = 8;
const SENDER_PATIENCE: Duration = Duration::from_secs(10);
const HEAD_BYTES_MAX: u64 = 16 << 10;
const BODY_BYTES_MAX: u64 = 1 << 20;
const EVENTS_MAX: usize = 100_000;
const MAILS_MAX: usize = 10_000;
const WAITING_MAX: usize = 100;
const UNHANDLED_MAX: usize = 1_000;

/// What a receiver needs to know of an event.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Names it: the same on every attempt.
    pub event_id: String,
    /// Such as `email.sent`.
    pub event_type: String,
    /// Its place among the events of its mail, from 1.
    pub sequence_number: Option<u64>,
    /// What it is about.
    #[serde(default)]
    pub data: Data,
}

/// What an event is about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Data {
    /// The mail.
    pub outbox_id: Option<String>,
}

#[derive(Default)]
struct Mail {
    /// The last number that was handled.
    handled: u64,
    waiting: BTreeMap<(u64, String), Event>,
    is_late: bool,
}

impl Mail {
    /// What can be handled now, in order; where gaps do not matter, everything.
    fn drain(&mut self, takes_gaps: bool) -> Vec<Event> {
        let mut ready = Vec::new();
        while let Some(number) = self.waiting.keys().next().map(|(number, _)| *number) {
            let is_turn = number <= self.handled.saturating_add(1);
            if !is_turn && !takes_gaps && self.waiting.len() <= WAITING_MAX {
                break;
            }
            self.handled = self.handled.max(number);
            ready.extend(self.waiting.pop_first().map(|(_, event)| event));
        }
        self.is_late &= !self.waiting.is_empty();
        ready
    }
}

/// Knows which events were here, and in which order to handle those of a mail. It forgets when the process ends: yours
/// belongs into your database, with `eventId` as a unique key, written before the sender is answered.
#[derive(Default)]
struct Inbox {
    known: HashSet<String>,
    known_in_order: VecDeque<String>,
    mails: HashMap<String, Mail>,
    mails_in_order: VecDeque<String>,
}

impl Inbox {
    /// Gives the events that can be handled now, in order; `None` for one that was here before.
    fn take(&mut self, event: Event) -> Option<Vec<Event>> {
        if !self.known.insert(event.event_id.clone()) {
            return None;
        }
        self.known_in_order.push_back(event.event_id.clone());
        if self.known.len() > EVENTS_MAX {
            self.known_in_order.pop_front().map(|oldest| self.known.remove(&oldest));
        }
        let (Some(outbox_id), Some(number)) = (event.data.outbox_id.clone(), event.sequence_number) else {
            return Some(vec![event]);
        };
        let mut ready = self.make_room_for(&outbox_id);
        let mail = self.mails.entry(outbox_id).or_default();
        mail.waiting.insert((number, event.event_id.clone()), event);
        ready.extend(mail.drain(false));
        Some(ready)
    }

    /// Forgets the oldest mail where it must, and gives what still waits of it.
    fn make_room_for(&mut self, outbox_id: &str) -> Vec<Event> {
        if self.mails.contains_key(outbox_id) {
            return Vec::new();
        }
        self.mails_in_order.push_back(outbox_id.to_owned());
        let is_full = self.mails.len() >= MAILS_MAX;
        let oldest = if is_full { self.mails_in_order.pop_front() } else { None };
        oldest.and_then(|oldest| self.mails.remove(&oldest)).map_or_else(Vec::new, |mut mail| mail.drain(true))
    }

    /// Gives what was waiting already the last time this was called: what it waits for may never come.
    fn take_late(&mut self) -> Vec<Event> {
        let late = self.mails.values_mut().filter(|mail| mail.is_late);
        let ready = late.flat_map(|mail| mail.drain(true)).collect();
        self.mails.values_mut().for_each(|mail| mail.is_late = !mail.waiting.is_empty());
        ready
    }
}

/// Answers senders, and passes events on to whoever handles them.
struct Receiver {
    secrets: Vec<WebhookSecret>,
    /// Held until what was taken is in the queue; otherwise a later event could overtake it there.
    inbox: Mutex<Inbox>,
    /// With a bound: handling that cannot keep up slows senders down instead of filling the memory.
    unhandled: SyncSender<Event>,
}

impl Receiver {
    /// `body` is the bytes as they came: one that was parsed and written again is another body.
    fn receive(&self, body: &[u8], x_signature: Option<&str>) -> (u16, String) {
        if let Err(error) = webhook::verify(&self.secrets, body, x_signature) {
            return (401, error.to_string());
        }
        let event = match serde_json::from_slice::<Event>(body) {
            Ok(event) if event.data.outbox_id.is_none() || event.sequence_number.is_some_and(|n| n > 0) => event,
            Ok(_) => return (400, "this is no event: it has no sequenceNumber".into()),
            Err(error) => return (400, format!("this is no event: {error}")),
        };
        let known = self.pass_on(|inbox| inbox.take(event)).is_none();
        (200, if known { "known" } else { "taken" }.into())
    }

    fn pass_on(&self, take: impl FnOnce(&mut Inbox) -> Option<Vec<Event>>) -> Option<()> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        // Sending fails only when the handling has ended, and with it the program.
        take(&mut inbox)?.into_iter().try_for_each(|event| self.unhandled.send(event)).ok()
    }

    fn answer_senders(&self, listener: &TcpListener) {
        for stream in listener.incoming() {
            if let Err(error) = stream.and_then(|stream| self.answer(&stream)) {
                eprintln!("a sender was not answered: {error}");
            }
        }
    }

    fn answer(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(SENDER_PATIENCE))?;
        stream.set_write_timeout(Some(SENDER_PATIENCE))?;
        let (status, text) = match Call::read(stream)? {
            Some(call) => self.receive(&call.body, call.x_signature.as_deref()),
            None => (400, "a POST with a content-length of at most 1 MiB is needed".into()),
        };
        let head = format!("HTTP/1.1 {status} \r\nconnection: close\r\ncontent-length: {}\r\n\r\n", text.len());
        let mut stream = stream;
        stream.write_all((head + &text).as_bytes())
    }
}

/// As much of an HTTP request as is needed.
struct Call {
    x_signature: Option<String>,
    body: Vec<u8>,
}

impl Call {
    fn read(stream: &TcpStream) -> io::Result<Option<Call>> {
        let mut stream = BufReader::new(stream);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let room = HEAD_BYTES_MAX.saturating_sub(head.len() as u64);
            if stream.by_ref().take(room).read_until(b'\n', &mut head)? == 0 {
                return Ok(None);
            }
        }
        let head = String::from_utf8_lossy(&head);
        let fields = head.lines().filter_map(|line| line.split_once(':'));
        let field = |name: &str| fields.clone().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v.trim());
        let length = field("content-length").and_then(|length| length.parse::<u64>().ok());
        let Some(length) = length.filter(|length| head.starts_with("POST ") && *length <= BODY_BYTES_MAX) else {
            return Ok(None);
        };
        let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
        stream.read_exact(&mut body)?;
        Ok(Some(Call { x_signature: field("x-signature").map(str::to_owned), body }))
    }
}

/// Receives for as long as the process lives. Handling has this thread to itself: a sender must be answered within five
/// seconds, however long it takes.
pub fn serve(
    listener: TcpListener,
    secrets: Vec<WebhookSecret>,
    gap_wait: Duration,
    handle: impl FnMut(Event),
) -> io::Result<()> {
    let (unhandled, events) = sync_channel(UNHANDLED_MAX);
    let receiver = Arc::new(Receiver { secrets, inbox: Mutex::default(), unhandled });
    for _ in 0..WORKERS {
        let (receiver, listener) = (receiver.clone(), listener.try_clone()?);
        thread::spawn(move || receiver.answer_senders(&listener));
    }
    thread::spawn(move || {
        loop {
            thread::sleep(gap_wait);
            receiver.pass_on(|inbox| Some(inbox.take_late()));
        }
    });
    events.into_iter().for_each(handle);
    Ok(())
}

/// One line of JSON for an event.
pub fn shown(event: &Event) -> String {
    serde_json::json!({
        "eventId": event.event_id,
        "eventType": event.event_type,
        "outboxId": event.data.outbox_id,
        "sequenceNumber": event.sequence_number,
    })
    .to_string()
}

/// Reads the environment, and receives until it is ended.
pub fn main() -> Result<(), Box<dyn Error>> {
    let number = |name: &str, default: u64| std::env::var(name).map_or(Ok(default), |text| text.parse());
    let secrets = std::env::var("WEBHOOK_SECRET").unwrap_or_default();
    let secrets = secrets.split_ascii_whitespace().map(str::parse).collect::<Result<Vec<WebhookSecret>, _>>()?;
    if secrets.is_empty() {
        return Err("WEBHOOK_SECRET is not set; without a secret anybody could send events".into());
    }
    let port = u16::try_from(number("PORT", 8000)?)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    println!("listening on {}", listener.local_addr()?.port());
    let gap_wait = Duration::from_millis(number("GAP_WAIT_MS", 600_000)?);
    // Your part is here.
    Ok(serve(listener, secrets, gap_wait, |event| println!("{}", shown(&event)))?)
}
