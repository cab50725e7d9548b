//! Connections to the server, for ever.
//! Invariant: one connection for each kind of call, so that a beat never waits behind the rows of a scan; calls of one kind
//! reach the server in the order they were made. A connection that breaks is made again with backoff until that succeeds.
//! Never: repeats a call that may have taken effect; only the caller knows whether that is safe.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::watch;

use super::address::Address;
use super::error::{RedisOpenError, is_cut, is_over};
use super::script;

/// For the handshake.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For finding the server and the handshake; a sentinel may be gone, and the next one is asked.
const FIND_TIMEOUT: Duration = Duration::from_secs(10);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How long things may take on a connection.
#[derive(Clone, Copy)]
struct Limits {
    /// How long a call waits for a connection before it gives up: a restart of the server is shorter.
    patience: Duration,
    /// For one answer; a server that is slower is as good as gone.
    answer: Duration,
}

const DATA: Limits = Limits { patience: Duration::from_secs(3), answer: Duration::from_secs(5) };
/// Who cannot show in time that it lives has lost its shards.
const OWNERSHIP: Limits = Limits { patience: Duration::from_secs(2), answer: Duration::from_secs(2) };

/// A connection, if there is one, and how many came before it.
#[derive(Clone)]
struct Line {
    number: u64,
    connection: Option<MultiplexedConnection>,
    /// Whether the server hung up, so that the other connections are of no use either.
    is_cut: bool,
}

/// One way to the server.
pub(super) struct Connection {
    address: Address,
    limits: Limits,
    line: watch::Sender<Line>,
    last_error: Mutex<String>,
}

impl Connection {
    /// Connects once; a server that cannot be reached at the start is a mistake in the configuration.
    async fn open(url: &str, limits: Limits) -> Result<Connection, RedisOpenError> {
        let connection = Connection {
            address: Address::read(url)?,
            limits,
            line: watch::Sender::new(Line { number: 0, connection: None, is_cut: false }),
            last_error: Mutex::new("not connected yet".into()),
        };
        let made = connection.connect().await;
        let made =
            made.map_err(|error| connection.unusable(format!("{error}; is it running, and is the address right?")))?;
        connection.line.send_replace(Line { number: 1, connection: Some(made), is_cut: false });
        Ok(connection)
    }

