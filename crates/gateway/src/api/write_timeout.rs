//! Answers that are not taken: a caller that stops reading is cut off.
//! Invariant: a write that makes no progress within the limit fails, and the connection ends with it.
//! Never: limits a write that makes progress, however slow it is, or a read.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A connection whose other end must take what it asked for.
pub(super) struct WriteTimeout<S> {
    stream: S,
    limit: Duration,
    /// There is one while a write waits.
    patience: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub(super) fn new(stream: S, limit: Duration) -> WriteTimeout<S> {
        WriteTimeout { stream, limit, patience: None }
    }

    /// What a write has come to, once it is known or has been waited for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.patience = None;
            return written;
        }
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        ready!(patience.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the caller does not take its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn a_write_that_nobody_takes_fails_after_the_limit() {
        let (stream, _kept) = duplex(4);
        let mut stream = WriteTimeout::new(stream, LIMIT);
        let error = stream.write_all(b"more than four").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_taken_slowly_goes_on() {
        let (stream, mut caller) = duplex(1);
        let mut stream = WriteTimeout::new(stream, LIMIT);
        let taking = tokio::spawn(async move {
            let mut text = Vec::new();
            for _ in 0..10 {
                // reason: time is paused; slowness is what is tested
                sleep(LIMIT - Duration::from_secs(1)).await;
                text.push(caller.read_u8().await.unwrap());
            }
            text
        });
        stream.write_all(b"0123456789").await.unwrap();
        assert_eq!(taking.await.unwrap(), b"0123456789");
    }
}
