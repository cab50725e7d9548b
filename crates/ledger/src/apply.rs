//! Judging groups: which of their operations take effect, where one process has the ledger to itself.
//! Invariant: units are judged in order, each after those before it, also before anything of them is written.
//! Never: writes.

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::Bytes;

use crate::group::{Applied, Group, Key, Op, Unit, Verdict};
use crate::shards::{Pass, Shards};
use crate::{LedgerError, Table};

/// Told of every row that changes, in order; without a value it is removed.
type Change<'a> = &'a mut dyn FnMut(Table, &Key, Option<&[u8]>);

/// Reads what is there before any of the groups.
type Look<'a> = &'a dyn Fn(Table, &Key) -> Result<Option<Bytes>, LedgerError>;

/// Judges groups one after the other, and says what becomes of each; entries of inboxes are rows of the table `inbox`.
/// After an error nothing of what changed may be written.
pub(crate) fn judge(
    shards: &mut Shards,
    groups: &[Group],
    inbox: Table,
    look: Look<'_>,
    change: Change<'_>,
) -> Result<Vec<Applied>, LedgerError> {
    let has_conditions = groups.iter().any(|group| group.units.iter().any(|unit| !unit.when.is_empty()));
    let mut pending = Pending { values: has_conditions.then(HashMap::new), inbox };
    let mut answers = Vec::with_capacity(groups.len());
    for Group { fences, units } in groups {
        let answer = match shards.check(fences) {
            Pass::Answer(answer) => answer,
            Pass::Next => {
                let mut verdicts = Vec::with_capacity(units.len());
                for unit in units {
                    verdicts.push(pending.judge_unit(shards, unit, look, change)?);
                }
                shards.advance(fences, &verdicts);
                Applied::Applied(verdicts)
            }
        };
        answers.push(answer);
    }
    Ok(answers)
}

/// Values by table and key; none where one was removed.
type Values<'a> = HashMap<(Table, Cow<'a, Key>), Option<&'a [u8]>>;

/// What takes effect so far.
struct Pending<'a> {
    /// Where anybody looks.
    values: Option<Values<'a>>,
    inbox: Table,
}

impl<'a> Pending<'a> {
    fn judge_unit(
        &mut self,
        shards: &mut Shards,
        unit: &'a Unit,
        look: Look<'_>,
        change: Change<'_>,
    ) -> Result<Verdict, LedgerError> {
        for (place, when) in unit.when.iter().enumerate() {
            let known = self.values.as_ref().and_then(|values| values.get(&(when.table, Cow::Borrowed(&when.key))));
            let holds = match known {
                Some(value) => when.expect.holds(*value),
                None => when.expect.holds(look(when.table, &when.key)?.as_deref()),
            };
            if !holds {
                return Ok(Verdict::Not(place));
            }
        }
        for op in &unit.ops {
            let (table, key, value): (Table, Cow<'a, Key>, Option<&'a [u8]>) = match op {
                Op::Put(table, key, value) => (*table, Cow::Borrowed(key), Some(value)),
                Op::Remove(table, key) => (*table, Cow::Borrowed(key), None),
                Op::Append(shard, bytes) => {
                    let key = shards.next_entry().key(shard);
                    (self.inbox, Cow::Owned(key), Some(bytes))
                }
                Op::Take(shard, id) => (self.inbox, Cow::Owned(id.key(shard)), None),
            };
            change(table, &key, value);
            if let Some(values) = &mut self.values {
                values.insert((table, key), value);
            }
        }
        Ok(Verdict::Done)
    }
}