    /// For looks at a server that is not used.
    pub(super) async fn open_once(url: &str) -> Result<Connection, RedisOpenError> {
        Connection::open(url, DATA).await
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn unusable(&self, reason: impl ToString) -> RedisOpenError {
        RedisOpenError::Connect { address: self.address.shown().to_owned(), reason: reason.to_string() }
    }

    /// Why there is no connection, if there is none.
    fn trouble(&self) -> Option<String> {
        let is_up = self.line.borrow().connection.is_some();
        (!is_up).then(|| format!("{}: {}", self.address.shown(), self.last_error.lock()))
    }

    /// The number of the present connection.
    pub(super) fn number(&self) -> u64 {
        self.line.borrow().number
    }

    /// Resolves when the connection is another than the one of this number.
    pub(super) async fn renewed(&self, number: u64) {
        // Closed never: this holds the sender.
        drop(self.line.subscribe().wait_for(|line| line.number != number && line.connection.is_some()).await);
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        match tokio::time::timeout(FIND_TIMEOUT, self.find_and_connect()).await {
            Ok(made) => made,
            Err(_) => Err(RedisError::from((ErrorKind::Io, "no answer in time"))),
        }
    }

    async fn find_and_connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(self.limits.answer));
        let client = self.address.client().await?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let role: Value = redis::cmd("ROLE").query_async(&mut connection).await?;
        let is_master = |words: &[Value]| words.first() == Some(&Value::BulkString(b"master".to_vec()));
        if !matches!(&role, Value::Array(words) if is_master(words)) {
            return Err(RedisError::from((ErrorKind::Client, "this server is a replica: it takes no writes")));
        }
        script::load_all(&mut connection).await?;
        Ok(connection)
    }

    /// One call. Waits a while for a connection; an error says nothing about whether the call took effect.
    pub(super) async fn call(&self, command: &Cmd) -> Result<Value, RedisError> {
        let (number, mut connection) = self.ready().await?;
        let answer = command.query_async(&mut connection).await;
        self.noted(number, answer)
    }

    /// One call of a script. A server that does not know it has done nothing, and is given it.
    pub(super) async fn run(&self, command: &Cmd) -> Result<Value, RedisError> {
        let (number, mut connection) = self.ready().await?;
        let mut answer = command.query_async(&mut connection).await;
        if matches!(&answer, Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)) {
            answer = match script::load_all(&mut connection).await {
                Ok(()) => command.query_async(&mut connection).await,
                Err(error) => Err(error),
            };
        }
        self.noted(number, answer)
    }

    /// Calls that are sent together, and their answers.
    pub(super) async fn call_all(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let (number, mut connection) = self.ready().await?;
        let answer = commands.query_async(&mut connection).await;
        self.noted(number, answer)
    }

    /// Waits a while for a connection.
    async fn ready(&self) -> Result<(u64, MultiplexedConnection), RedisError> {
        let mut line = self.line.subscribe();
        let ready = tokio::time::timeout(self.limits.patience, line.wait_for(|line| line.connection.is_some())).await;
        let ready = ready.ok().and_then(Result::ok).and_then(|line| Some((line.number, line.connection.clone()?)));
        let not_connected = || RedisError::from((ErrorKind::Io, "not connected", self.last_error.lock().clone()));
        ready.ok_or_else(not_connected)
    }

    fn noted<T>(&self, number: u64, answer: Result<T, RedisError>) -> Result<T, RedisError> {
        if let Err(error) = &answer
            && is_over(error)
        {
            self.give_up(Some(number), &error.to_string(), is_cut(error));
        }
        answer
    }

    /// Marks a connection as broken, unless there is another already.
    fn give_up(&self, number: Option<u64>, reason: &str, is_cut: bool) {
        self.line.send_if_modified(|line| {
            let is_current = number.is_none_or(|number| line.number == number) && line.connection.is_some();
            if is_current {
                reason.clone_into(&mut self.last_error.lock());
                *line = Line { connection: None, is_cut, number: line.number };
            }
            is_current
        });
    }

    async fn reconnect(&self, number: u64) {
        let (mut wait, longest) = BACKOFF;
        loop {
            match self.connect().await {
                Ok(connection) => {
                    self.line.send_replace(Line { number, connection: Some(connection), is_cut: false });
                    return;
                }
                Err(error) => *self.last_error.lock() = error.to_string(),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(longest);
        }
    }
}

/// The ways to the server.
pub(super) struct Connections {
    pub(super) writes: Connection,
    pub(super) reads: Connection,
    /// Owners, beats, signals and looks at the server.
    pub(super) owners: Connection,
    /// How many are broken.
    broken: AtomicUsize,
}

impl Connections {
    pub(super) async fn open(url: &str) -> Result<Connections, RedisOpenError> {
        Ok(Connections {
            owners: Connection::open(url, OWNERSHIP).await?,
            writes: Connection::open(url, DATA).await?,
            reads: Connection::open(url, DATA).await?,
            broken: AtomicUsize::new(0),
        })
    }

    fn all(&self) -> [&Connection; 3] {
        [&self.writes, &self.reads, &self.owners]
    }

    pub(super) fn address(&self) -> &str {
        self.owners.address.shown()
    }

    /// Why the server cannot be reached, if so.
    pub(super) fn trouble(&self) -> Option<String> {
        self.all().into_iter().find_map(Connection::trouble)
    }

    /// The server has hung up: calls wait for new connections, instead of finding out one by one.
    pub(super) fn give_up_all(&self, reason: &str) {
        self.all().into_iter().for_each(|connection| connection.give_up(None, reason, false));
    }

    /// Makes one of the connections again whenever it breaks.
    async fn keep(&self, connection: &Connection) {
        let mut line = connection.line.subscribe();
        while let Ok(broken) = line.wait_for(|line| line.connection.is_none()).await.map(|line| line.clone()) {
            let (store, reason) = (self.address(), connection.last_error.lock().clone());
            if broken.is_cut {
                self.give_up_all(&reason);
            }
            if self.broken.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::warn!(store, errorReason = %reason, "Redis is gone; connecting again");
            }
            connection.reconnect(broken.number + 1).await;
            if self.broken.fetch_sub(1, Ordering::Relaxed) == 1 {
                tracing::info!(store, "Redis answers again");
            }
        }
    }
}

/// Makes connections again whenever they break.
pub(super) async fn keep(connections: Arc<Connections>) {
    let [writes, reads, owners] = connections.all().map(|connection| connections.keep(connection));
    tokio::join!(writes, reads, owners);
}
