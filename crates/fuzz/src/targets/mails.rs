//! Mails: addresses and everything else that becomes part of a message.
//! Invariant: nothing that a caller gives ends a line of the message.

use std::collections::BTreeMap;

use entrega::mail::message::write_out;
use entrega::mail::{AttachmentRequest, MailRequest, check_mail, check_mailbox};
use entrega_core::id::JobId;
use entrega_core::job::{Job, Priority};
use entrega_core::name::{LaneName, TenantName};
use entrega_core::payload::Payload;
use entrega_core::time::Time;

use crate::{Target, result};

const MOMENT: Time = Time::from_millis(1_700_000_000_000);
/// The longest line that SMTP allows, with its end.
const LINE_BYTES_MAX: usize = 1000;

/// A line for each field: to, cc, from, replyTo, subject, a header's name, its value, a file's name, its type; what
/// is left is the text.
pub fn mail() -> Target {
    let attempt = |input: &[u8]| {
        let text = String::from_utf8_lossy(input);
        let mailbox = check_mailbox("to", text.split('\x01').next().unwrap_or_default());
        let parts: Vec<String> = text.splitn(10, '\x01').map(str::to_owned).collect();
        let part = |number: usize| parts.get(number).cloned().unwrap_or_default();
        let given = |number: usize| parts.get(number).filter(|part| !part.is_empty()).cloned();
        let request = MailRequest {
            to: vec![part(0)],
            cc: given(1).into_iter().collect(),
            from: Some(given(2).unwrap_or_else(|| "shop@example.com".into())),
            reply_to: given(3),
            subject: part(4),
            headers: given(5).into_iter().map(|name| (name, part(6))).collect(),
            attachments: given(7).into_iter().map(|name| file(name, given(8))).collect(),
            text: Some(given(9).unwrap_or_else(|| "Hello".into())),
            ..MailRequest::default()
        };
        let email = match check_mail(request, None) {
            Ok(email) => email,
            Err(refusal) => return result((mailbox.is_ok(), refusal.to_string().split(':').next().map(str::len))),
        };
        let job = Job {
            id: JobId::from_parts(MOMENT, 1).of_mail(),
            lane: LaneName::new("email:send").expect("a name"),
            tenant: TenantName::new("ours").expect("a name"),
            priority: Priority::Normal,
            payload: Payload::of(&email),
            destination: None,
            earlier: Default::default(),
            labels: BTreeMap::new(),
            idempotency_key: None,
            accepted_at: MOMENT,
            due_at: MOMENT,
            expires_at: None,
        };
        match write_out(&job, &email, "example.com") {
            Ok(message) => check(&message, email.headers.len()),
            Err(error) => panic!("what was taken cannot be written out: {error}"),
        }
    };
    Target { name: "mail", seeds: Vec::new(), attempt: Box::new(attempt) }
}

fn file(filename: String, content_type: Option<String>) -> AttachmentRequest {
    AttachmentRequest { filename, content_type, content_base64: "YQ==".into(), content_id: None }
}

/// Every line ends in CRLF, none is too long, and the head has the fields it was given and no more.
fn check(message: &[u8], further_headers: usize) -> u64 {
    let text = String::from_utf8_lossy(message);
    let whole = text.replace("\r\n", "");
    assert!(!whole.contains(['\r', '\n', '\0']), "a bare line break or NUL in {text:?}");
    assert!(text.split("\r\n").all(|line| line.len() + 2 <= LINE_BYTES_MAX), "a line is too long: {text:?}");
    let head = text.split("\r\n\r\n").next().unwrap_or_default();
    let names: Vec<&str> = head
        .split("\r\n")
        .filter(|line| !line.starts_with([' ', '\t']))
        .map(|line| line.split_once(':').unwrap_or_else(|| panic!("no field: {line:?} in {head:?}")).0)
        .collect();
    let known = ["From", "To", "Cc", "Reply-To", "Subject", "Date", "MIME-Version", "Message-ID", "X-Entrega-Id"];
    let content = |name: &&&str| name.starts_with("Content-");
    let foreign = names.iter().filter(|name| !known.contains(name) && !content(name)).count();
    assert!(foreign <= further_headers, "{names:?} has more than {further_headers} fields of the caller's");
    result(names.len())
}
