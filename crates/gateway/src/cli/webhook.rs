//! `entrega webhook`: secrets and signatures, without a server; a test of an endpoint and what waits for it, with one.
//! Invariant: a secret is printed only by the command that makes it.
//! Never: repeats a secret in a message.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use entrega_core::time::parse_duration;
use entrega_core::webhook::{
    self, Freshness, StandardHeaders, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP, WebhookSecret, X_SIGNATURE,
};
use serde_json::{Map, Value, json};

use super::api::{Api, Connection};
use super::error::CliError;
use super::out::{Out, text};
use super::target::Target;
use entrega::chance::{Chance, secret_bytes};
use entrega_call::Clock;

/// No webhook is longer.
const BODY_BYTES_MAX: u64 = 16 << 20;
const SECRETS_MAX: usize = 8;

/// What to do with webhooks.
#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// Make a secret and print it
    NewSecret,
    /// Print the headers that a delivery of this body would carry
    Sign(SignArgs),
    /// Check a signature; the exit code is 0 if it is right and 1 if not
    Verify(VerifyArgs),
    /// Send an endpoint a test, through the server
    Test {
        /// Whose endpoint.
        tenant: String,
        /// Its name.
        #[arg(default_value = "default")]
        endpoint: String,
    },
    /// Give up what waits for an endpoint, through the server; the endpoint need not be there any more
    Discard {
        /// Whose endpoint.
        tenant: String,
        /// Its name.
        #[arg(default_value = "default")]
        endpoint: String,
        /// Why; kept with every job
        #[arg(long)]
        reason: String,
    },
}

/// Which secrets.
#[derive(Args)]
struct Secrets {
    /// The secret; during a rotation several, the newest first. Others on this machine can see flags: better use the
    /// environment, with spaces between several
    #[arg(
        long,
        env = "ENTREGA_WEBHOOK_SECRET",
        hide_env_values = true,
        value_delimiter = ' ',
        required = true,
        value_name = "SECRET"
    )]
    secret: Vec<String>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(***)")
    }
}

impl Secrets {
    /// Not parsed by clap, whose messages repeat the text.
    fn read(&self) -> Result<Vec<WebhookSecret>, CliError> {
        let bad = |problem: String| CliError::Usage { what: "--secret", problem };
        let texts: Vec<&String> = self.secret.iter().filter(|text| !text.is_empty()).collect();
        if texts.is_empty() {
            return Err(bad("it is empty; `entrega webhook new-secret` makes one".into()));
        }
        if texts.len() > SECRETS_MAX {
            return Err(bad(format!("at most {SECRETS_MAX} secrets, not {}", texts.len())));
        }
        texts.into_iter().map(|text| text.parse().map_err(|error: webhook::BadSecret| bad(error.to_string()))).collect()
    }
}

/// What to sign.
#[derive(Debug, Args)]
pub struct SignArgs {
    #[command(flatten)]
    secrets: Secrets,
    /// The id of the message [default: the eventId in the body, or a new one]
    #[arg(long)]
    id: Option<String>,
    /// When it is signed, in seconds since 1970 [default: now]
    #[arg(long, value_name = "SECONDS")]
    timestamp: Option<u64>,
    /// The body, byte for byte; - for what comes on stdin
    #[arg(value_name = "FILE")]
    body: PathBuf,
}

/// What to check.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    #[command(flatten)]
    secrets: Secrets,
    /// The header X-Signature, or webhook-signature together with --id and --timestamp
    #[arg(long, value_name = "HEADER", allow_hyphen_values = true)]
    signature: String,
    /// The header webhook-id
    #[arg(long, requires = "timestamp", value_name = "HEADER")]
    id: Option<String>,
    /// The header webhook-timestamp
    #[arg(long, requires = "id", value_name = "HEADER")]
    timestamp: Option<String>,
    /// How far from now the timestamp may be, such as 5m [default: any time]
    #[arg(long, requires = "timestamp", value_parser = parse_duration, value_name = "DURATION")]
    tolerance: Option<Duration>,
    /// The body, byte for byte; - for what comes on stdin
    #[arg(value_name = "FILE")]
    body: PathBuf,
}

