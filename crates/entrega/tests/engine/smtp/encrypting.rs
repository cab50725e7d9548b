//! TLS and logins: what must not be seen is not shown.

use entrega::mail::smtp::{SmtpConfig, SmtpSetupError, SmtpTls, SmtpTransport};
use entrega::mail::transport::Sent;
use entrega::secret::Secret;
use serde_json::json;

use super::world::{refused, send, taken, transport_by, unreached};
use entrega_testkit::smtp_server::{self, SmtpServer};

const ANN: &[&str] = &["ann@example.org"];

/// The URL's user is `joe`, his password `s3cret`.
fn log_in(config: &mut SmtpConfig) {
    config.credentials = Some(("joe".into(), Secret::new("s3cret")));
}

fn code(sent: Sent) -> String {
    let refusal = unreached(sent);
    assert!(refusal.status.is_none() && !refusal.message.contains("s3cret"), "{refusal:?}");
    println!("{}: {}", refusal.code, refusal.message);
    refusal.code
}

#[tokio::test]
async fn a_certificate_is_checked_however_encryption_begins() {
    if smtp_server::is_left_out() {
        return;
    }
    for (how, tls) in
        [("required", SmtpTls::Required), ("starttls", SmtpTls::IfOffered), ("implicit", SmtpTls::Implicit)]
    {
        let server = SmtpServer::start(json!({ "tls": how }));
        let trusting = transport_by(&server, |config| {
            config.tls = tls;
            config.extra_ca_pem = server.authority_pem();
        });
        assert_eq!(send(&trusting, ANN).await, taken(1), "{how}");
        assert_eq!(send(&trusting, ANN).await, taken(1), "{how}: again, on the connection that was kept");
        assert_eq!(server.connections(), 1, "{how}");
        let strange = transport_by(&server, |config| config.tls = tls);
        assert_eq!(code(send(&strange, ANN).await), "tls", "{how}: nobody vouches for it");
        assert_eq!(server.received().len(), 2, "{how}");
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::start(json!({ "tls": "required", "names": ["mail.example.com"] }));
    let transport = transport_by(&server, |config| config.extra_ca_pem = server.authority_pem());
    assert_eq!(code(send(&transport, ANN).await), "tls");
}

#[tokio::test]
async fn nothing_is_sent_where_required_encryption_is_missing_or_fails() {
    if smtp_server::is_left_out() {
        return;
    }
    let plain = SmtpServer::obliging();
    let transport = transport_by(&plain, |config| config.tls = SmtpTls::Required);
    assert_eq!(code(send(&transport, ANN).await), "tls");
    assert!(plain.received().is_empty() && !plain.commands().iter().any(|command| command.starts_with("MAIL")));

    for (rule, reason) in [
        (json!({ "at": "starttls", "reply": "454 4.7.0 Not now" }), "Not now"),
        (json!({ "at": "starttls", "reply": "220 go ahead", "do": "close" }), "no encryption with localhost"),
        (json!({ "at": "starttls", "reply": "220 go ahead\r\n250 slipped in" }), "before encryption began"),
    ] {
        let server = SmtpServer::start(json!({ "tls": "starttls", "rules": [rule] }));
        let transport = transport_by(&server, |config| {
            config.tls = SmtpTls::Required;
            config.extra_ca_pem = server.authority_pem();
        });
        let refusal = unreached(send(&transport, ANN).await);
        assert_eq!(refusal.code, "tls", "{rule}");
        assert!(refusal.message.contains(reason), "{rule}: {refusal:?}");
        assert!(server.received().is_empty());
    }
}

#[tokio::test]
async fn a_login_is_made_by_either_mechanism() {
    if smtp_server::is_left_out() {
        return;
    }
    for mechanism in ["PLAIN", "LOGIN"] {
        let script = json!({ "tls": "required", "login": ["joe", "s3cret"], "mechanisms": [mechanism] });
        let server = SmtpServer::start(script);
        let transport = transport_by(&server, |config| {
            config.tls = SmtpTls::Required;
            config.extra_ca_pem = server.authority_pem();
            log_in(config);
        });
        assert_eq!(send(&transport, ANN).await, taken(1), "{mechanism}");
        let auth = format!("AUTH {mechanism}");
        assert!(server.commands().iter().any(|command| command.starts_with(&auth)), "{:?}", server.commands());
    }
}

#[tokio::test]
async fn a_refused_login_is_the_operators_to_mend_and_not_the_mails_fault() {
    if smtp_server::is_left_out() {
        return;
    }
    for mechanisms in [json!(["PLAIN"]), json!(["LOGIN"]), json!([])] {
        let script = json!({ "tls": "required", "login": ["joe", "another"], "mechanisms": mechanisms });
        let server = SmtpServer::start(script);
        let transport = transport_by(&server, |config| {
            config.tls = SmtpTls::Required;
            config.extra_ca_pem = server.authority_pem();
            log_in(config);
        });
        assert_eq!(code(send(&transport, ANN).await), "auth", "{mechanisms}");
    }
    let rules = json!([{ "at": "auth", "reply": "421 4.3.2 Shutting down" }]);
    let server = SmtpServer::start(json!({ "login": ["joe", "s3cret"], "login_in_clear": true, "rules": rules }));
    let transport = transport_by(&server, |config| {
        log_in(config);
        config.allow_plain_auth = true;
    });
    assert_eq!(unreached(send(&transport, ANN).await), refused(421, Some("4.3.2"), "Shutting down"));
}

#[tokio::test]
async fn a_password_is_sent_in_the_clear_only_where_that_was_allowed() {
    if smtp_server::is_left_out() {
        return;
    }
    let server = SmtpServer::start(json!({ "login": ["joe", "s3cret"], "login_in_clear": true }));
    let careful = transport_by(&server, |config| {
        log_in(config);
        config.tls = SmtpTls::IfOffered;
    });
    assert_eq!(code(send(&careful, ANN).await), "tls");
    assert!(!server.commands().iter().any(|command| command.starts_with("AUTH")), "{:?}", server.commands());
    let allowed = transport_by(&server, |config| {
        log_in(config);
        config.tls = SmtpTls::Never;
        config.allow_plain_auth = true;
    });
    assert_eq!(send(&allowed, ANN).await, taken(1));
}

#[test]
fn a_configuration_that_cannot_work_is_refused_at_once() {
    let with = |change: fn(&mut SmtpConfig)| {
        let mut config = SmtpConfig::from_url("smtp://joe:s3cret@mail.example.com").unwrap();
        change(&mut config);
        SmtpTransport::new("main", config).err().expect("it is refused")
    };
    use SmtpSetupError::*;
    assert!(matches!(with(|config| config.tls = SmtpTls::Never), PasswordInClear));
    assert!(matches!(with(|config| config.hello = Some("a\r\nRSET".into())), Hello { .. }));
    assert!(matches!(with(|config| config.host = "no host".into()), Host { .. }));
    assert!(matches!(with(|config| config.extra_ca_pem = Some(b"nothing".to_vec())), NoCertificate));
}
