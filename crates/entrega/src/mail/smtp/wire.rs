//! The wire: a connection on which commands go out and replies come in.
//! Invariant: what comes in is bounded, however much a server says; nothing that came before encryption is taken for
//! something that came after.
//! Never: knows what commands mean.

use std::io;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::reply::{NotAReply, Reply};

/// A reply is a few lines of 512 bytes; whoever says more has something else in mind.
const REPLY_BYTES_MAX: usize = 16 << 10;
const READ_BYTES: usize = 1 << 10;

/// What can happen to it.
#[derive(Debug, thiserror::Error)]
pub(super) enum WireError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the server closed it")]
    Closed,
    #[error("the server's reply is longer than {REPLY_BYTES_MAX} bytes")]
    TooLong,
    #[error(transparent)]
    NotAReply(#[from] NotAReply),
    #[error("the reply {code} does not fit here")]
    Misplaced { code: u16 },
}

enum Stream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// Runs the same expression on whichever stream it is.
macro_rules! on {
    ($wire:ident, $stream:ident => $run:expr) => {
        match &mut $wire.stream {
            Stream::Plain($stream) => $run,
            Stream::Encrypted($stream) => $run,
        }
    };
}

/// The connection.
pub(super) struct Wire {
    stream: Stream,
    incoming: BytesMut,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> Wire {
        Wire { stream: Stream::Plain(stream), incoming: BytesMut::new() }
    }

    pub(super) fn is_encrypted(&self) -> bool {
        matches!(self.stream, Stream::Encrypted(_))
    }

    /// Whether nothing came in that nobody asked for.
    pub(super) fn is_quiet(&self) -> bool {
        self.incoming.is_empty()
    }

    /// The same for what has come in since somebody looked last; the server's end of the connection counts too.
    pub(super) fn is_still_quiet(&mut self) -> bool {
        let read = on!(self, stream => stream.read_buf(&mut self.incoming).now_or_never());
        read.is_none() && self.is_quiet()
    }

    /// Our own address, as an address literal of SMTP.
    pub(super) fn own_literal(&self) -> io::Result<String> {
        let tcp = match &self.stream {
            Stream::Plain(stream) => stream,
            Stream::Encrypted(stream) => stream.get_ref().0,
        };
        Ok(match tcp.local_addr()?.ip().to_canonical() {
            std::net::IpAddr::V4(address) => format!("[{address}]"),
            std::net::IpAddr::V6(address) => format!("[IPv6:{address}]"),
        })
    }

    /// Encrypts what follows. A wire that is not quiet must not come here.
    pub(super) async fn encrypt(self, config: Arc<ClientConfig>, name: ServerName<'static>) -> io::Result<Wire> {
        let Stream::Plain(stream) = self.stream else { return Ok(self) };
        let stream = TlsConnector::from(config).connect(name, stream).await?;
        Ok(Wire { stream: Stream::Encrypted(Box::new(stream)), incoming: self.incoming })
    }

    /// Sends a command, or several at once.
    pub(super) async fn write(&mut self, text: &[u8]) -> Result<(), WireError> {
        on!(self, stream => {
            stream.write_all(text).await?;
            stream.flush().await?;
        });
        Ok(())
    }

    /// Sends a mail's text and its end without joining them first.
    pub(super) async fn write_message(&mut self, text: Bytes, end: &'static [u8]) -> Result<(), WireError> {
        let mut all = text.chain(end);
        on!(self, stream => {
            stream.write_all_buf(&mut all).await?;
            stream.flush().await?;
        });
        Ok(())
    }

    /// The next reply.
    pub(super) async fn reply(&mut self) -> Result<Reply, WireError> {
        loop {
            if let Some(reply) = Reply::take(&mut self.incoming)? {
                return Ok(reply);
            }
            if self.incoming.len() > REPLY_BYTES_MAX {
                return Err(WireError::TooLong);
            }
            self.incoming.reserve(READ_BYTES);
            let read = on!(self, stream => stream.read_buf(&mut self.incoming).await?);
            if read == 0 {
                return Err(WireError::Closed);
            }
        }
    }

    /// A command and its reply. A server that hung up may have said why before: that counts more than how it ended.
    pub(super) async fn say(&mut self, text: &[u8]) -> Result<Reply, WireError> {
        let written = self.write(text).await;
        let reply = self.reply().await;
        match (written, reply) {
            (_, Ok(reply)) => Ok(reply),
            (Err(error), Err(_)) | (Ok(()), Err(error)) => Err(error),
        }
    }

    /// Takes leave without waiting for the answer.
    pub(super) async fn close(&mut self) -> Result<(), WireError> {
        self.write(b"QUIT\r\n").await?;
        on!(self, stream => stream.shutdown().await?);
        Ok(())
    }
}
