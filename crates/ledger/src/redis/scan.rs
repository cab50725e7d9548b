//! Scans: keys from the index, then their values.
//! Invariant: no call asks for more than some thousand keys, so that none holds the server up; values are asked for in as
//! few rounds as the limit of bytes allows.

use redis::{Cmd, Value};

use super::RedisLedger;
use super::error::{failed, unclear};
use crate::rows::{Rows, Scan};
use crate::{LedgerError, Table};

/// Keys that one call asks for.
const KEYS_AT_ONCE: usize = 4096;
/// Values that one call asks for.
const VALUES_AT_ONCE: usize = 128;

/// Values that the first round asks for, before it is known how large they are, and each round at least.
const VALUES_AT_FIRST: usize = 32;
const VALUES_MIN: usize = 8;
/// About how many bytes of values are asked for in one round, going by the rows before.
const BYTES_AT_ONCE: usize = 4 << 20;

/// Where a scan stands.
struct Place {
    is_up: bool,
    from: Vec<u8>,
}

impl Place {
    fn of(scan: Scan<'_>) -> Place {
        let (is_up, from) = match scan {
            Scan::UpFrom(key) => (true, [b"[", key].concat()),
            Scan::DownFrom(Some(key)) => (false, [b"(", key].concat()),
            Scan::DownFrom(None) => (false, b"+".to_vec()),
        };
        Place { is_up, from }
    }

    fn keys(&self, index: &str, count: usize) -> Cmd {
        let (verb, to) = if self.is_up { ("ZRANGEBYLEX", "+") } else { ("ZREVRANGEBYLEX", "-") };
        let mut command = redis::cmd(verb);
        command.arg(index).arg(&self.from).arg(to).arg("LIMIT").arg(0).arg(count);
        command
    }
}

impl RedisLedger {
    pub(super) async fn scan_rows(
        &self,
        table: Table,
        scan: Scan<'_>,
        rows: usize,
        bytes: usize,
    ) -> Result<Rows, LedgerError> {
        if !table.scanned {
            let reason = format!("the table {} is kept without an order", table.name);
            return Err(LedgerError::Bad { doing: "scanning", reason });
        }
        let mut place = Place::of(scan);
        let (hash, index) = (self.names.table(table), self.names.index(table));
        let mut found = Rows::default();
        loop {
            // One more, to know whether there is one.
            let count = rows.saturating_sub(found.len()).saturating_add(1).min(KEYS_AT_ONCE);
            let answer = self.connections.reads.call(&place.keys(&index, count)).await;
            let keys = array(answer.map_err(|error| failed("scanning", &error))?)?;
            let is_full = self.push_values(&hash, &keys, &mut found, rows, bytes).await?;
            match keys.last() {
                Some(Value::BulkString(last)) if !is_full && keys.len() == count => {
                    place.from = [b"(", &**last].concat()
                }
                _ => return Ok(found),
            }
        }
    }

    /// Adds the rows of these keys; `true` once there are enough. One without a value was removed between the two looks.
    async fn push_values(
        &self,
        hash: &str,
        keys: &[Value],
        found: &mut Rows,
        rows: usize,
        bytes: usize,
    ) -> Result<bool, LedgerError> {
        let (mut at, mut window) = (0, VALUES_AT_FIRST);
        while at < keys.len() {
            let some = &keys[at..keys.len().min(at + window)];
            let mut commands = redis::Pipeline::with_capacity(some.len().div_ceil(VALUES_AT_ONCE));
            for piece in some.chunks(VALUES_AT_ONCE) {
                let command = commands.cmd("HMGET").arg(hash);
                for key in piece.iter().filter_map(bulk) {
                    command.arg(key);
                }
            }
            let answers = self.connections.reads.call_all(&commands).await;
            let answers = answers.map_err(|error| failed("scanning", &error))?;
            let values = answers.into_iter().map(array).collect::<Result<Vec<_>, _>>()?;
            for (key, value) in some.iter().filter_map(bulk).zip(values.iter().flatten()) {
                if let Some(value) = bulk(value)
                    && !found.push(key, value, rows, bytes)
                {
                    return Ok(true);
                }
            }
            at += some.len();
            let row_bytes = (found.size() / found.len().max(1)).max(1);
            let bytes_left = bytes.saturating_sub(found.size()).min(BYTES_AT_ONCE);
            window = (bytes_left / row_bytes).clamp(VALUES_MIN, KEYS_AT_ONCE);
        }
        Ok(false)
    }
}

fn bulk(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

fn array(answer: Value) -> Result<Vec<Value>, LedgerError> {
    match answer {
        Value::Array(values) => Ok(values),
        other => Err(unclear("scanning", format!("it answered {other:?}"))),
    }
}
