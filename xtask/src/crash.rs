//! Killing again and again: what is killed, over which store, and which test does it.
//! Invariant: a combination that makes no sense is refused before anything is built.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};

/// The most nodes that share a machine here.
const NODES_MAX: u64 = 16;

#[derive(Args)]
pub(crate) struct CrashArgs {
    /// How many times to kill
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    cycles: u32,
    /// Over which store; for Redis, a redis-server of its own is started that syncs every write
    #[arg(long, value_enum, default_value_t = Store::Embedded)]
    store: Store,
    /// How many nodes share the Redis; 2 if left out
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=NODES_MAX))]
    nodes: Option<u64>,
    /// What is killed; with the embedded store there is only the gateway
    #[arg(long, value_enum, default_value_t = Victim::Ours)]
    kill: Victim,
    /// Kill while 500 dead letters are replayed, instead of while jobs come in; embedded store only
    #[arg(long)]
    replays: bool,
    /// The moments of an earlier run, which printed it
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Store {
    Embedded,
    Redis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Victim {
    /// A node of the gateway
    Ours,
    /// redis-server
    Theirs,
    /// A node and redis-server at once
    Both,
}

/// Optimized: the faster it is, the more is under way at a kill.
pub(crate) fn run(args: &CrashArgs) -> Result<()> {
    let mut command =
        crate::cargo(&["test", "-p", "entrega-gateway", "--release", "--locked", "--test", "process", "--"]);
    command.args(["--nocapture", "--exact", &format!("crash::{}", test(args)?)]);
    command.env("ENTREGA_CRASH_CYCLES", args.cycles.to_string());
    command.envs(args.nodes.map(|nodes| ("ENTREGA_CRASH_NODES", nodes.to_string())));
    command.envs(args.seed.map(|seed| ("ENTREGA_CRASH_SEED", seed.to_string())));
    crate::stream(command)
}

/// The test that does it.
fn test(args: &CrashArgs) -> Result<&'static str> {
    if args.replays {
        return match (args.store, args.kill) {
            (Store::Embedded, Victim::Ours) => {
                Ok("replays::an_interrupted_replay_leaves_nothing_behind_and_counts_each_once")
            }
            _ => bail!("--replays kills a gateway over the embedded store; leave --store and --kill out"),
        };
    }
    match (args.store, args.kill, args.nodes) {
        (Store::Embedded, Victim::Ours, None | Some(1)) => Ok("embedded::every_accepted_job_survives_kill_9"),
        (Store::Embedded, Victim::Ours, Some(nodes)) => {
            bail!("the embedded store belongs to one process; for {nodes} nodes, give --store redis")
        }
        (Store::Embedded, ..) => bail!("with the embedded store there is no Redis to kill; give --store redis"),
        (Store::Redis, Victim::Ours, _) => Ok("shared::whichever_node_is_killed_nothing_is_lost"),
        (Store::Redis, Victim::Theirs, _) => Ok("shared::redis_killed_again_and_again_loses_nothing"),
        (Store::Redis, Victim::Both, _) => Ok("shared::a_node_and_redis_killed_at_once_lose_nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(store: Store, kill: Victim, nodes: Option<u64>) -> CrashArgs {
        CrashArgs { cycles: 1, store, nodes, kill, replays: false, seed: None }
    }

    #[test]
    fn what_cannot_be_killed_is_refused_with_what_would_be_right() {
        for (kill, nodes) in [(Victim::Theirs, None), (Victim::Both, Some(1)), (Victim::Ours, Some(2))] {
            let refused = test(&args(Store::Embedded, kill, nodes)).unwrap_err().to_string();
            assert!(refused.contains("--store redis"), "{kill:?} {nodes:?}: {refused}");
        }
    }

    /// Asked for a test that is not there, cargo runs none and is content.
    #[test]
    fn every_test_that_it_asks_for_is_there() {
        let redis = Victim::value_variants().iter().map(|kill| args(Store::Redis, *kill, Some(3)));
        for args in redis.chain([args(Store::Embedded, Victim::Ours, None)]) {
            let (module, name) = test(&args).unwrap().split_once("::").unwrap();
            let path = crate::root().join(format!("crates/gateway/tests/process/crash/{module}.rs"));
            let source = std::fs::read_to_string(path).unwrap();
            assert!(source.contains(&format!("async fn {name}()")), "{module} has no test {name}");
        }
    }
}
