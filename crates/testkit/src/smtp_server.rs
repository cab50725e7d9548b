//! A real SMTP server in a process of its own, on a free port, that behaves as a script says. `server.py` beside this
//! file is the server, and says what a script can hold.
//! Invariant: it dies with the process that started it, however that ends.
//! Never: touches a server that it did not start.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tool::{self, python};

/// Whether this run goes without it, because no Python with aiosmtpd could be had; a test that needs it then returns.
pub fn is_left_out() -> bool {
    tool::is_left_out("python")
}

/// A mail that it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub from: String,
    /// What came with the sender: `SIZE=…`, `BODY=8BITMIME`, …
    pub options: Vec<String>,
    pub recipients: Vec<String>,
    pub data: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Entry {
    Connection(serde::de::IgnoredAny),
    Command(String),
    Mail { sender: String, options: Vec<String>, recipients: Vec<String>, data: String },
}

/// A running server.
pub struct SmtpServer {
    process: Child,
    port: u16,
    folder: TempDir,
    script: Value,
}

impl SmtpServer {
    /// Starts one. Where the script asks for `tls`, it gets a certificate of an authority of its own.
    pub fn start(script: Value) -> SmtpServer {
        SmtpServer::start_on(0, script)
    }

    /// On this port, where one of these ran before; 0 for any.
    pub fn start_on(port: u16, mut script: Value) -> SmtpServer {
        let folder = tempfile::tempdir().unwrap();
        if script.get("tls").is_some() {
            certify(folder.path(), &mut script);
        }
        write_script(folder.path(), &script);
        let log = File::create(folder.path().join("server.log")).unwrap();
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/smtp_server/server.py");
        let mut process = Command::new(python())
            .arg(program)
            .arg(folder.path())
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{} does not run: {error}; `cargo xtask test` installs it", python().display())
            });
        let mut port = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut port).unwrap();
        let port =
            port.trim().parse().unwrap_or_else(|_| panic!("the server does not start:\n{}", log_of(folder.path())));
        SmtpServer { process, port, folder, script }
    }

    /// One without surprises.
    pub fn obliging() -> SmtpServer {
        SmtpServer::start(json!({}))
    }

    /// One that follows these rules.
    pub fn with_rules(rules: Value) -> SmtpServer {
        SmtpServer::start(json!({ "rules": rules }))
    }

    /// By its name, which its certificate holds.
    pub fn url(&self) -> String {
        let scheme = if self.script["tls"] == "implicit" { "smtps" } else { "smtp" };
        format!("{scheme}://localhost:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whom to trust to trust it, if its script asks for `tls`.
    pub fn authority_pem(&self) -> Option<Vec<u8>> {
        self.script.get("tls").map(|_| std::fs::read(self.folder.path().join("authority.pem")).unwrap())
    }

    /// The rules that it started with.
    pub fn rules(&self) -> &Value {
        &self.script["rules"]
    }

    /// From now on it follows these rules.
    pub fn set_rules(&self, rules: Value) {
        let mut script = self.script.clone();
        script["rules"] = rules;
        self.set(script);
    }

    /// From now on it behaves so. What concerns its listening (`tls`, `login`, `utf8`) stays as it was.
    pub fn set(&self, script: Value) {
        write_script(self.folder.path(), &script);
    }

    /// The mails that it took, in order.
    pub fn received(&self) -> Vec<Received> {
        let mail = |entry| match entry {
            Entry::Mail { sender, options, recipients, data } => {
                Some(Received { from: sender, options, recipients, data: BASE64.decode(data).unwrap() })
            }
            Entry::Connection(_) | Entry::Command(_) => None,
        };
        self.journal().into_iter().filter_map(mail).collect()
    }

    /// How many connections were opened to it.
    pub fn connections(&self) -> usize {
        self.journal().iter().filter(|entry| matches!(entry, Entry::Connection(_))).count()
    }

    /// The commands that it heard and that scripts can change, in order: `MAIL FROM:<…>`, `DATA`, …
    pub fn commands(&self) -> Vec<String> {
        let command = |entry| if let Entry::Command(text) = entry { Some(text) } else { None };
        self.journal().into_iter().filter_map(command).collect()
    }

    fn journal(&self) -> Vec<Entry> {
        let text = std::fs::read_to_string(self.folder.path().join("journal.jsonl")).unwrap_or_default();
        // The server may be in the middle of the last line.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for SmtpServer {
    fn drop(&mut self) {
        // Both fail only for a child that is gone.
        drop(self.process.kill());
        drop(self.process.wait());
        if std::thread::panicking() {
            println!("the server's log:\n{}", log_of(self.folder.path()));
        }
    }
}

fn log_of(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("server.log")).unwrap_or_default()
}

/// In one move, because the server may read it at any time.
fn write_script(folder: &Path, script: &Value) {
    let draft = folder.join("script.draft");
    // Equal scripts have to differ too: what was used up counts again.
    let number = u64::from_le_bytes(entrega::chance::secret_bytes());
    let mut script = script.clone();
    script["number"] = json!(number);
    std::fs::write(&draft, script.to_string()).unwrap();
    std::fs::rename(draft, folder.join("script.json")).unwrap();
}

fn certify(folder: &Path, script: &mut Value) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    std::fs::write(folder.join("authority.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let names = script.get("names").cloned().unwrap_or_else(|| json!(["localhost"]));
    let names: Vec<String> = serde_json::from_value(names).unwrap();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    for (name, file, pem) in
        [("certificate", "server.pem", certificate.pem()), ("key", "server.key", key.serialize_pem())]
    {
        let path = folder.join(file);
        std::fs::write(&path, pem).unwrap();
        script[name] = json!(path);
    }
}
