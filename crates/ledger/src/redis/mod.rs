//! The ledger on a Redis server, for any number of processes.
//! Invariant: a group is one script that compares fences and applies; what was not answered is `Unclear`, and is never sent
//! again by this module. Replicas are not read.
//! Never: knows a rule; its scripts compare, put and remove.
//!
//! # Layout at rest
//! | key | what |
//! |---|---|
//! | `<prefix>:table:<name>` | a hash: keys and values of a table |
//! | `<prefix>:index:<name>` | a sorted set of its keys, for scans |
//! | `<prefix>:shard:<name>` | a hash: token, beat, epoch, number of the last group and what became of its units |
//! | `<prefix>:inbox:<name>` | a stream: what was appended for a shard |

mod arguments;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::streams::StreamRangeReply;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, RedisError, Script, ServerErrorKind};
use tokio::sync::{Mutex, broadcast};

use self::arguments::{Names, arguments, token_of, token_text};
use crate::group::{Applied, EntryId, Group, Key, Room, Verdict};
use crate::rows::{InboxEntry, Rows, Scan};
use crate::{Beats, Health, Ledger, LedgerError, Owning, SIGNALS_MAX, Shard, Table, Token};

/// For the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For one answer; a server that is slower is as good as gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait before signals are listened to again.
const LISTEN_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Values that one call of a scan asks for.
const VALUES_AT_ONCE: usize = 256;

/// Hashes, sorted sets and streams on a server.
pub struct RedisLedger {
    client: Client,
    names: Names,
    connection: Mutex<Option<MultiplexedConnection>>,
    write: Script,
    /// The same, also where memory is used up.
    write_always: Script,
    own: Script,
    beat: Script,
    release: Script,
    signals: broadcast::Sender<Arc<str>>,
    listener: tokio::task::JoinHandle<()>,
}

impl Drop for RedisLedger {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

fn unclear(doing: &'static str, reason: impl ToString) -> LedgerError {
    LedgerError::Unclear { doing, reason: reason.to_string() }
}

/// What an error says of what happened.
fn failed(doing: &'static str, error: RedisError) -> LedgerError {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ResponseError | ServerErrorKind::ExecAbort) => {
            LedgerError::Broken { doing, reason: error.to_string() }
        }
        _ if error.code() == Some("OOM") => LedgerError::Full { reason: error.to_string() },
        _ => unclear(doing, error),
    }
}

impl RedisLedger {
    /// Connects to the server at `url`; all keys begin with `prefix`.
    pub async fn open(url: &str, prefix: &str) -> Result<RedisLedger, LedgerError> {
        let bad =
            |error: RedisError| LedgerError::Bad { doing: "reading the server's address", reason: error.to_string() };
        let client = Client::open(url).map_err(bad)?;
        let names = Names::new(prefix);
        let signals = broadcast::Sender::new(SIGNALS_MAX);
        let mut heard = client.get_async_pubsub().await.map_err(|error| unclear("connecting", error))?;
        heard.subscribe(names.signals()).await.map_err(|error| unclear("connecting", error))?;
        let listener = tokio::spawn(listen_on(client.clone(), names.signals(), heard, signals.clone()));
        let write = include_str!("write.lua");
        let ledger = RedisLedger {
            names,
            client,
            connection: Mutex::default(),
            write: Script::new(&format!("#!lua\n{write}")),
            write_always: Script::new(&format!("#!lua flags=allow-oom\n{write}")),
            own: Script::new(include_str!("own.lua")),
            beat: Script::new(include_str!("beat.lua")),
            release: Script::new(include_str!("release.lua")),
            signals,
            listener,
        };
        ledger.connection("connecting").await?;
        Ok(ledger)
    }

    /// The connection that all calls share; made anew if the last one broke.
    async fn connection(&self, doing: &'static str) -> Result<MultiplexedConnection, LedgerError> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        let made = self.client.get_multiplexed_async_connection_with_config(&config).await;
        let made = made.map_err(|error| unclear(doing, error))?;
        *connection = Some(made.clone());
        Ok(made)
    }

    /// After an error that breaks the connection, the next call makes another.
    async fn checked<T>(&self, doing: &'static str, answer: Result<T, RedisError>) -> Result<T, LedgerError> {
        match answer {
            Ok(answer) => Ok(answer),
            Err(error) => {
                if error.is_io_error() || error.is_timeout() || error.is_unrecoverable_error() {
                    *self.connection.lock().await = None;
                }
                Err(failed(doing, error))
            }
        }
    }

