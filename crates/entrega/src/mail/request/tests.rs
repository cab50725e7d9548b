//! What is taken, and what is refused, by the field that stands in the way.

use super::*;
use crate::mail::address::ADDRESS_BYTES_MAX;
use crate::mail::message::field::control;

fn request() -> MailRequest {
    MailRequest {
        to: vec!["ana@example.com".into()],
        from: Some("noreply@example.org".into()),
        subject: "Hello".into(),
        text: Some("Hi".into()),
        ..MailRequest::default()
    }
}

fn file() -> AttachmentRequest {
    AttachmentRequest { filename: "a.pdf".into(), content_base64: "AAEC".into(), ..AttachmentRequest::default() }
}

fn header(name: &str, value: &str) -> Vec<(String, String)> {
    vec![(name.to_owned(), value.to_owned())]
}

fn taken(request: MailRequest) -> Mail {
    check_mail(request, None).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// Which field is refused, and in which words.
fn refused(request: MailRequest) -> (String, String) {
    match check_mail(request, None) {
        Err(Refusal::Invalid { field, problem }) => (field, problem),
        other => panic!("{other:?}"),
    }
}

fn mailbox(text: &str) -> (Option<String>, String) {
    let Mailbox { name, address } = check_mailbox("to", text).unwrap_or_else(|refusal| panic!("{text}: {refusal}"));
    (name, address)
}

#[test]
fn addresses_are_taken_with_and_without_a_name() {
    let table = [
        ("ana@example.com", None, "ana@example.com"),
        ("<ana@example.com>", None, "ana@example.com"),
        ("Ana <ana@example.com>", Some("Ana"), "ana@example.com"),
        (" Ana P. Silva  <ana@example.com> ", Some("Ana P. Silva"), "ana@example.com"),
        ("\"Silva, Ana\" <ana@example.com>", Some("Silva, Ana"), "ana@example.com"),
        (r#""a \"b\" \\ <c>" <a@b.example>"#, Some(r#"a "b" \ <c>"#), "a@b.example"),
        ("João 📬 <j@example.com>", Some("João 📬"), "j@example.com"),
        ("=?utf-8?q?=0A?= <j@example.com>", Some("=?utf-8?q?=0A?="), "j@example.com"),
        ("\"\" <j@example.com>", None, "j@example.com"),
        ("o'neil+tag.x@sub.example.com", None, "o'neil+tag.x@sub.example.com"),
        ("Ana.S@EXAMPLE.Com", None, "Ana.S@example.com"),
        ("ana@münchen.example", None, "ana@xn--mnchen-3ya.example"),
        ("root@localhost", None, "root@localhost"),
    ];
    for (text, name, address) in table {
        assert_eq!(mailbox(text), (name.map(str::to_owned), address.to_owned()), "{text}");
    }
    let longest = format!("{}@{}.com", "a".repeat(64), ["b".repeat(61), "c".repeat(61), "d".repeat(61)].join("."));
    assert_eq!(longest.len(), ADDRESS_BYTES_MAX);
    assert_eq!(mailbox(&longest).1, longest);
}

#[test]
fn what_is_no_address_is_refused() {
    let long_local = format!("{}@example.com", "a".repeat(65));
    let long = format!("{}@{}.com", "a".repeat(64), ["b".repeat(61), "c".repeat(61), "d".repeat(62)].join("."));
    let long_label = format!("a@{}.com", "b".repeat(64));
    let long_name = format!("{} <a@example.com>", "n".repeat(256));
    let huge = format!("{}@example.com", "a".repeat(1 << 20));
    let table = [
        "",
        " ",
        "ana",
        "@",
        "ana@",
        "@example.com",
        "a b@example.com",
        "a@b@example.com",
        "a@exa mple.com",
        "a@b.com>",
        "<a@b.com",
        "a@b.com> <c@d.com>",
        "<a@b.com>, <c@d.com>",
        "a@b.com, c@d.com",
        "a@b.com;c@d.com",
        "a@b.com c@d.com",
        "a@b.com, Ana <c@d.com>",
        "Silva, Ana <a@b.com>",
        "Ana \"x <a@b.com>",
        "a@b.com <c@d.com>",
        "\"a\" b\" <a@b.com>",
        "\"a\\\" <a@b.com>",
        "Ana (x) <a@b.com>",
        "Ana <<a@b.com>>",
        "Ana <a@b.com> x",
        "Ana < a@b.com >",
        "\"a b\"@example.com",
        ".a@example.com",
        "a.@example.com",
        "a..b@example.com",
        "joão@example.com",
        "a@example..com",
        "a@.example.com",
        "a@example.com.",
        "a@-a.com",
        "a@a-.com",
        "a@127.0.0.1",
        "a@[127.0.0.1]",
        "a@[IPv6:::1]",
        "a@ex_ample.com",
        "a@example.com/..",
        "a@example.com:25",
        "a@example.com%0d%0abcc:x@y.z",
        "a@example.com?bcc=x",
        "a@=?utf-8?q?example.com?=",
        "a@xn--zzzzzzz99999.com",
        &long_local,
        &long,
        &long_label,
        &long_name,
        &huge,
    ];
    for text in table {
        let Err(Refusal::Invalid { field, problem }) = check_mailbox("to[1]", text) else { panic!("{text}") };
        assert_eq!(field, "to[1]", "{text}");
        assert!(problem.len() < 500, "{problem}");
    }
}

/// A field, and a request with a text put into it.
type Field = (&'static str, fn(&str) -> MailRequest);

/// Every field that ends up in a header.
fn fields() -> Vec<Field> {
    vec![
        ("to[1]", |bad| MailRequest { to: vec!["a@b.com".into(), format!("a{bad}@b.com")], ..request() }),
        ("to[0]", |bad| MailRequest { to: vec![format!("a@b.com{bad}")], ..request() }),
        ("to[0]", |bad| MailRequest { to: vec![format!("A{bad} <a@b.com>")], ..request() }),
        ("to[0]", |bad| MailRequest { to: vec![format!("\"A{bad}\" <a@b.com>")], ..request() }),
        ("cc[0]", |bad| MailRequest { cc: vec![format!("{bad}a@b.com")], ..request() }),
        ("bcc[0]", |bad| MailRequest { bcc: vec![format!("a@{bad}b.com")], ..request() }),
        ("from", |bad| MailRequest { from: Some(format!("a@b.com{bad}Bcc: x@y.z")), ..request() }),
        ("replyTo", |bad| MailRequest { reply_to: Some(format!("A <a@b.com>{bad}")), ..request() }),
        ("subject", |bad| MailRequest { subject: format!("a{bad}Bcc: x@y.z"), ..request() }),
        ("headers.X-A", |bad| MailRequest { headers: header("X-A", &format!("a{bad}b")), ..request() }),
        ("headers.X", |bad| MailRequest { headers: header(&format!("X{bad}A"), "a"), ..request() }),
        ("attachments[0].filename", |bad| {
            let filename = format!("a{bad}.pdf");
            MailRequest { attachments: vec![AttachmentRequest { filename, ..file() }], ..request() }
        }),
        ("attachments[0].contentType", |bad| {
            let content_type = Some(format!("text/plain;{bad} charset=utf-8"));
            MailRequest { attachments: vec![AttachmentRequest { content_type, ..file() }], ..request() }
        }),
        ("attachments[1].contentId", |bad| {
            let content_id = Some(format!("a{bad}"));
            MailRequest { attachments: vec![file(), AttachmentRequest { content_id, ..file() }], ..request() }
        }),
    ]
}

#[test]
fn line_breaks_and_control_characters_are_refused_in_every_field() {
    for bad in ["\r", "\n", "\r\n", "\0", "\t", "\u{b}", "\u{7f}", "\u{85}", "\u{9f}", "\u{2028}", "\u{2029}"] {
        for (expected, make) in fields() {
            let (field, problem) = refused(make(bad));
            assert!(field.starts_with(expected), "{field} is not {expected} for {bad:?}");
            assert!(control(&problem).is_none() && control(&field).is_none(), "{field}: {problem:?}");
        }
    }
    // Without them the same requests pass, so it is them that are refused.
    for (field, make) in fields().into_iter().filter(|(field, _)| *field != "from") {
        check_mail(make(""), None).unwrap_or_else(|refusal| panic!("{field}: {refusal}"));
    }
}

#[test]
fn a_refusal_names_the_field() {
    let list = |count: usize| vec!["ana@example.com".to_owned(); count];
    let files = |count: usize| vec![file(); count];
    let named = |filename: &str| vec![AttachmentRequest { filename: filename.into(), ..file() }];
    let typed = |kind: &str| vec![AttachmentRequest { content_type: Some(kind.into()), ..file() }];
    let called = |id: &str| AttachmentRequest { content_id: Some(id.into()), ..file() };
    let holding = |content: &str| vec![AttachmentRequest { content_base64: content.into(), ..file() }];
    let table = [
        ("from", MailRequest { from: None, ..request() }),
        ("from", MailRequest { from: Some(String::new()), ..request() }),
        ("to", MailRequest { to: vec![], cc: list(1), ..request() }),
        ("to", MailRequest { to: list(20), cc: list(20), bcc: list(11), ..request() }),
        ("subject", MailRequest { subject: "ä".repeat(999), ..request() }),
        ("text", MailRequest { text: None, ..request() }),
        ("text", MailRequest { text: Some(String::new()), html: Some(String::new()), ..request() }),
        ("text", MailRequest { text: Some("a".repeat(MAIL_BODY_BYTES_MAX + 1)), ..request() }),
        ("html", MailRequest { html: Some("a".repeat(MAIL_BODY_BYTES_MAX + 1)), ..request() }),
        ("attachments", MailRequest { attachments: files(51), ..request() }),
        ("attachments[0].filename", MailRequest { attachments: named(""), ..request() }),
        ("attachments[0].filename", MailRequest { attachments: named("../a"), ..request() }),
        ("attachments[0].filename", MailRequest { attachments: named("a\\b"), ..request() }),
        ("attachments[0].filename", MailRequest { attachments: named(".."), ..request() }),
        ("attachments[0].filename", MailRequest { attachments: named(&"a".repeat(256)), ..request() }),
        ("attachments[0].filename", MailRequest { attachments: named("=?utf-8?b?Li4vYQ==?="), ..request() }),
        ("attachments[0].content", MailRequest { attachments: holding("A"), ..request() }),
        ("attachments[0].content", MailRequest { attachments: holding("AA\nAA"), ..request() }),
        ("attachments[0].content", MailRequest { attachments: holding("-_-_"), ..request() }),
        ("attachments[1].contentId", MailRequest { attachments: vec![called("a"), called("a")], ..request() }),
        ("attachments[0].contentId", MailRequest { attachments: vec![called("<a>")], ..request() }),
        ("attachments[0].contentId", MailRequest { attachments: vec![called("")], ..request() }),
        ("headers", MailRequest { headers: vec![("X-A".into(), "a".into()); 51], ..request() }),
        ("headers.X-A", MailRequest { headers: header("X-A", &"a".repeat(999)), ..request() }),
        ("headers.X-A", MailRequest { headers: header("X-A", " "), ..request() }),
    ];
    for (expected, request) in table {
        assert_eq!(refused(request).0, expected);
    }
    for kind in [
        "",
        "pdf",
        "a/",
        "/b",
        "a/b/c",
        "a b/c",
        "*/*",
        "text/plain; charset",
        "é/b",
        "multipart/mixed",
        "Message/rfc822",
        "text/plain; name==?utf-8?q?a?=",
        "text/plain\u{a0}",
    ] {
        let request = MailRequest { attachments: typed(kind), ..request() };
        assert_eq!(refused(request).0, "attachments[0].contentType", "{kind}");
    }
}

#[test]
fn headers_that_the_gateway_writes_are_not_the_callers() {
    for name in [
        "From",
        "to",
        "CC",
        "Bcc",
        "Subject",
        "Date",
        "Message-ID",
        "Reply-To",
        "Sender",
        "Return-Path",
        "Received",
        "MIME-Version",
        "Content-Type",
        "Content-Transfer-Encoding",
        "content-anything",
        "DKIM-Signature",
        "X-Entrega-Id",
        "Resent-Bcc",
        "",
        "X A",
        "X:A",
        "X-Ä",
        &"X".repeat(77),
    ] {
        let (field, _) = refused(MailRequest { headers: header(name, "a"), ..request() });
        assert!(field.starts_with("headers."), "{name}: {field}");
    }
    let mine = [("X-Tag", "a"), ("X-Tag", "b"), ("List-Unsubscribe", "<https://example.com/u?a=1>")];
    let mine: Vec<_> = mine.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    assert_eq!(taken(MailRequest { headers: mine.clone(), ..request() }).headers, mine);
}

#[test]
fn the_largest_that_is_allowed_is_taken() {
    let part = BASE64.encode(vec![7; ATTACHMENTS_BYTES_MAX / 2]);
    let half = || AttachmentRequest { content_base64: part.clone(), ..file() };
    let full = MailRequest {
        to: vec!["ana@example.com".into(); 50],
        subject: "ä".repeat(SUBJECT_CHARS_MAX),
        text: Some("a".repeat(MAIL_BODY_BYTES_MAX)),
        html: Some("a".repeat(MAIL_BODY_BYTES_MAX)),
        attachments: vec![half(), half()],
        headers: vec![("X-A".into(), "a".repeat(998)); 50],
        ..request()
    };
    let email = taken(full.clone());
    assert_eq!(email.attachments.iter().map(|file| file.content.0.len()).sum::<usize>(), ATTACHMENTS_BYTES_MAX);
    assert_eq!(email.attachments[0].content_type, "application/octet-stream");
    let one_more = AttachmentRequest { content_base64: "AA".into(), ..file() };
    let (field, problem) = refused(MailRequest { attachments: vec![half(), half(), one_more], ..full });
    assert_eq!((field.as_str(), problem.contains("10 MiB")), ("attachments", true), "{problem}");
}

#[test]
fn the_configured_sender_stands_in() {
    let sender = Mailbox { name: Some("Shop".into()), address: "shop@example.org".into() };
    let email = check_mail(MailRequest { from: None, ..request() }, Some(&sender)).unwrap();
    assert_eq!(email.from, sender);
    let email = check_mail(request(), Some(&sender)).unwrap();
    assert_eq!(email.from.address, "noreply@example.org");
    assert!(refused(MailRequest { from: None, ..request() }).1.contains("[email] from"));
}

#[test]
fn the_same_address_in_other_letters_is_one_recipient() {
    let email = taken(MailRequest {
        to: vec!["Ana <ana@example.com>".into(), "ana@EXAMPLE.com".into()],
        bcc: vec!["ANA@example.com".into(), "ana@Example.Com".into()],
        ..request()
    });
    assert_eq!(email.recipients(), ["ana@example.com", "ANA@example.com"]);
}

#[test]
fn an_empty_text_is_no_text() {
    let email = taken(MailRequest { text: Some(String::new()), html: Some("<p>".into()), ..request() });
    assert_eq!((email.text, email.html), (None, Some("<p>".into())));
}

/// Readers believe what servers say of a sender, and what they see of a file's name.
#[test]
fn what_servers_say_and_names_that_turn_around_are_refused() {
    let mail = |change: &dyn Fn(&mut MailRequest)| {
        let mut request = MailRequest {
            to: vec!["ann@example.com".into()],
            from: Some("shop@example.com".into()),
            subject: "Hello".into(),
            text: Some("Hello!".into()),
            ..MailRequest::default()
        };
        change(&mut request);
        check_mail(request, None).err().map(|refusal| refusal.to_string())
    };
    for name in
        ["Authentication-Results", "received-spf", "ARC-Seal", "arc-message-signature", "ARC-Authentication-Results"]
    {
        let refused = mail(&|mail| mail.headers = vec![(name.into(), "spf=pass".into())]).unwrap();
        assert!(refused.contains(name), "{refused}");
    }
    assert_eq!(mail(&|mail| mail.headers = vec![("X-Archive".into(), "yes".into())]), None);
    let named = |filename: &str| {
        mail(&|mail| mail.attachments = vec![AttachmentRequest { filename: filename.into(), ..Default::default() }])
    };
    for mark in ['\u{202e}', '\u{202a}', '\u{2066}', '\u{2069}', '\u{200f}', '\u{061c}'] {
        let refused = named(&format!("invoice{mark}fdp.exe")).unwrap();
        assert!(refused.contains("attachments[0].filename"), "{refused}");
    }
    assert_eq!(named("חשבונית.pdf"), None);
}
