//! The mark of the data: the same for as long as the data are, and another once the server was emptied.
//! Invariant: whoever has opened the ledger goes on only with the data it has opened; those that come after a `FLUSHALL`,
//! or that an empty server was put in the place of, have another mark or none.

use super::arguments::Names;
use super::connection::Connection;
use super::error::RedisOpenError;
use super::server_info::{ServerInfo, time_us};
use crate::LedgerError;

/// The mark of the data under this prefix; an empty prefix is given one.
pub(super) async fn find_or_begin(
    connection: &Connection,
    names: &Names,
    info: &ServerInfo,
) -> Result<String, RedisOpenError> {
    let failed = |error| connection.unusable(error);
    let old: bool = {
        let answer = connection.call(redis::cmd("EXISTS").arg(names.older_registry())).await.map_err(failed)?;
        redis::from_redis_value(answer).map_err(|error| connection.unusable(error))?
    };
    if old {
        let address = connection.address().shown().to_owned();
        return Err(RedisOpenError::OlderData { address, prefix: names.prefix().to_owned() });
    }
    if let Some(found) = find(connection, names).await? {
        return Ok(found);
    }
    // No two are the same: a run of a server has a name of its own, and is never twice at the same microsecond.
    let mark = format!("{}-{}", info.run_id, time_us(connection).await?);
    let begun =
        connection.call(redis::cmd("SET").arg(names.incarnation()).arg(&mark).arg("NX")).await.map_err(failed)?;
    if begun == redis::Value::Okay {
        let store = connection.address().shown();
        tracing::info!(store, prefix = names.prefix(), "Redis holds nothing under this prefix; it is begun anew");
        return Ok(mark);
    }
    // Another node was faster.
    find(connection, names).await?.ok_or_else(|| connection.unusable("it was emptied at this moment"))
}

async fn find(connection: &Connection, names: &Names) -> Result<Option<String>, RedisOpenError> {
    let answer = connection.call(redis::cmd("GET").arg(names.incarnation())).await;
    let answer = answer.map_err(|error| connection.unusable(error))?;
    redis::from_redis_value(answer).map_err(|error| connection.unusable(error))
}

/// The data are not those that were opened.
pub(super) fn gone(doing: &'static str, address: &str) -> LedgerError {
    let reason = format!(
        "Redis at {address} was emptied or is another than before (its mark is gone); entrega stops so that nothing is \
         mixed up; start it again if that was meant"
    );
    LedgerError::Broken { doing, reason }
}
