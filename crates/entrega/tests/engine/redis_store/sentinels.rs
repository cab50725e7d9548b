//! Sentinel: the store finds whichever server is the master, and the next one when that is gone.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use entrega_core::decide::Transition;
use entrega_core::id::JobId;
use entrega_core::job::JobState;
use tempfile::TempDir;

use super::hearing::are_listening;
use super::world::{World, bounded, eventually, info, signal};
use crate::store::fixture::{Fixture, SECOND, lane};
use entrega_testkit::redis::{self, RedisServer};

const SERVICE: &str = "mymaster";
const DOWN_AFTER_MS: u64 = 1000;
/// To notice, to elect, to promote, to be found.
const FAILOVER_MAX: Duration = Duration::from_secs(15);
/// The answer of a server that stands still is waited for as well.
const SILENT_FAILOVER_MAX: Duration = Duration::from_secs(25);
const CLAIMED_WITHIN: Duration = Duration::from_secs(8);
const READY_WITHIN: Duration = Duration::from_secs(20);
const JOBS: usize = 20;

/// Kills the sentinel when whoever started it is gone.
const KEEPER: &str = r#"
redis-server "$1" --sentinel &
sentinel=$!
read -r word
kill -9 "$sentinel"
wait "$sentinel"
"#;

/// A master, its replica, and a sentinel that watches them.
pub(super) struct Watched {
    pub(super) master: RedisServer,
    pub(super) replica: RedisServer,
    port: u16,
    keeper: Child,
    folder: TempDir,
}

