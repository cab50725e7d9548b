//! `entrega jobs send`: a job from the command line.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{Args, ValueEnum};
use entrega_core::time::parse_duration;
use serde_json::{Map, Value, json};

use super::super::api::Api;
use super::super::error::CliError;
use super::super::out::{Out, text};
use super::super::target::Target;
use super::show;

/// How urgent a job is.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Urgency {
    /// Before all others.
    High,
    /// The default.
    Normal,
    /// When nothing else waits.
    Low,
}

/// What to send, and how.
#[derive(Debug, Args)]
pub struct SendArgs {
    /// Where to
    #[arg(value_name = "URL")]
    destination: String,
    /// The body: a text, @FILE, or @- for what comes on stdin. JSON is sent as such unless a header says otherwise
    #[arg(long, short, value_name = "TEXT|@FILE")]
    data: Option<String>,
    /// The method [default: POST]
    #[arg(long, short = 'X')]
    method: Option<String>,
    /// A header, such as 'X-Source: shop'; may be given several times
    #[arg(long, short = 'H', value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// The lane [default: http]
    #[arg(long)]
    lane: Option<String>,
    /// For this tenant [default: the key's own]
    #[arg(long)]
    tenant: Option<String>,
    /// How urgent
    #[arg(long)]
    priority: Option<Urgency>,
    /// Not before this has passed, such as 5m
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    delay: Option<Duration>,
    /// Dropped if it still waits after this
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    ttl: Option<Duration>,
    /// A word to carry along; may be given several times
    #[arg(long, value_name = "NAME=TEXT", value_parser = label)]
    label: Vec<(String, String)>,
    /// Sent with every attempt [default: the job's id]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Wait up to this long for the job to end, at most 60s, and show it
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    wait: Option<Duration>,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it as 'Name: value'")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as name=text")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(super) async fn run(args: SendArgs, api: &Api, out: &mut Out) -> Result<(), CliError> {
    let body = args.data.as_deref().map(read_data).transpose()?;
    let taken = api.post(&Target::new("/v1/jobs"), &given(&args, body)).await?;
    let id = text(&taken, "jobId");
    match args.wait {
        Some(_) => show(&id, args.wait, api, out).await,
        None => out.answer(&taken, |_| id),
    }
}

fn read_data(data: &str) -> Result<Vec<u8>, CliError> {
    let Some(path) = data.strip_prefix('@') else { return Ok(data.as_bytes().to_vec()) };
    let mut bytes = Vec::new();
    let read = match path {
        "-" => std::io::stdin().read_to_end(&mut bytes).map(|_| bytes),
        path => std::fs::read(path),
    };
    read.map_err(|source| CliError::File { path: Path::new(path).to_owned(), source })
}

/// The job as the API takes it. What is not given is left out, so that the server's defaults hold.
fn given(args: &SendArgs, body: Option<Vec<u8>>) -> Value {
    let mut headers: Map<String, Value> =
        args.header.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let mut request = Map::from_iter([("url".to_owned(), json!(args.destination))]);
    set(&mut request, "method", args.method.as_ref().map(|method| json!(method.to_uppercase())));
    if let Some(bytes) = body {
        let has_type = headers.keys().any(|name| name.eq_ignore_ascii_case("content-type"));
        if !has_type && serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_ok() {
            headers.insert("content-type".into(), json!("application/json"));
        }
        // As text, so that it arrives byte for byte, spaces and all.
        match String::from_utf8(bytes) {
            Ok(text) => request.insert("body".into(), json!(text)),
            Err(error) => request.insert("bodyBase64".into(), json!(BASE64.encode(error.as_bytes()))),
        };
    }
    set(&mut request, "headers", (!headers.is_empty()).then_some(Value::Object(headers)));
    let labels: Map<String, Value> = args.label.iter().map(|(name, text)| (name.clone(), json!(text))).collect();
    let priority = args.priority.map(|priority| match priority {
        Urgency::High => json!("high"),
        Urgency::Normal => json!("normal"),
        Urgency::Low => json!("low"),
    });
    let ms = |length: Duration| json!(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
    let mut job = Map::from_iter([("request".to_owned(), Value::Object(request))]);
    set(&mut job, "lane", args.lane.as_ref().map(|lane| json!(lane)));
    set(&mut job, "tenant", args.tenant.as_ref().map(|tenant| json!(tenant)));
    set(&mut job, "priority", priority);
    set(&mut job, "delayMs", args.delay.map(ms));
    set(&mut job, "ttlMs", args.ttl.map(ms));
    set(&mut job, "labels", (!labels.is_empty()).then_some(Value::Object(labels)));
    set(&mut job, "idempotencyKey", args.idempotency_key.as_ref().map(|key| json!(key)));
    Value::Object(job)
}

fn set(object: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if let Some(value) = value {
        object.insert(key.to_owned(), value);
    }
}
