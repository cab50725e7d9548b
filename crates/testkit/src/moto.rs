//! A real `moto` server in a process of its own, on a free port: an emulation of AWS with SES, IAM and STS.
//! Invariant: it dies with the process that started it, however that ends.
//! Never: touches a server that it did not start.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use entrega::mail::ses::SesCredentials;
use entrega::secret::Secret;
use serde::Deserialize;
use tempfile::NamedTempFile;

use crate::tool::{self, python};

/// Kills the server when whoever started it is gone, and its end of the pipe with it.
const KEEPER: &str = r#"
"$PYTHON" -m moto.server -H 127.0.0.1 -p "$PORT" &
server=$!
read -r _
kill -9 "$server"
wait "$server"
"#;

/// Python reads a lot before it listens, and the machine may be busy.
const START_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const REPLY_MAX: Duration = Duration::from_secs(30);
pub const REGION: &str = "eu-west-1";

/// Whether this run goes without Python, because none could be had; a test that needs it then returns.
pub fn is_left_out() -> bool {
    tool::is_left_out("python")
}

/// A running server.
pub struct Moto {
    port: u16,
    keeper: Child,
    log: NamedTempFile,
}

/// A mail that it took.
#[derive(Debug, Deserialize)]
pub struct Taken {
    pub id: String,
    pub source: String,
    /// Those of the call, then those that the message's header names.
    pub destinations: Vec<String>,
    pub raw_data: String,
}

impl Moto {
    pub fn start() -> Moto {
        let (port, log) = (free_port(), NamedTempFile::new().unwrap());
        let keeper = Command::new("sh")
            .args(["-c", KEEPER])
            .env("PYTHON", python())
            .env("PORT", port.to_string())
            .stdin(Stdio::piped())
            .stdout(log.reopen().unwrap())
            .stderr(log.reopen().unwrap())
            .spawn()
            .expect("there is a shell");
        let moto = Moto { port, keeper, log };
        moto.wait_until_it_listens();
        moto
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Lets this address send, as its owner would by following a link.
    pub fn verify(&self, address: &str) {
        self.ask("ses", &[("Action", "VerifyEmailIdentity"), ("EmailAddress", address)]);
    }

    /// What it took, in order.
    pub fn taken(&self) -> Vec<Taken> {
        #[derive(Deserialize)]
        struct Data {
            ses: Ses,
        }
        #[derive(Deserialize)]
        struct Ses {
            #[serde(rename = "RawMessage")]
            raw_message: Vec<Taken>,
        }
        let data: Data = serde_json::from_str(&self.call("GET", "/moto-api/data.json", "", "")).unwrap();
        data.ses.raw_message
    }

    /// A user who may send, with a key.
    pub fn make_sender(&self) -> SesCredentials {
        let (user, version) = (("UserName", "sender"), ("Version", "2010-05-08"));
        self.ask("iam", &[("Action", "CreateUser"), version, user]);
        let policy = ("PolicyDocument", MAY_SEND);
        self.ask("iam", &[("Action", "PutUserPolicy"), version, user, ("PolicyName", "send"), policy]);
        let key = self.ask("iam", &[("Action", "CreateAccessKey"), version, user]);
        SesCredentials {
            access_key_id: element(&key, "AccessKeyId"),
            secret_access_key: Secret::new(element(&key, "SecretAccessKey")),
            session_token: None,
        }
    }

    /// A key that is lent for a time to a role that may send.
    pub fn lend_key(&self) -> SesCredentials {
        let (role, version) = (("RoleName", "sender"), ("Version", "2010-05-08"));
        let anybody = ("AssumeRolePolicyDocument", r#"{"Version":"2012-10-17","Statement":[]}"#);
        let made = self.ask("iam", &[("Action", "CreateRole"), version, role, anybody]);
        let policy = ("PolicyDocument", MAY_SEND);
        self.ask("iam", &[("Action", "PutRolePolicy"), version, role, ("PolicyName", "send"), policy]);
        let arn = element(&made, "Arn");
        let session = [("RoleArn", arn.as_str()), ("RoleSessionName", "test"), ("Version", "2011-06-15")];
        let key = self.ask("sts", &[&[("Action", "AssumeRole")], &session[..]].concat());
        SesCredentials {
            access_key_id: element(&key, "AccessKeyId"),
            secret_access_key: Secret::new(element(&key, "SecretAccessKey")),
            session_token: Some(Secret::new(element(&key, "SessionToken"))),
        }
    }

    /// From now on it checks who signed, and whether they may.
    pub fn check_signatures(&self) {
        self.call("POST", "/moto-api/reset-auth", "content-type: text/plain\r\n", "0");
    }

    /// An action of one of the older APIs; the answer is XML.
    fn ask(&self, api: &str, form: &[(&str, &str)]) -> String {
        let headers = format!(
            "content-type: application/x-www-form-urlencoded\r\nauthorization: AWS4-HMAC-SHA256 \
             Credential=AKIDEXAMPLE/20250101/{REGION}/{api}/aws4_request, SignedHeaders=host, Signature=0\r\n"
        );
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(form).finish();
        self.call("POST", "/", &headers, &body)
    }

    fn call(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.set_read_timeout(Some(REPLY_MAX)).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{}\r\n{headers}content-length: {length}\r\n\
             connection: close\r\n\r\n{body}",
            self.port
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path}: {answer}"));
        assert!(head.starts_with("HTTP/1.1 200 "), "{method} {path}: {answer}\n{}", self.log());
        body.to_owned()
    }

    /// It says so once the port is its own; another server that took the port in between does not write here.
    fn wait_until_it_listens(&self) {
        let own_line = format!("Running on {}", self.url());
        for _ in 0..START_MAX.as_millis() / LOOK_EVERY.as_millis() {
            if self.log().contains(&own_line) && TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
                return;
            }
            // reason: another process decides when it is ready; it is asked, not told
            std::thread::sleep(LOOK_EVERY);
        }
        panic!("moto does not listen on port {} after {} s; its log:\n{}", self.port, START_MAX.as_secs(), self.log());
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log.path()).unwrap_or_default()).into_owned()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        // Closes the pipe and waits; fails only for a child that is gone.
        drop(self.keeper.wait());
    }
}

const MAY_SEND: &str =
    r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"ses:SendEmail","Resource":"*"}]}"#;

/// Below the ports that the kernel gives to connections, so that none of those takes it in between.
fn free_port() -> u16 {
    let ports = std::iter::repeat_with(|| 10_000 + u16::from_le_bytes(entrega::chance::secret_bytes()) % 20_000);
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    ports.take(100).find(is_free).expect("one port in a hundred is free")
}

/// The text of the first element of this name.
fn element(xml: &str, name: &str) -> String {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let text = xml.split_once(&open).and_then(|(_, rest)| rest.split_once(&close));
    text.unwrap_or_else(|| panic!("no {name} in {xml}")).0.to_owned()
}
