//! Mail: who it is from, the ways it leaves, and whose reports of it are heard.
//! Invariant: every transport can be set up as it stands here; the order is the order in which they are tried.
//! Never: shows a password.

use entrega::mail::Mailbox;
#[cfg(feature = "ses")]
use entrega::mail::ses::SesConfig;
use entrega::mail::smtp::SmtpConfig;
use entrega::mail::{MailConfig, Senders, TransportConfig, TransportKind, check_mailbox};
use entrega::secret::Secret;

use super::error::ConfigError;
use super::section::{Given, Section};

/// Transports at most: each is tried in turn within one attempt.
const TRANSPORTS_MAX: usize = 8;

/// Reads all three sections; `env` has the credentials of SES.
pub(super) fn read(
    mut email: Section<'_>,
    transports: Section<'_>,
    mut ses: Section<'_>,
    env: &[(String, String)],
) -> Result<MailConfig, ConfigError> {
    let found = transports
        .named()
        .map(|(name, given)| read_transport(name, given, env))
        .collect::<Result<Vec<TransportConfig>, ConfigError>>()?;
    let order = email.get("transports");
    let read = MailConfig {
        from: email.get("from").map(read_from).transpose()?,
        // They stand with their tenants.
        senders: Senders::new(),
        domain: email.get("domain").map(read_domain).transpose()?,
        transports: in_order(found, order)?,
        topics: ses.get_default("topics")?.list()?.iter().map(read_topic).collect::<Result<_, _>>()?,
        certificate_hosts: ses
            .get_default("certificate_hosts")?
            .list()?
            .iter()
            .map(Given::text)
            .collect::<Result<_, _>>()?,
    };
    email.finish()?;
    ses.finish()?;
    Ok(read)
}

fn read_transport(name: String, given: Given<'_>, env: &[(String, String)]) -> Result<TransportConfig, ConfigError> {
    let mut transport = given.section()?;
    let right = "write url = \"smtp://user:secret@mail.example.com:587\" or url = \"ses://eu-west-1\"";
    let url = transport.need("url", right)?;
    let allow_plain_auth = transport.get("allow_plain_auth").map_or(Ok(false), |given| given.flag())?;
    let idle_connections = transport.get("idle_connections").map_or(Ok(20), |given| given.number(0..=1000))?;
    let kind = read_kind(&url, allow_plain_auth, idle_connections, env)?;
    let url = Secret::new(url.text()?);
    transport.finish()?;
    Ok(TransportConfig { name, url, allow_plain_auth, idle_connections, kind })
}

fn read_kind(
    url: &Given<'_>,
    allow_plain_auth: bool,
    idle_max: usize,
    env: &[(String, String)],
) -> Result<TransportKind, ConfigError> {
    let text = url.text()?;
    if text.starts_with("ses:") {
        return read_ses(url, &text, env);
    }
    // The value itself is not shown: it may hold a password.
    let config = SmtpConfig::from_url(&text).map_err(|error| url.hidden_must_be(error.to_string()))?;
    Ok(TransportKind::Smtp(SmtpConfig { allow_plain_auth, idle_max, ..config }))
}

#[cfg(feature = "ses")]
fn read_ses(url: &Given<'_>, text: &str, env: &[(String, String)]) -> Result<TransportKind, ConfigError> {
    SesConfig::from_url(text, env).map(TransportKind::Ses).map_err(|error| url.hidden_must_be(error.to_string()))
}

#[cfg(not(feature = "ses"))]
fn read_ses(url: &Given<'_>, _: &str, _: &[(String, String)]) -> Result<TransportKind, ConfigError> {
    Err(url.hidden_must_be("smtp:// or smtps://; this program was built without SES (cargo feature `ses`)"))
}

/// All of them by name, or those that are listed.
fn in_order(found: Vec<TransportConfig>, order: Option<Given<'_>>) -> Result<Vec<TransportConfig>, ConfigError> {
    let Some(order) = order else { return Ok(found.into_iter().take(TRANSPORTS_MAX).collect()) };
    let mut ordered: Vec<TransportConfig> = Vec::new();
    for name in order.list()? {
        let text = name.text()?;
        match found.iter().find(|transport| transport.name == text) {
            Some(transport) if !ordered.contains(transport) && ordered.len() < TRANSPORTS_MAX => {
                ordered.push(transport.clone());
            }
            Some(_) => return Err(name.must_be(format!("named once, and at most {TRANSPORTS_MAX} in all"))),
            None => return Err(name.must_be(format!("the name of a transport; [transports.{text}] is not there"))),
        }
    }
    Ok(ordered)
}

fn read_from(given: Given<'_>) -> Result<Mailbox, ConfigError> {
    let right = "an address, such as \"Invoices <no-reply@example.com>\"";
    check_mailbox("email.from", &given.text()?).map_err(|_| given.must_be(right))
}

fn read_domain(given: Given<'_>) -> Result<String, ConfigError> {
    let text = given.text()?;
    match check_mailbox("email.domain", &format!("x@{text}")) {
        Ok(_) => Ok(text),
        Err(_) => Err(given.must_be("a domain, such as \"mail.example.com\"")),
    }
}

fn read_topic(given: &Given<'_>) -> Result<String, ConfigError> {
    let text = given.text()?;
    match text.starts_with("arn:aws") && text.split(':').count() == 6 {
        true => Ok(text),
        false => Err(given.must_be("the ARN of a topic, such as \"arn:aws:sns:eu-west-1:123456789012:bounces\"")),
    }
}
