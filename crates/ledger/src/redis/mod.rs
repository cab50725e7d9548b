//! The ledger on a Redis server, for any number of processes.
//! Invariant: a group is one script that compares fences and applies; what was not answered is `Unclear`, and is never sent
//! again by this module. Replicas are not read.
//! Never: knows a rule; its scripts compare, put and remove.
//!
//! # Layout
//! - `address`: where the server is found; `connection`: connections to it, for ever; `pubsub`: the one that listens
//! - `server_info`: whether it is fit, and how full it is; `incarnation`: whether it is still the same
//! - `script`: calling a script; `arguments`: what a group's script is given; `scan`: rows in order
//! - `error`: what an error says of what happened
//!
//! # Layout at rest
//! | key | what |
//! |---|---|
//! | `<prefix>:incarnation` | the mark of the data: another one once the server was emptied |
//! | `<prefix>:table:<name>` | a hash: keys and values of a table |
//! | `<prefix>:index:<name>` | a sorted set of its keys, for scans; not for a table that is never scanned |
//! | `<prefix>:shard:<name>` | a hash: token, beat, epoch, number of the last group and what became of its units |
//! | `<prefix>:inbox:<name>` | a stream: what was appended for a shard |

mod address;
mod arguments;
mod connection;
mod error;
mod incarnation;
mod pubsub;
mod scan;
mod script;
mod server_info;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use redis::streams::StreamRangeReply;
use redis::{Cmd, FromRedisValue, RedisError, Value};
use tokio::sync::broadcast;
use tokio::task::JoinSet;

pub use self::address::{BadUrl, check_url, without_password};
pub use self::error::RedisOpenError;
pub use self::server_info::{ServerInfo, Unfit, server_info};

use self::arguments::{Names, arguments, token_of, token_text};
use self::connection::Connections;
use self::error::{failed, unclear};
use self::pubsub::Listener;
use self::script::Which;
use crate::group::{Applied, EntryId, Group, Key, Room, Verdict};
use crate::rows::{InboxEntry, Rows, Scan};
use crate::{Beats, Health, Ledger, LedgerError, Owning, SIGNALS_MAX, Shard, Table, Token};

/// How a ledger on Redis is set up.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    /// `redis://`, `rediss://` or `redis+sentinel://`, with user, password and database number as usual.
    pub url: String,
    /// What every key begins with; ledgers with different prefixes share a server without meeting.
    pub prefix: String,
    /// Whether a server is used that may lose or evict what it was given.
    pub allow_unsafe: bool,
}

/// Hashes, sorted sets and streams on a server.
pub struct RedisLedger {
    names: Names,
    /// The mark of the data that were opened.
    incarnation: String,
    connections: Arc<Connections>,
    info: Arc<Mutex<ServerInfo>>,
    signals: broadcast::Sender<Arc<str>>,
    /// They end with the ledger.
    _duties: JoinSet<()>,
}

impl RedisLedger {
    /// Connects, looks whether the server is fit to keep jobs, and recognises the data or begins them.
    pub async fn open(options: RedisOptions) -> Result<RedisLedger, RedisOpenError> {
        let RedisOptions { url, prefix, allow_unsafe } = options;
        let connections = Arc::new(Connections::open(&url).await?);
        let info = server_info::take(&connections.owners).await?;
        match allow_unsafe {
            true => info.warn_if_unfit(),
            false => info.check()?,
        }
        info.warn_of_failovers(connections.owners.address().has_sentinels());
        let names = Names::new(&prefix);
        let incarnation = incarnation::find_or_begin(&connections.owners, &names, &info).await?;
        let signals = broadcast::Sender::new(SIGNALS_MAX);
        let listener = Listener::open(&url, names.signals()).await?;
        let info = Arc::new(Mutex::new(info));
        let mut duties = JoinSet::new();
        duties.spawn(connection::keep(connections.clone()));
        duties.spawn(server_info::watch(connections.clone(), info.clone()));
        duties.spawn(listener.run(connections.clone(), signals.clone()));
        Ok(RedisLedger { names, incarnation, connections, info, signals, _duties: duties })
    }

    fn gone(&self, doing: &'static str) -> LedgerError {
        incarnation::gone(doing, self.connections.address())
    }

    async fn write_one(&self, group: &Group, room: Room) -> Result<Applied, LedgerError> {
        let which = match room {
            Room::New => Which::Write,
            Room::Must => Which::WriteAlways,
        };
        let mut command = script::call(which, 0);
        arguments(&self.names, &self.incarnation, group, &mut |argument| {
            command.arg(argument);
        });
        let answer: Vec<Value> = answered("writing", self.connections.writes.run(&command).await)?;
        let (what, said, seq): (String, String, Option<u64>) = match answer.as_slice() {
            [what, said] => (text(what)?, text(said)?, None),
            [what, said, seq] => (text(what)?, text(said)?, Some(text(seq)?.parse().unwrap_or(0))),
            other => return Err(unclear("writing", format!("it answered {other:?}"))),
        };
        Ok(match what.as_str() {
            "gone" => return Err(self.gone("writing")),
            "applied" => Applied::Applied(verdicts(&said)),
            "fenced" => Applied::Fenced(Shard::new(&said)),
            _ => Applied::Rewound(Shard::new(&said), seq.unwrap_or_default()),
        })
    }
}

