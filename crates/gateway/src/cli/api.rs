//! Calls to a running server.
//! Invariant: an answer is JSON with a 2xx, or an error that says what to do.
//! Never: sends a key that was found on this machine to another one.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use entrega_call::{AddressFilter, Answer, CallError, Client, ClientConfig, SystemResolver};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, USER_AGENT};
use http::{Method, Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use hyper_util::rt::TokioExecutor;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde_json::{Value, json};

use super::error::{CliError, Problem};
use super::target::Target;
use crate::config::{Config, ConfigSources, Options};
use entrega_call::Clock;

/// How long a call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest answer that is read at once.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Rows on a page, at most.
const PAGE_ROWS_MAX: usize = 200;

/// Which server, and as whom.
#[derive(Clone, Debug, Args)]
pub struct Connection {
    /// The server
    #[arg(long, global = true, env = "ENTREGA_URL", default_value = "http://127.0.0.1:8080", value_name = "URL")]
    url: String,
    /// The API key [default: the one in <data>/admin-key, for a server on this machine]
    #[arg(long, global = true, env = "ENTREGA_ADMIN_KEY", hide_env_values = true, value_name = "KEY")]
    key: Option<String>,
}

impl Connection {
    /// Ready to call, with the key that was given or found.
    pub(super) fn open(&self) -> Result<Api, CliError> {
        let data = Config::load(ConfigSources::of_process(None, Options::default())).map(|config| config.store.data);
        // A configuration that does not load is the server's trouble; the usual place may still be right.
        self.open_with(&data.unwrap_or_else(|_| PathBuf::from("entrega-data")))
    }

    /// The same, where the data directory is known.
    pub(super) fn open_with(&self, data: &Path) -> Result<Api, CliError> {
        let bad_url = |problem: String| CliError::Usage { what: "--url", problem };
        let url: Uri = self.url.parse().map_err(|error| bad_url(format!("'{}' is not a URL: {error}", self.url)))?;
        let filter = open_filter();
        filter.check_url(&url).map_err(|problem| bad_url(problem.to_string()))?;
        let key = match &self.key {
            Some(key) => Some(key.clone()),
            None if is_local(&url) => read_key(&data.join("admin-key"))?,
            None => None,
        };
        let bad_key = |_| CliError::Usage { what: "--key", problem: "a key is visible ASCII characters".into() };
        let mut bearer =
            key.map(|key| HeaderValue::from_str(&format!("Bearer {}", key.trim()))).transpose().map_err(bad_key)?;
        if let Some(bearer) = &mut bearer {
            bearer.set_sensitive(true);
        }
        // One call or a few, by somebody who may have names of their own: the system is asked.
        let resolver = Arc::new(SystemResolver);
        let config = ClientConfig { filter, resolver, answer_bytes_max: ANSWER_BYTES_MAX, ..ClientConfig::default() };
        Ok(Api {
            client: Client::new(config).map_err(CliError::failed)?,
            base: self.url.trim_end_matches('/').to_owned(),
            is_plain: url.scheme_str() == Some("http"),
            bearer,
            clock: Clock::system(),
        })
    }
}

/// The operator's own server may be anywhere.
fn open_filter() -> AddressFilter {
    let everywhere: [IpNet; 2] = [Ipv4Net::default().into(), Ipv6Net::default().into()];
    AddressFilter { allow_http: true, allow_networks: everywhere.to_vec() }
}

fn is_local(url: &Uri) -> bool {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn read_key(path: &Path) -> Result<Option<String>, CliError> {
    match std::fs::read_to_string(path) {
        Ok(key) => Ok(Some(key)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CliError::File { path: path.to_owned(), source }),
    }
}

/// A server to call.
#[derive(Debug)]
pub(super) struct Api {
    client: Client,
    base: String,
    is_plain: bool,
    bearer: Option<HeaderValue>,
    clock: Clock,
}

impl Api {
    /// Where it is.
    pub(super) fn url(&self) -> &str {
        &self.base
    }

    /// Whether there is a key to show.
    pub(super) fn has_key(&self) -> bool {
        self.bearer.is_some()
    }

    /// Looks.
    pub(super) async fn get(&self, target: &Target) -> Result<Value, CliError> {
        self.call(Method::GET, target, None, CALL_TIMEOUT).await
    }

    /// Looks, and lets the server wait for up to `wait`.
    pub(super) async fn get_within(&self, target: &Target, wait: Duration) -> Result<Value, CliError> {
        self.call(Method::GET, target, None, CALL_TIMEOUT.saturating_add(wait)).await
    }

    /// Asks for something to be done.
    pub(super) async fn post(&self, target: &Target, body: &Value) -> Result<Value, CliError> {
        self.call(Method::POST, target, Some(body), CALL_TIMEOUT).await
    }

    /// Sets something.
    pub(super) async fn put(&self, target: &Target, body: &Value) -> Result<Value, CliError> {
        self.call(Method::PUT, target, Some(body), CALL_TIMEOUT).await
    }

    /// Takes something away.
    pub(super) async fn delete(&self, target: &Target) -> Result<Value, CliError> {
        self.call(Method::DELETE, target, None, CALL_TIMEOUT).await
    }

    /// Up to `limit` rows of a listing, from as many pages as it takes, in the form of one.
    pub(super) async fn list(
        &self,
        target: &Target,
        limit: usize,
        mut cursor: Option<String>,
    ) -> Result<Value, CliError> {
        let mut rows: Vec<Value> = Vec::new();
        loop {
            let wanted = (limit - rows.len()).min(PAGE_ROWS_MAX);
            let page = target.clone().with("limit", Some(wanted)).with("cursor", cursor.as_deref());
            let mut answer = self.get(&page).await?;
            if let Some(Value::Array(items)) = answer.get_mut("items").map(Value::take) {
                rows.extend(items);
            }
            cursor = answer.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
            if cursor.is_none() || rows.len() >= limit {
                return Ok(json!({ "items": rows, "nextCursor": cursor }));
            }
        }
    }

    /// The answer to a GET, whatever it is.
    pub(super) async fn probe(&self, target: &Target) -> Result<Answer, CallError> {
        self.send(self.request(Method::GET, target, None), CALL_TIMEOUT).await
    }

    /// Writes an answer of any length to `sink`, as it comes.
    pub(super) async fn download(&self, target: &Target, sink: &mut dyn Write) -> Result<(), CliError> {
        let request = self.request(Method::GET, target, None);
        if !self.is_plain {
            let answer = self.good(self.send(request, CALL_TIMEOUT * 10).await)?;
            return Ok(sink.write_all(&answer.body)?);
        }
        let client: legacy::Client<_, Full<Bytes>> = legacy::Client::builder(TokioExecutor::new()).build_http();
        let cut_off = |error: &dyn std::error::Error| self.unreachable(error.to_string());
        let response = client.request(request.map(Full::new)).await.map_err(|error| cut_off(&error))?;
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let document = body.collect().await.map_err(|error| cut_off(&error))?.to_bytes();
            return Err(CliError::Problem(Problem::read(status, &document)));
        }
        while let Some(frame) = body.frame().await.transpose().map_err(|error| cut_off(&error))? {
            if let Some(data) = frame.data_ref() {
                sink.write_all(data)?;
            }
        }
        Ok(sink.flush()?)
    }

    async fn call(
        &self,
        method: Method,
        target: &Target,
        body: Option<&Value>,
        limit: Duration,
    ) -> Result<Value, CliError> {
        let answer = self.good(self.send(self.request(method, target, body), limit).await)?;
        if answer.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&answer.body).map_err(|error| self.bad_answer(error.to_string()))
    }

    async fn send(&self, request: Request<Bytes>, limit: Duration) -> Result<Answer, CallError> {
        self.client.call(request, self.clock.instant(self.clock.now() + limit)).await
    }

    /// A whole answer with a 2xx.
    fn good(&self, answer: Result<Answer, CallError>) -> Result<Answer, CliError> {
        let answer = answer.map_err(|error| self.unreachable(error.reason()))?;
        match (answer.status.is_success(), answer.truncated) {
            (false, _) => Err(CliError::Problem(Problem::read(answer.status, &answer.body))),
            (true, true) => Err(self.bad_answer(format!("it is longer than {} MiB", ANSWER_BYTES_MAX >> 20))),
            (true, false) => Ok(answer),
        }
    }

    fn request(&self, method: Method, target: &Target, body: Option<&Value>) -> Request<Bytes> {
        let mut request = Request::new(body.map_or_else(Bytes::new, |body| body.to_string().into()));
        *request.method_mut() = method;
        // The base was checked and the target holds nothing but URL characters; should they not fit together, the
        // client refuses the empty address.
        *request.uri_mut() = format!("{}{}", self.base, target.as_str()).parse().unwrap_or_default();
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("entrega-cli/", env!("CARGO_PKG_VERSION"))));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        if body.is_some() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(bearer) = &self.bearer {
            headers.insert(AUTHORIZATION, bearer.clone());
        }
        request
    }

    fn unreachable(&self, reason: String) -> CliError {
        CliError::Unreachable { url: self.base.clone(), reason }
    }

    fn bad_answer(&self, reason: String) -> CliError {
        CliError::BadAnswer { url: self.base.clone(), reason }
    }
}
