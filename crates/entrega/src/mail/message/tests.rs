//! What is written out, read by somebody else's parser.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use entrega_core::id::JobId;
use entrega_core::job::{Job, Priority};
use entrega_core::payload::Payload;
use entrega_core::time::Time;
use mail_parser::{Address, HeaderForm, Message, MessageParser, MessagePart, MimeHeaders as _};
use proptest::prelude::*;

use super::{WriteError, message_id, write_out};
use crate::mail::content::{Attachment, Mail, Mailbox};
use crate::mail::{AttachmentRequest, MailRequest, check_mail};

const DOMAIN: &str = "mail.example.com";

fn job() -> Job {
    let accepted_at = Time::from_millis(1_700_000_000_123);
    Job {
        id: JobId::from_parts(accepted_at, 7).of_mail(),
        lane: "email:send".parse().unwrap(),
        tenant: "acme".parse().unwrap(),
        priority: Priority::Normal,
        payload: Payload::opaque(&b""[..]),
        destination: None,
        earlier: Default::default(),
        labels: Default::default(),
        idempotency_key: None,
        accepted_at,
        due_at: accepted_at,
        expires_at: None,
    }
}

fn request() -> MailRequest {
    MailRequest {
        to: vec!["ana@example.com".into()],
        from: Some("Entrega <noreply@example.org>".into()),
        subject: "Hello".into(),
        text: Some("Hi".into()),
        ..MailRequest::default()
    }
}

fn file(filename: &str, content_id: Option<&str>) -> AttachmentRequest {
    AttachmentRequest {
        filename: filename.into(),
        content_type: Some("image/png".into()),
        content_base64: "AAEC".into(),
        content_id: content_id.map(str::to_owned),
    }
}

fn written(request: MailRequest) -> Vec<u8> {
    write_out(&job(), &check_mail(request, None).unwrap(), DOMAIN).unwrap().to_vec()
}

fn parse(message: &[u8]) -> Message<'_> {
    MessageParser::default().parse(message).expect("a message")
}

/// The kinds of all parts, outermost first.
fn shape(message: &[u8]) -> Vec<String> {
    let kind = |part: &MessagePart<'_>| {
        let kind = part.content_type().unwrap();
        format!("{}/{}", kind.ctype(), kind.subtype().unwrap())
    };
    parse(message).parts.iter().map(kind).collect()
}

#[test]
fn a_plain_mail_is_written_as_one_would_by_hand() {
    let mut request = request();
    request.cc = vec!["\"Silva, Rui\" <rui@example.com>".into(), "zoe@example.com".into()];
    request.bcc = vec!["secret@example.com".into()];
    request.reply_to = Some("help@example.org".into());
    request.headers = vec![("X-Tag".into(), "a".into()), ("X-Tag".into(), "b".into())];
    let id = job().id;
    let expected = format!(
        "From: Entrega <noreply@example.org>\r\n\
         To: ana@example.com\r\n\
         Cc: \"Silva, Rui\" <rui@example.com>,\r\n zoe@example.com\r\n\
         Reply-To: help@example.org\r\n\
         Subject: Hello\r\n\
         Date: Tue, 14 Nov 2023 22:13:20 +0000\r\n\
         MIME-Version: 1.0\r\n\
         Message-ID: <{id}@mail.example.com>\r\n\
         X-Tag: a\r\n\
         X-Tag: b\r\n\
         Content-Type: text/plain; charset=utf-8\r\n\
         Content-Transfer-Encoding: quoted-printable\r\n\
         \r\n\
         Hi\r\n"
    );
    assert_eq!(String::from_utf8(written(request)).unwrap(), expected);
    assert_eq!(message_id(id, DOMAIN), format!("<{id}@mail.example.com>"));
    assert!(id.to_string().starts_with("out_"));
}

