//! A server that reads one request per connection and answers with the bytes it was given.
//! Invariant: the answers come in the order given, and what was asked is kept; after the last one nobody listens.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What becomes of one request.
#[derive(Clone, Debug)]
pub enum Script {
    /// It is answered with these bytes, and the connection closed.
    Bytes(String),
    /// Nothing comes back.
    Silence,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    pub head: String,
    pub body: serde_json::Value,
}

impl Asked {
    /// The value of a header field; the client writes names in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub fn recipients(&self) -> Vec<String> {
        serde_json::from_value(self.body["Destination"]["ToAddresses"].clone()).unwrap()
    }
}

/// A running server.
pub struct Responder {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Responder {
    pub async fn start(script: Vec<Script>) -> Responder {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let responder = Responder { address: listener.local_addr().unwrap(), asked: Arc::default() };
        let asked = Arc::clone(&responder.asked);
        tokio::spawn(async move {
            let (mut listener, mut silent, steps) = (Some(listener), Vec::new(), script.len());
            for (number, step) in script.into_iter().enumerate() {
                let (mut stream, _) = listener.as_ref().expect("steps are left").accept().await.unwrap();
                let request = read(&mut stream).await;
                asked.lock().push(request);
                // Before the last answer, so that nobody who has it can connect once more.
                listener = listener.filter(|_| number + 1 < steps);
                match step {
                    Script::Bytes(bytes) => stream.write_all(bytes.as_bytes()).await.unwrap(),
                    Script::Silence => silent.push(stream),
                }
            }
            drop(listener);
            std::future::pending::<()>().await;
        });
        responder
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }
}

/// An answer of SES, as its front door writes it.
pub fn answer(status: &str, error_type: Option<&str>, body: &str) -> Script {
    let error_type = error_type.map(|name| format!("x-amzn-ErrorType: {name}\r\n")).unwrap_or_default();
    Script::Bytes(format!(
        "HTTP/1.1 {status}\r\nDate: Sun, 15 Nov 2026 12:00:00 GMT\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\nx-amzn-RequestId: fbd3b7a0-5d1c-4d6a-9e0a-0c6c0f3f1a11\r\n\
         {error_type}\r\n{body}",
        body.len()
    ))
}

/// The answer to a mail that was taken.
pub fn taken(message_id: &str) -> Script {
    answer("200 OK", None, &format!(r#"{{"MessageId":"{message_id}"}}"#))
}

async fn read(stream: &mut TcpStream) -> Asked {
    let mut bytes = Vec::new();
    loop {
        if let Some(asked) = whole(&bytes) {
            return asked;
        }
        let read = stream.read_buf(&mut bytes).await.unwrap();
        assert_ne!(read, 0, "the client hung up after {} bytes", bytes.len());
    }
}

fn whole(bytes: &[u8]) -> Option<Asked> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let asked = Asked { head: String::from_utf8_lossy(&bytes[..end]).into_owned(), body: serde_json::Value::Null };
    let length: usize = asked.header("content-length")?.parse().unwrap();
    let body = bytes.get(end + 4..end + 4 + length)?;
    Some(Asked { body: serde_json::from_slice(body).unwrap(), ..asked })
}
