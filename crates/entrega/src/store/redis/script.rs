//! Calling a script: which there are, and what every call carries.
//! Invariant: scripts are loaded with every connection; a server that forgot one is given it again.

use std::sync::LazyLock;

use entrega_core::time::Time;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, Script, ServerErrorKind, ToRedisArgs, Value};

use super::link::Line;
use super::schema::LaneKeys;
use super::{LaneCell, Shared, TimeOf};

/// The rules, before every verb of a lane.
const LANE: &str = concat!(
    include_str!("lua/lane/head.lua"),
    include_str!("lua/lane/state.lua"),
    include_str!("lua/lane/entries.lua"),
    include_str!("lua/lane/gates.lua"),
    include_str!("lua/lane/turns.lua"),
    include_str!("lua/lane/moves.lua"),
    include_str!("lua/lane/dead.lua"),
    include_str!("lua/lane/writing.lua"),
);

/// What stands before a verb that belongs to no lane.
const MOMENT: &str = include_str!("lua/moment.lua");

/// The verbs. Only what is new is refused by a server whose memory is full; the rest makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Submit,
    /// A submission that must get in, also into a full server: what it holds was accepted before.
    PutIn,
    Turn,
    Extend,
    Change,
    Look,
    List,
    Figures,
    Sweep,
    Once,
    Mail,
    /// What needs no room.
    MailAlways,
    Endpoint,
    Gate,
    Request,
    /// What needs no room.
    RequestAlways,
}

const VERBS: [(Verb, &str, &str, &str); 16] = [
    (Verb::Submit, "#!lua\n", LANE, include_str!("lua/submit.lua")),
    (Verb::PutIn, "#!lua flags=allow-oom\n", LANE, include_str!("lua/submit.lua")),
    (Verb::Turn, "#!lua flags=allow-oom\n", LANE, include_str!("lua/turn.lua")),
    (Verb::Extend, "#!lua flags=allow-oom\n", LANE, include_str!("lua/extend.lua")),
    (Verb::Change, "#!lua flags=allow-oom\n", LANE, include_str!("lua/change.lua")),
    (Verb::Look, "#!lua flags=no-writes\n", LANE, include_str!("lua/look.lua")),
    (Verb::List, "#!lua flags=no-writes\n", LANE, include_str!("lua/list.lua")),
    (Verb::Figures, "#!lua flags=no-writes\n", LANE, include_str!("lua/figures.lua")),
    (Verb::Sweep, "#!lua flags=allow-oom\n", LANE, include_str!("lua/sweep.lua")),
    (Verb::Once, "#!lua flags=no-writes\n", MOMENT, include_str!("lua/once.lua")),
    (Verb::Mail, "#!lua\n", MOMENT, include_str!("lua/mail.lua")),
    (Verb::MailAlways, "#!lua flags=allow-oom\n", MOMENT, include_str!("lua/mail.lua")),
    (Verb::Endpoint, "#!lua flags=allow-oom\n", MOMENT, include_str!("lua/endpoint.lua")),
    (Verb::Gate, "#!lua flags=allow-oom\n", LANE, include_str!("lua/gate.lua")),
    (Verb::Request, "#!lua\n", MOMENT, include_str!("lua/request.lua")),
    (Verb::RequestAlways, "#!lua flags=allow-oom\n", MOMENT, include_str!("lua/request.lua")),
];

struct Loaded {
    source: String,
    hash: String,
}

static SCRIPTS: LazyLock<Vec<Loaded>> = LazyLock::new(|| {
    let load = |(_, flags, rules, verb): &(Verb, &str, &str, &str)| {
        let source = format!("{flags}{rules}{verb}");
        let hash = Script::new(&source).get_hash().to_owned();
        Loaded { source, hash }
    };
    VERBS.iter().map(load).collect()
});

fn loaded(verb: Verb) -> &'static Loaded {
    &SCRIPTS[verb as usize]
}

/// Gives the server all scripts.
pub(super) async fn load_all(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    for script in SCRIPTS.iter() {
        redis::cmd("SCRIPT").arg("LOAD").arg(&script.source).query_async::<Value>(connection).await?;
    }
    Ok(())
}

/// A plain command that a server whose memory is full carries out as well: what makes room must not need room.
pub(super) fn even_when_full(words: &[&[u8]]) -> Cmd {
    const DO: &str = "#!lua flags=allow-oom\nreturn redis.call(unpack(ARGV))";
    let mut command = redis::cmd("EVAL");
    command.arg(DO).arg(0).arg(words);
    command
}

/// The moment as scripts are told it; 0 for the server's own.
fn moment(shared: &Shared, now: Time) -> u64 {
    match shared.options.time_of {
        TimeOf::Server => 0,
        TimeOf::Node => now.as_micros(),
    }
}

/// A call of a verb; the verb's own arguments follow.
pub(super) struct Call {
    verb: Verb,
    command: Cmd,
}

impl Call {
    /// Of a verb on a lane.
    pub(super) fn new(shared: &Shared, lane: &LaneCell, verb: Verb) -> Call {
        Call::on(shared, &lane.keys, verb)
    }

    /// Of a verb on a lane that may have no dispatcher.
    pub(super) fn on(shared: &Shared, lane: &LaneKeys, verb: Verb) -> Call {
        let now = shared.clock.now();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&loaded(verb).hash).arg(1).arg(&lane.prefix);
        command.arg(moment(shared, now)).arg(now.as_micros()).arg(&lane.policy);
        Call { verb, command }
    }

    /// Of a verb that belongs to no lane.
    pub(super) fn without_lane(shared: &Shared, verb: Verb) -> Call {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&loaded(verb).hash).arg(0).arg(moment(shared, shared.clock.now()));
        Call { verb, command }
    }

    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Call {
        self.command.arg(argument);
        self
    }

    /// Makes the call; an error says nothing about whether it took effect.
    pub(super) async fn make(self, shared: &Shared) -> Result<Value, RedisError> {
        let line = shared.link.ready().await?;
        self.make_on(shared, line).await
    }

    /// Makes the call on this connection, or not at all.
    pub(super) async fn make_on(self, shared: &Shared, line: Line) -> Result<Value, RedisError> {
        match shared.link.call_on(line, &self.command).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let load = redis::cmd("SCRIPT").arg("LOAD").arg(&loaded(self.verb).source).to_owned();
                shared.link.call(&load).await?;
                shared.link.call(&self.command).await
            }
            answer => answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_verb_finds_its_script() {
        for (verb, _, _, source) in VERBS {
            assert!(loaded(verb).source.ends_with(source), "{verb:?}");
        }
    }
}