#[test]
fn a_body_has_no_more_parts_than_it_needs() {
    let (text, html) = (Some("Hi".to_owned()), Some("<p>Hi".to_owned()));
    let shown = || vec![file("logo.png", Some("logo"))];
    let both = || vec![file("a.png", None), file("logo.png", Some("logo"))];
    let table: [(_, _, _, &[&str]); 7] = [
        (&text, &None, vec![], &["text/plain"]),
        (&None, &html, vec![], &["text/html"]),
        (&text, &html, vec![], &["multipart/alternative", "text/plain", "text/html"]),
        (&text, &None, shown(), &["multipart/mixed", "text/plain", "image/png"]),
        (&None, &html, shown(), &["multipart/related", "text/html", "image/png"]),
        (
            &text,
            &html,
            shown(),
            &["multipart/alternative", "text/plain", "multipart/related", "text/html", "image/png"],
        ),
        (
            &text,
            &html,
            both(),
            &[
                "multipart/mixed",
                "multipart/alternative",
                "text/plain",
                "multipart/related",
                "text/html",
                "image/png",
                "image/png",
            ],
        ),
    ];
    for (text, html, attachments, kinds) in table {
        let request = MailRequest { text: text.clone(), html: html.clone(), attachments, ..request() };
        assert_eq!(shape(&written(request)), kinds);
    }
}

#[test]
fn every_attempt_sends_the_same_bytes() {
    let request = || MailRequest { html: Some("<p>".into()), attachments: vec![file("a.png", None)], ..request() };
    assert_eq!(written(request()), written(request()));
}

#[test]
fn the_longest_of_everything_fits_the_lines() {
    let address = format!("{}@{}.example.com", "a".repeat(64), "b".repeat(60));
    let mut request = request();
    request.to = vec![format!("\"{}\" <{address}>", "\\\"".repeat(255)); 50];
    request.subject = "s".repeat(998);
    request.headers = vec![
        ("N".repeat(76), "v".repeat(998)),
        ("List-Unsubscribe".into(), format!("<https://example.com/{}>", "u".repeat(800))),
    ];
    request.attachments = vec![file(&"ä".repeat(127), None), file(&"\"".repeat(255), Some(&"c".repeat(255)))];
    let message = written(request.clone());
    check_lines(&message);
    check_read_back(&check_mail(request, None).unwrap(), &message);
    // What can be left as it is must be: programs read this one.
    assert!(String::from_utf8(message).unwrap().contains("List-Unsubscribe: <https://example.com/uuu"));
}

/// Converting line ends by moving the rest of the text at each of them took a minute for this one.
#[test]
fn a_text_of_nothing_but_line_ends_takes_no_longer_than_another() {
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(written(MailRequest { text: Some("\n".repeat(1 << 20)), ..request() })));
    let message = ended.recv_timeout(Duration::from_secs(20)).expect("it takes well under a second");
    check_lines(&message);
    assert!(message.ends_with(&b"\r\n".repeat(1 << 20)));
}