    async fn ask<T: FromRedisValue>(&self, doing: &'static str, command: &Cmd) -> Result<T, LedgerError> {
        let mut connection = self.connection(doing).await?;
        let answer = command.query_async(&mut connection).await;
        self.checked(doing, answer).await
    }

    async fn run<T: FromRedisValue>(
        &self,
        doing: &'static str,
        script: &redis::ScriptInvocation<'_>,
    ) -> Result<T, LedgerError> {
        let mut connection = self.connection(doing).await?;
        let answer = script.invoke_async(&mut connection).await;
        self.checked(doing, answer).await
    }

    async fn values(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, LedgerError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = Cmd::new();
        command.arg("HMGET").arg(self.names.table(table)).arg(keys);
        self.ask("reading", &command).await
    }

    /// The next keys of a table, and one more if there is one.
    async fn keys(&self, table: Table, is_up: bool, from: &[u8], rows: usize) -> Result<Vec<Vec<u8>>, LedgerError> {
        let mut command = Cmd::new();
        match is_up {
            true => command.arg("ZRANGEBYLEX").arg(self.names.index(table)).arg(from).arg("+"),
            false => command.arg("ZREVRANGEBYLEX").arg(self.names.index(table)).arg(from).arg("-"),
        };
        command.arg("LIMIT").arg(0).arg(rows.saturating_add(1).min(1 << 30));
        self.ask("reading", &command).await
    }

    async fn write_one(&self, group: &Group, room: Room) -> Result<Applied, LedgerError> {
        let script = match room {
            Room::New => &self.write,
            Room::Must => &self.write_always,
        };
        let mut invocation = script.prepare_invoke();
        arguments(&self.names, group, &mut |argument| {
            invocation.arg(argument);
        });
        let (what, said, seq): (String, String, Option<u64>) =
            match self.run::<Vec<redis::Value>>("writing", &invocation).await?.as_slice() {
                [what, said] => (text(what)?, text(said)?, None),
                [what, said, seq] => (text(what)?, text(said)?, Some(text(seq)?.parse().unwrap_or(0))),
                other => return Err(unclear("writing", format!("it answered {other:?}"))),
            };
        Ok(match what.as_str() {
            "applied" => Applied::Applied(verdicts(&said)),
            "fenced" => Applied::Fenced(Shard::new(&said)),
            _ => Applied::Rewound(Shard::new(&said), seq.unwrap_or_default()),
        })
    }
}

fn text(value: &redis::Value) -> Result<String, LedgerError> {
    match value {
        redis::Value::Int(number) => Ok(number.to_string()),
        value => String::from_redis_value_ref(value).map_err(|error| unclear("writing", error)),
    }
}

fn verdicts(said: &str) -> Vec<Verdict> {
    let verdict = |word: &str| word.parse().map_or(Verdict::Done, Verdict::Not);
    said.split(',').filter(|word| !word.is_empty()).map(verdict).collect()
}

/// Passes signals on for as long as the ledger is there.
async fn listen_on(client: Client, topic: String, mut heard: redis::aio::PubSub, signals: broadcast::Sender<Arc<str>>) {
    use futures_util::StreamExt as _;
    loop {
        let mut messages = heard.on_message();
        while let Some(message) = messages.next().await {
            if let Ok(topic) = message.get_payload::<String>() {
                // Nobody may listen.
                drop(signals.send(topic.into()));
            }
        }
        drop(messages);
        heard = loop {
            tokio::time::sleep(LISTEN_AGAIN_AFTER).await;
            let Ok(mut again) = client.get_async_pubsub().await else { continue };
            if again.subscribe(&topic).await.is_ok() {
                break again;
            }
        };
    }
}

#[async_trait]
impl Ledger for RedisLedger {
    async fn own(&self, shard: &Shard, node: u64, seen: Option<(Token, u64)>) -> Result<Owning, LedgerError> {
        let (token, beat) = seen.map_or((String::new(), 0), |(token, beat)| (token_text(token), beat));
        let mut invocation = self.own.prepare_invoke();
        invocation.key(self.names.shard(shard)).arg(node).arg(token).arg(beat);
        let (what, token, number): (String, String, u64) = self.run("taking a shard", &invocation).await?;
        let token = token_of(&token).ok_or_else(|| unclear("taking a shard", format!("it answered {token:?}")))?;
        Ok(match what.as_str() {
            "owned" => Owning::Owned { token, seq: number },
            _ => Owning::Held { token, beat: number },
        })
    }