impl Watched {
    pub(super) async fn start() -> Watched {
        let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
        let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let config = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nlogfile sentinel.log\n\
             sentinel monitor {SERVICE} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {SERVICE} 10000\n",
            folder.path().display(),
            master.port()
        );
        let path = folder.path().join("sentinel.conf");
        std::fs::write(&path, config).unwrap();
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "sentinel-keeper", path.to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        let watched = Watched { master, replica, port, keeper, folder };
        let is_ready = async || {
            let known = watched.ask(&["REPLICAS", SERVICE])?;
            let is_known = known.contains(&watched.replica.port().to_string());
            let link = watched.replica.command(&["INFO", "replication"]);
            if is_known && link.contains("master_link_status:up") { Ok(()) } else { Err(format!("{known}\n{link}")) }
        };
        eventually(READY_WITHIN, "the sentinel knows both servers", is_ready).await;
        watched
    }

    /// A question to the sentinel.
    fn ask(&self, words: &[&str]) -> Result<String, String> {
        let words = [&["SENTINEL"], words].concat();
        let answer = redis::ask(self.port, &words).map_err(|error| error.to_string())?;
        if answer.starts_with('-') { Err(answer) } else { Ok(answer) }
    }

    pub(super) fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/{SERVICE}", self.port)
    }

    fn world(&self) -> World {
        let mut world = World::by_server(&self.master);
        world.server.url = self.url();
        world
    }

    /// Jobs that both servers have.
    async fn submit(&self, node: &Fixture) -> Vec<JobId> {
        let jobs: Vec<_> = (0..JOBS).map(|_| node.job("http", "acme")).collect();
        let ids = jobs.iter().map(|job| job.id).collect();
        node.submit_all(jobs).await;
        self.is_copied().await;
        ids
    }

    /// Both servers have everything.
    pub(super) async fn is_copied(&self) {
        let both = || [&self.master, &self.replica].map(|server| info(server, "replication", "master_repl_offset"));
        let is_copied = async || {
            let [ours, copied] = both();
            if ours == copied { Ok(()) } else { Err(format!("{copied} of {ours} bytes")) }
        };
        eventually(5 * SECOND, "the replica has everything", is_copied).await;
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("sentinel.log")).unwrap_or_default()
    }

    /// The replica was promoted, and the node works with it: it has everything, takes and gives jobs, and hears the
    /// others there.
    async fn goes_on(&self, world: &World, node: &Fixture, ids: &[JobId], limit: Duration) {
        let start = node.now();
        let take = async || {
            let job = node.job("http", "acme");
            let id = job.id;
            node.store.submit(vec![job]).await.map(|_| id).map_err(|error| format!("{error}\n{}", self.log()))
        };
        let id = eventually(limit, "the node goes on with the other server", take).await;
        println!("on again {} ms after the failover began", node.now().since(start).as_millis());
        assert!(self.replica.command(&["INFO", "replication"]).contains("role:master"), "{}", self.log());
        // A failover may lose the last writes, of figures here; then the node reads everything again, and makes again what
        // it had under way.
        let is_done = async || {
            for claimed in node.claim("http", 10 * JOBS).await.jobs {
                let settlement = node.settlement(claimed, Transition::Done);
                node.store.settle(&lane("http"), vec![settlement]).await.map_err(|error| error.to_string())?;
            }
            for id in ids.iter().chain([&id]) {
                match node.store.job(*id).await {
                    Ok(Some(view)) if view.state == JobState::Done => {}
                    other => return Err(format!("{other:?}")),
                }
            }
            Ok(())
        };
        eventually(CLAIMED_WITHIN, "nothing is lost, and everything is delivered", is_done).await;
        are_listening(&self.replica, world, 1).await;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // Fails only for a child that is gone; it is waited for, so that its folder can go.
        drop(self.keeper.stdin.take().map(|mut pipe| writeln!(pipe, "end")));
        drop(self.keeper.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_master_is_killed_the_store_goes_on_with_the_promoted_replica() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let watched = Watched::start().await;
        let world = watched.world();
        let node = world.node().await;
        let ids = watched.submit(&node).await;
        watched.master.kill();
        watched.goes_on(&world, &node, &ids, FAILOVER_MAX).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_master_is_changed_on_purpose_the_store_follows() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let watched = Watched::start().await;
        let world = watched.world();
        let node = world.node().await;
        let ids = watched.submit(&node).await;
        // Refused until the sentinel has looked at the replica.
        let change = async || watched.ask(&["FAILOVER", SERVICE]).map(drop);
        eventually(READY_WITHIN, "the sentinel changes the master", change).await;
        // The sentinel cuts every connection to a server whose role it changes, this test's as well.
        let is_demoted = async || {
            let role = redis::ask(watched.master.port(), &["ROLE"]).map_err(|error| error.to_string())?;
            if role.contains("slave") { Ok(()) } else { Err(format!("{role}\n{}", watched.log())) }
        };
        eventually(READY_WITHIN, "the old master is a replica", is_demoted).await;
        watched.goes_on(&world, &node, &ids, FAILOVER_MAX).await;
    })
    .await;
}

/// As when its machine is gone: nothing is refused or cut, nothing is answered. The store stayed with it for ever, and
/// went on listening there for what other nodes say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_master_falls_silent_the_store_goes_on_with_the_promoted_replica() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let watched = Watched::start().await;
        let world = watched.world();
        let node = world.node().await;
        let ids = watched.submit(&node).await;
        signal("STOP", info(&watched.master, "server", "process_id"));
        watched.goes_on(&world, &node, &ids, SILENT_FAILOVER_MAX).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_the_sentinels_do_not_know_is_refused() {
    if redis::is_left_out() {
        return;
    }
    bounded(async {
        let watched = Watched::start().await;
        let mut world = watched.world();
        world.server.url = format!("redis+sentinel://:s3cret@127.0.0.1:{}/other", watched.port);
        let refusal = world.refusal().await;
        println!("unknown service: {refusal}");
        assert!(refusal.contains(&format!("127.0.0.1:{}/other", watched.port)), "{refusal}");
        assert!(!refusal.contains("s3cret"), "{refusal}");
        world.server.url = format!("redis+sentinel://127.0.0.1:{}/{SERVICE}", watched.master.port());
        let refusal = world.refusal().await;
        println!("no sentinel: {refusal}");
        assert!(refusal.contains("sentinel"), "{refusal}");
    })
    .await;
}