#[test]
fn what_was_stored_by_another_program_cannot_break_out_of_its_header() {
    let good = check_mail(MailRequest { attachments: vec![file("a.png", Some("a"))], ..request() }, None).unwrap();
    let mailbox =
        |name: Option<&str>, address: &str| Mailbox { name: name.map(str::to_owned), address: address.into() };
    let table: [(&str, Mail); 9] = [
        ("from", Mail { from: mailbox(None, "a@b.c\r\nBcc: x@y.z"), ..good.clone() }),
        ("to", Mail { to: vec![mailbox(None, "a@b.c>, <x@y.z")], ..good.clone() }),
        ("nobody", Mail { to: vec![], ..good.clone() }),
        ("name", Mail { cc: vec![mailbox(Some("A\nB"), "a@b.c")], ..good.clone() }),
        ("subject", Mail { subject: "a\rb".into(), ..good.clone() }),
        ("header's value", Mail { headers: vec![("X-A".into(), "a\r\n\r\n".into())], ..good.clone() }),
        ("header's name", Mail { headers: vec![("X-A: b\r\nX-B".into(), "a".into())], ..good.clone() }),
        ("our header", Mail { headers: vec![("Bcc".into(), "x@y.z".into())], ..good.clone() }),
        ("empty", Mail { text: None, ..good.clone() }),
    ];
    for (what, email) in table {
        assert!(write_out(&job(), &email, DOMAIN).is_err(), "{what}");
    }
    let changes: [fn(&mut Attachment); 4] = [
        |file| file.filename.push('\n'),
        |file| file.content_type.push('\r'),
        |file| file.content_type = "png".into(),
        |file| file.content_id = Some("a\r\nb".into()),
    ];
    for change in changes {
        let mut email = good.clone();
        change(&mut email.attachments[0]);
        assert!(write_out(&job(), &email, DOMAIN).is_err(), "{:?}", email.attachments);
    }
    assert!(write_out(&job(), &good, "example.com>\r\nBcc: x@y.z\r\nX: <").is_err());
    let late = Job { accepted_at: Time::NEVER, ..job() };
    assert!(matches!(write_out(&late, &good, DOMAIN), Err(WriteError::Date)));
}

/// CRLF is the only line end, no line is too long, and every byte is ASCII.
fn check_lines(message: &[u8]) {
    assert!(message.is_ascii() && message.ends_with(b"\r\n"));
    let text = std::str::from_utf8(message).unwrap();
    for line in text.split_terminator("\r\n") {
        assert!(line.len() <= 998 && !line.contains(['\r', '\n', '\0']), "{line}");
    }
}

fn lines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n").replace('\n', "\r\n")
}

fn check_mailboxes(found: Option<&Address<'_>>, given: &[Mailbox]) {
    let found = found.into_iter().flat_map(Address::iter);
    let found: Vec<_> = found.map(|mailbox| (mailbox.name(), mailbox.address().unwrap())).collect();
    let given: Vec<_> = given.iter().map(|mailbox| (mailbox.name.as_deref(), mailbox.address.as_str())).collect();
    assert_eq!(found, given);
}

fn check_read_back(email: &Mail, message: &[u8]) {
    let parsed = parse(message);
    assert_eq!(parsed.subject().unwrap_or_default(), email.subject);
    check_mailboxes(parsed.from(), std::slice::from_ref(&email.from));
    check_mailboxes(parsed.to(), &email.to);
    check_mailboxes(parsed.cc(), &email.cc);
    check_mailboxes(parsed.bcc(), &[]);
    check_mailboxes(parsed.reply_to(), email.reply_to.as_slice());
    for (name, _) in &email.headers {
        let found = parsed.header_as(name.as_str(), HeaderForm::Text);
        let found: Vec<_> = found.iter().map(|value| value.as_text()).collect();
        let given = email.headers.iter().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        assert_eq!(found, given.map(|(_, value)| Some(value.as_str())).collect::<Vec<_>>(), "{name}");
    }
    check_parts(email, &parsed);
}

fn check_parts(email: &Mail, parsed: &Message<'_>) {
    let mut leaves = parsed.parts.iter().filter(|part| !part.is_multipart());
    let is_whole = parsed.parts.len() == 1;
    for (subtype, text) in [("plain", &email.text), ("html", &email.html)] {
        if let Some(text) = text {
            let part = leaves.next().expect("a text");
            assert!(part.is_content_type("text", subtype));
            let found = part.text_contents().unwrap();
            // A message ends its last line; within a whole of parts that line end belongs to the boundary.
            let given = lines(text);
            assert!(found == given || is_whole && found == given + "\r\n", "{found:?} is not {text:?}");
        }
    }
    let is_shown = |file: &&Attachment| file.content_id.is_some() && email.html.is_some();
    let (shown, attached): (Vec<_>, Vec<_>) = email.attachments.iter().partition(is_shown);
    for file in shown.into_iter().chain(attached) {
        let part = leaves.next().expect("a file");
        assert_eq!(part.attachment_name(), Some(file.filename.as_str()));
        assert_eq!(part.content_id(), file.content_id.as_deref());
        assert_eq!(part.contents(), file.content.0.as_ref());
    }
    assert!(leaves.next().is_none());
}