/// What an answer says, if it is one.
fn answered<T: FromRedisValue>(doing: &'static str, answer: Result<Value, RedisError>) -> Result<T, LedgerError> {
    let answer = answer.map_err(|error| failed(doing, &error))?;
    T::from_redis_value(answer).map_err(|error| unclear(doing, error))
}

fn text(value: &Value) -> Result<String, LedgerError> {
    match value {
        Value::Int(number) => Ok(number.to_string()),
        value => String::from_redis_value_ref(value).map_err(|error| unclear("writing", error)),
    }
}

fn verdicts(said: &str) -> Vec<Verdict> {
    let verdict = |word: &str| word.parse().map_or(Verdict::Done, Verdict::Not);
    said.split(',').filter(|word| !word.is_empty()).map(verdict).collect()
}

#[async_trait]
impl Ledger for RedisLedger {
    async fn own(&self, shard: &Shard, node: u64, seen: Option<(Token, u64)>) -> Result<Owning, LedgerError> {
        let (token, beat) = seen.map_or((String::new(), 0), |(token, beat)| (token_text(token), beat));
        let mut command = script::call(Which::Own, 2);
        command.arg(self.names.shard(shard)).arg(self.names.incarnation());
        command.arg(node).arg(token).arg(beat).arg(&self.incarnation);
        let answer = self.connections.owners.run(&command).await;
        let (what, token, number): (String, String, u64) = answered("taking a shard", answer)?;
        if what == "gone" {
            return Err(self.gone("taking a shard"));
        }
        let token = token_of(&token).ok_or_else(|| unclear("taking a shard", format!("it answered {token:?}")))?;
        Ok(match what.as_str() {
            "owned" => Owning::Owned { token, seq: number },
            _ => Owning::Held { token, beat: number },
        })
    }

    async fn beat(&self, held: &[(Shard, Token)]) -> Result<Beats, LedgerError> {
        let mut command = script::call(Which::Beat, held.len() + 1);
        command.arg(self.names.incarnation());
        for (shard, _) in held {
            command.arg(self.names.shard(shard));
        }
        command.arg(&self.incarnation);
        for (_, token) in held {
            command.arg(token_text(*token));
        }
        let answer: Vec<u64> = answered("beating", self.connections.owners.run(&command).await)?;
        match answer.as_slice() {
            [seconds, micros, standing @ ..] => Ok(Beats {
                time_us: Some(seconds * 1_000_000 + micros),
                standing: standing.iter().map(|stands| *stands == 1).collect(),
            }),
            _ => Err(self.gone("beating")),
        }
    }

    async fn release(&self, shard: &Shard, token: Token) -> Result<(), LedgerError> {
        let mut command = script::call(Which::Release, 1);
        command.arg(self.names.shard(shard)).arg(token_text(token));
        answered("releasing a shard", self.connections.owners.run(&command).await)
    }

    async fn write(&self, groups: &[Group], room: Room) -> Result<Vec<Applied>, LedgerError> {
        let mut applied = Vec::with_capacity(groups.len());
        for group in groups {
            applied.push(self.write_one(group, room).await?);
        }
        Ok(applied)
    }

    async fn read(&self, table: Table, keys: &[Key]) -> Result<Vec<Option<Bytes>>, LedgerError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("HMGET");
        command.arg(self.names.table(table));
        for key in keys {
            key.with(|key| {
                command.arg(key);
            });
        }
        let found: Vec<Option<Vec<u8>>> = answered("reading", self.connections.reads.call(&command).await)?;
        Ok(found.into_iter().map(|value| value.map(Bytes::from)).collect())
    }

    async fn scan(&self, table: Table, scan: Scan<'_>, rows: usize, bytes: usize) -> Result<Rows, LedgerError> {
        self.scan_rows(table, scan, rows, bytes).await
    }

    async fn inbox(&self, shard: &Shard, entries: usize, bytes: usize) -> Result<Vec<InboxEntry>, LedgerError> {
        let mut command = Cmd::new();
        command.arg("XRANGE").arg(self.names.inbox(shard)).arg("-").arg("+").arg("COUNT").arg(entries.min(1 << 30));
        let reply: StreamRangeReply = answered("reading the inbox", self.connections.reads.call(&command).await)?;
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
        answered::<Value>("signalling", self.connections.owners.call(&command).await).map(drop)
    }

    fn listen(&self) -> broadcast::Receiver<Arc<str>> {
        self.signals.subscribe()
    }

    fn health(&self) -> Health {
        let info = self.info.lock();
        Health {
            damaged: 0,
            reserved_bytes: 0,
            kind: "redis",
            durability: info.durability(),
            free_bytes: None,
            memory: Some(info.memory()),
            trouble: self.connections.trouble(),
            server: Some(info.version.clone()),
        }
    }
}

fn entry_of(entry: &redis::streams::StreamId) -> Option<(EntryId, Vec<u8>)> {
    let (high, low) = entry.id.split_once('-')?;
    Some((EntryId(high.parse().ok()?, low.parse().ok()?), entry.get("entry")?))
}