pub(super) async fn run(command: WebhookCommand, connection: &Connection, out: &mut Out) -> Result<(), CliError> {
    match command {
        WebhookCommand::NewSecret => {
            let secret = WebhookSecret::from_random(secret_bytes());
            // The secret alone, so that it can be put into a variable.
            out.answer(&json!({ "secret": secret.expose() }), |_| secret.expose().to_owned())
        }
        WebhookCommand::Sign(args) => sign(&args, out),
        WebhookCommand::Verify(args) => verify(&args, out),
        WebhookCommand::Discard { tenant, endpoint, reason } => {
            let count = discard(&connection.open()?, &target(&tenant, &endpoint).part("discard"), &reason).await?;
            out.answer(&json!({ "discarded": count }), |_| format!("discarded {count}"))
        }
        WebhookCommand::Test { tenant, endpoint } => {
            let answer = connection.open()?.post(&target(&tenant, &endpoint).part("test"), &json!({})).await?;
            let id = text(&answer, "jobId");
            out.answer(&answer, |_| format!("{} is on its way; entrega jobs show {id}", text(&answer, "eventId")))
        }
    }
}

/// The address of an endpoint.
fn target(tenant: &str, endpoint: &str) -> Target {
    Target::new("/v1/tenants").part(tenant).part("endpoints").part(endpoint)
}

/// Call after call, until the server has looked at everything; how many were discarded.
async fn discard(api: &Api, target: &Target, reason: &str) -> Result<u64, CliError> {
    let (mut count, mut cursor) = (0, Value::Null);
    loop {
        let answer = api.post(target, &json!({ "reason": reason, "cursor": cursor })).await?;
        count += answer.get("discarded").and_then(Value::as_u64).unwrap_or(0);
        match answer.get("nextCursor") {
            Some(next) if !next.is_null() => cursor = next.clone(),
            _ => return Ok(count),
        }
    }
}

fn sign(args: &SignArgs, out: &mut Out) -> Result<(), CliError> {
    let secrets = args.secrets.read()?;
    let body = read_body(&args.body)?;
    let id = message_id(args, &body)?;
    let timestamp = args.timestamp.unwrap_or_else(|| Clock::system().now().as_millis() / 1000);
    let headers = [
        (X_SIGNATURE, webhook::sign(&secrets[0], &body)),
        (WEBHOOK_ID, id.clone()),
        (WEBHOOK_TIMESTAMP, timestamp.to_string()),
        (WEBHOOK_SIGNATURE, webhook::sign_standard_all(&secrets, &id, timestamp, &body)),
    ];
    let object: Map<String, Value> = headers.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    out.answer(&Value::Object(object), |_| headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect())
}

fn message_id(args: &SignArgs, body: &[u8]) -> Result<String, CliError> {
    let in_body = || {
        let event: Value = serde_json::from_slice(body).ok()?;
        Some(event.get("eventId")?.as_str()?.to_owned()).filter(|id| webhook::is_message_id(id))
    };
    let made = || {
        let id = Chance::from_system().job_id(Clock::system().now()).to_string();
        id.replacen("job_", "evt_", 1)
    };
    let id = args.id.clone().or_else(in_body).unwrap_or_else(made);
    let problem = "an id has 1 to 256 visible ASCII characters, none of them a full stop";
    webhook::is_message_id(&id).then_some(id).ok_or(CliError::Usage { what: "--id", problem: problem.into() })
}

fn verify(args: &VerifyArgs, out: &mut Out) -> Result<(), CliError> {
    let secrets = args.secrets.read()?;
    let is_standard = args.id.is_some();
    if !is_standard && args.signature.starts_with("v1") {
        let problem = "this is a webhook-signature; it covers --id and --timestamp too, so give them";
        return Err(CliError::Usage { what: "--signature", problem: problem.into() });
    }
    let body = read_body(&args.body)?;
    let checked = if is_standard {
        let (id, timestamp) = (args.id.as_deref(), args.timestamp.as_deref());
        let headers = StandardHeaders { id, timestamp, signature: Some(&args.signature) };
        let freshness = args.tolerance.map(|tolerance| Freshness { now: Clock::system().now(), tolerance });
        webhook::verify_standard(&secrets, &headers, &body, freshness)
    } else {
        webhook::verify(&secrets, &body, Some(&args.signature))
    };
    checked.map_err(CliError::failed)?;
    out.answer(&json!({ "valid": true }), |_| "the signature is right".to_owned())
}

fn read_body(path: &Path) -> Result<Vec<u8>, CliError> {
    let unreadable = |source| CliError::File { path: path.to_owned(), source };
    let source: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(path).map_err(unreadable)?),
    };
    let mut body = Vec::new();
    source.take(BODY_BYTES_MAX + 1).read_to_end(&mut body).map_err(unreadable)?;
    if body.len() as u64 > BODY_BYTES_MAX {
        let problem = format!("a body has at most {} MiB", BODY_BYTES_MAX >> 20);
        return Err(CliError::Usage { what: "FILE", problem });
    }
    Ok(body)
}
