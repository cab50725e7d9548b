//! Reading what a script says.
//! Invariant: an answer of another shape is an error that says what was asked, never a panic.

use entrega_core::id::JobId;
use entrega_core::name::TenantName;
use entrega_core::time::Time;
use redis::{FromRedisValue as _, Value};

use crate::store::StoreError;

/// What the scripts say for "never"; a Lua number holds no more.
pub(super) const FOREVER: u64 = (1 << 53) - 1;

/// A moment as the scripts take it.
pub(super) fn micros(time: Time) -> u64 {
    time.as_micros().min(FOREVER)
}

/// A moment as the scripts give it.
pub(super) fn time(micros: u64) -> Time {
    if micros >= FOREVER { Time::NEVER } else { Time::from_micros(micros) }
}

/// Reads an answer; knows what was asked.
#[derive(Clone, Copy)]
pub(super) struct Reader(pub(super) &'static str);

impl Reader {
    pub(super) fn wrong(self, reason: impl Into<String>) -> StoreError {
        StoreError::Answer { doing: self.0, reason: reason.into() }
    }

    pub(super) fn rows(self, value: Value) -> Result<Vec<Value>, StoreError> {
        match value {
            Value::Array(rows) => Ok(rows),
            other => Err(self.wrong(format!("{other:?} is no list"))),
        }
    }

    /// A list of exactly so many.
    pub(super) fn fields<const N: usize>(self, value: Value) -> Result<[Value; N], StoreError> {
        let rows = self.rows(value)?;
        let length = rows.len();
        rows.try_into().map_err(|_| self.wrong(format!("{length} fields instead of {N}")))
    }

    pub(super) fn number(self, value: &Value) -> Result<u64, StoreError> {
        u64::from_redis_value_ref(value).map_err(|error| self.wrong(error.to_string()))
    }

    /// `None` for a negative number.
    pub(super) fn moment(self, value: &Value) -> Result<Option<Time>, StoreError> {
        let number = i64::from_redis_value_ref(value).map_err(|error| self.wrong(error.to_string()))?;
        Ok(u64::try_from(number).ok().map(time))
    }

    pub(super) fn small<T: TryFrom<u64>>(self, value: &Value) -> Result<T, StoreError> {
        let number = self.number(value)?;
        T::try_from(number).map_err(|_| self.wrong(format!("{number} is too large")))
    }

    pub(super) fn bytes(self, value: Value) -> Result<Option<Vec<u8>>, StoreError> {
        match value {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => Ok(Some(bytes)),
            Value::SimpleString(text) => Ok(Some(text.into_bytes())),
            Value::Okay => Ok(Some(b"OK".to_vec())),
            other => Err(self.wrong(format!("{other:?} is no text"))),
        }
    }

    pub(super) fn text(self, value: Value) -> Result<Option<String>, StoreError> {
        let bytes = self.bytes(value)?;
        bytes.map(|bytes| String::from_utf8(bytes).map_err(|error| self.wrong(error.to_string()))).transpose()
    }

    pub(super) fn word(self, value: Value) -> Result<String, StoreError> {
        self.text(value)?.ok_or_else(|| self.wrong("a text is missing"))
    }

    pub(super) fn id(self, value: Value) -> Result<JobId, StoreError> {
        let bytes = self.bytes(value)?.unwrap_or_default();
        let length = bytes.len();
        let id = <[u8; 16]>::try_from(bytes).map(JobId::from_bytes);
        id.map_err(|_| self.wrong(format!("an id of {length} bytes")))
    }

    pub(super) fn ids(self, value: Value) -> Result<Vec<JobId>, StoreError> {
        self.rows(value)?.into_iter().map(|row| self.id(row)).collect()
    }

    /// A name that keeps the rules for its kind.
    pub(super) fn tenant(self, value: Value) -> Result<TenantName, StoreError> {
        TenantName::kept(&self.word(value)?).map_err(|error| self.wrong(error.to_string()))
    }
}

/// Reads packed fields, as `struct.pack` of Lua writes them.
pub(super) struct Packed<'a>(pub(super) &'a [u8]);

impl<'a> Packed<'a> {
    pub(super) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn number(&mut self) -> Option<f64> {
        Some(f64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(super) fn moment(&mut self) -> Option<Time> {
        self.number().map(|number| time(number as u64))
    }

    /// A text after its length in one byte.
    pub(super) fn short_text(&mut self) -> Option<String> {
        let length = self.take(1)?[0].into();
        String::from_utf8(self.take(length)?.to_vec()).ok()
    }

    /// A text after its length in two bytes.
    pub(super) fn text(&mut self) -> Option<String> {
        let length = u16::from_be_bytes(self.take(2)?.try_into().ok()?).into();
        Some(String::from_utf8_lossy(self.take(length)?).into_owned())
    }
}
