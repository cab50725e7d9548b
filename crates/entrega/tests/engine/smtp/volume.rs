//! Many mails at once, against Postfix's `smtp-sink`.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use entrega::mail::smtp::{SmtpConfig, SmtpTransport};
use tempfile::TempDir;

use super::world::{send, taken};
use entrega_testkit::tool;

const TASKS: usize = 20;
const MAILS_PER_TASK: usize = 25;

/// The sink, which writes every mail into a file of its own, and counts.
struct Sink {
    process: Child,
    port: u16,
    folder: TempDir,
}

impl Sink {
    fn start() -> Sink {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let folder = tempfile::tempdir().unwrap();
        let figures = File::create(folder.path().join("figures")).unwrap();
        let mut command = Command::new("smtp-sink");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:/usr/sbin")).current_dir(folder.path());
        // As root it wants to be told whom to become; whoever else cannot be told.
        if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
            command.args(["-u", "root"]);
        }
        command.args(["-c", "-d", "mail.", &format!("127.0.0.1:{port}"), "256"]);
        let process =
            command.stdin(Stdio::null()).stdout(figures).spawn().expect("smtp-sink is installed (Debian: postfix)");
        let sink = Sink { process, port, folder };
        sink.wait_until_it_listens();
        sink
    }

    fn wait_until_it_listens(&self) {
        for _ in 0..500 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
                return;
            }
            // reason: another process decides when it is ready; it is asked, not told
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("smtp-sink does not listen");
    }

    /// The mails, each with its envelope on top.
    fn mails(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.folder.path()).unwrap().map(|file| file.unwrap());
        let mails = files.filter(|file| file.file_name().to_str().unwrap().starts_with("mail."));
        mails.map(|file| std::fs::read_to_string(file.path()).unwrap()).collect()
    }

    /// How many connections it saw; one of them asked whether it listens.
    fn connections(&self) -> usize {
        let figures = std::fs::read_to_string(self.folder.path().join("figures")).unwrap();
        let last = figures.rsplit("sess=").next().unwrap();
        last.split(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_few_connections_and_every_mail_arrives_once() {
    if tool::is_left_out("smtp-sink") {
        return;
    }
    let sink = Sink::start();
    let config = SmtpConfig::from_url(&format!("smtp://127.0.0.1:{}", sink.port)).unwrap();
    let transport = Arc::new(SmtpTransport::new("main", config).unwrap());
    let task = |task: usize| {
        let transport = Arc::clone(&transport);
        tokio::spawn(async move {
            for mail in 0..MAILS_PER_TASK {
                assert_eq!(send(&transport, &[&format!("t{task}m{mail}@example.org")]).await, taken(1));
            }
        })
    };
    for task in (0..TASKS).map(task).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let mails = sink.mails();
    let recipients: BTreeSet<&str> =
        mails.iter().flat_map(|mail| mail.lines()).filter(|line| line.starts_with("X-Rcpt-Args:")).collect();
    assert_eq!((mails.len(), recipients.len()), (TASKS * MAILS_PER_TASK, TASKS * MAILS_PER_TASK));
    assert!(sink.connections() <= TASKS + 1, "{} connections", sink.connections());
}