/// Text with what readers trip over: quotes, encoded words, spaces, dots, boundaries, long words, other scripts.
fn tricky() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[ -~]{0,12}",
        2 => "\\PC{0,8}",
        1 => Just("=?utf-8?q?=0D=0ABcc:_x@y.z?=".to_owned()),
        1 => Just("=?iso-8859-1?B?4Q==?=".to_owned()),
        1 => Just("--=_mixed_".to_owned()),
        1 => Just("  ".to_owned()),
        1 => Just("ção 📬 日本語".to_owned()),
        1 => "[a-z\"\\\\]{60,120}",
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn body() -> impl Strategy<Value = Option<String>> {
    let piece = prop_oneof![
        tricky(),
        Just("\r\n".to_owned()),
        Just("\n.\n".to_owned()),
        Just("\n..x\r".to_owned()),
        Just("\nFrom me \t\n".to_owned()),
        Just("\0\u{b}".to_owned()),
    ];
    prop::option::of(prop::collection::vec(piece, 1..8).prop_map(|pieces| pieces.concat()))
}

fn mailbox() -> impl Strategy<Value = String> {
    let quoted = |name: String| format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
    let address = || {
        let any = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,10}(\\.[a-z0-9+=?]{1,9}){0,2}@[a-z]{1,9}(\\.[A-Za-z]{2,8}){1,3}";
        any.prop_filter("the reader of this test decodes words in addresses, against RFC 2047", |it| !it.contains("=?"))
    };
    prop_oneof![
        address(),
        (tricky(), address()).prop_map(move |(name, address)| {
            let name: String = name.chars().take(60).collect();
            format!("{} <{address}>", quoted(name))
        })
    ]
}

fn attachment() -> impl Strategy<Value = AttachmentRequest> {
    let bytes = (prop::option::of("x-[a-z]{1,5}/[a-z.+]{1,5}"), prop::collection::vec(any::<u8>(), 0..200));
    let csv = Just(Some("text/csv; charset=\"utf-8\"; header=present".to_owned()));
    let text = (csv, "[a-z\n\r. ]{0,200}".prop_map(String::into_bytes));
    let filename = prop_oneof!["[ -.0-\\[\\]-~]{1,40}", "[^\\pC/\\\\]{1,60}"];
    (filename, prop_oneof![bytes, text], prop::option::of("[a-z0-9.@]{1,20}")).prop_map(
        |(filename, (content_type, content), content_id)| AttachmentRequest {
            filename,
            content_type,
            content_base64: BASE64.encode(content),
            content_id,
        },
    )
}

fn any_request() -> impl Strategy<Value = MailRequest> {
    let some = |most| prop::collection::vec(mailbox(), 0..most);
    let headers = prop::collection::vec(("X-[A-Za-z0-9]{1,9}(-[a-z]{1,9}){0,2}", tricky()), 0..4);
    let people = (prop::collection::vec(mailbox(), 1..30), some(9), some(9), mailbox(), prop::option::of(mailbox()));
    (people, tricky(), body(), body(), prop::collection::vec(attachment(), 0..4), headers).prop_map(
        |((to, cc, bcc, from, reply_to), subject, text, html, attachments, headers)| MailRequest {
            to,
            cc,
            bcc,
            from: Some(from),
            reply_to,
            subject,
            text,
            html,
            attachments,
            headers,
        },
    )
}

proptest! {
    #[test]
    fn whatever_is_taken_reads_back_as_it_was_given(
        email in any_request().prop_filter_map("refused", |request| check_mail(request, None).ok())
    ) {
        let message = write_out(&job(), &email, DOMAIN).unwrap();
        check_lines(&message);
        check_read_back(&email, &message);
    }
}