    async fn beat(&self, held: &[(Shard, Token)]) -> Result<Beats, LedgerError> {
        let mut invocation = self.beat.prepare_invoke();
        for (shard, token) in held {
            invocation.key(self.names.shard(shard)).arg(token_text(*token));
        }
        let answer: Vec<u64> = self.run("beating", &invocation).await?;
        let [seconds, micros, standing @ ..] = answer.as_slice() else {
            return Err(unclear("beating", format!("it answered {answer:?}")));
        };
        let standing = standing.iter().map(|stands| *stands == 1).collect();
        Ok(Beats { time_us: Some(seconds * 1_000_000 + micros), standing })
    }

    async fn release(&self, shard: &Shard, token: Token) -> Result<(), LedgerError> {
        let mut invocation = self.release.prepare_invoke();
        invocation.key(self.names.shard(shard)).arg(token_text(token));
        self.run("releasing a shard", &invocation).await
    }

    async fn write(&self, groups: &[Group], room: Room) -> Result<Vec<Applied>, LedgerError> {
        let mut applied = Vec::with_capacity(groups.len());
        for group in groups {
            applied.push(self.write_one(group, room).await?);
        }
        Ok(applied)
    }

    async fn read(&self, table: Table, keys: &[Key]) -> Result<Vec<Option<Bytes>>, LedgerError> {
        let keys: Vec<Vec<u8>> = keys.iter().map(Key::to_vec).collect();
        let found = self.values(table, &keys).await?;
        Ok(found.into_iter().map(|value| value.map(Bytes::from)).collect())
    }

    async fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError> {
        let (is_up, mut from) = match scan {
            Scan::UpFrom(key) => (true, [b"[", key].concat()),
            Scan::DownFrom(Some(key)) => (false, [b"(", key].concat()),
            Scan::DownFrom(None) => (false, b"+".to_vec()),
        };
        let mut found = Rows::default();
        loop {
            let keys = self.keys(table, is_up, &from, rows).await?;
            for some in keys.chunks(VALUES_AT_ONCE) {
                for (key, value) in some.iter().zip(self.values(table, some).await?) {
                    // One without a value was removed between the two looks.
                    if value.is_some_and(|value| !found.push(key, &value, rows, bytes)) {
                        return Ok(found);
                    }
                }
            }
            match keys.last() {
                // All of them were removed meanwhile, and there are more.
                Some(last) if found.is_empty() && keys.len() > rows => from = [b"(", &**last].concat(),
                _ => return Ok(found),
            }
        }
    }

    async fn inbox(&self, shard: &Shard, entries: usize, bytes: usize) -> Result<Vec<InboxEntry>, LedgerError> {
        let mut command = Cmd::new();
        command.arg("XRANGE").arg(self.names.inbox(shard)).arg("-").arg("+").arg("COUNT").arg(entries.min(1 << 30));
        let reply: StreamRangeReply = self.ask("reading the inbox", &command).await?;
        let (mut found, mut size): (Vec<InboxEntry>, usize) = (Vec::new(), 0);
        for entry in reply.ids {
            let Some((id, value)) = entry_of(&entry) else { continue };
            if !found.is_empty() && size >= bytes {
                break;
            }
            size += value.len();
            found.push(InboxEntry { id, bytes: value.into() });
        }
        Ok(found)
    }

    async fn signal(&self, topic: &str) -> Result<(), LedgerError> {
        let mut command = Cmd::new();
        command.arg("PUBLISH").arg(self.names.signals()).arg(topic);
        self.ask::<redis::Value>("signalling", &command).await.map(drop)
    }

    fn listen(&self) -> broadcast::Receiver<Arc<str>> {
        self.signals.subscribe()
    }

    fn health(&self) -> Health {
        Health { kind: "redis", durability: "what the server's AOF setting gives", free_bytes: None }
    }
}

fn entry_of(entry: &redis::streams::StreamId) -> Option<(EntryId, Vec<u8>)> {
    let (high, low) = entry.id.split_once('-')?;
    Some((EntryId(high.parse().ok()?, low.parse().ok()?), entry.get("entry")?))
}
