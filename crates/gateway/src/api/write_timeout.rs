//! Answers that are not taken: a caller that stops reading, or hardly reads, is cut off.
//! Invariant: while an answer waits to be taken, [`TAKEN_MIN`] of it are taken within every limit, or what is left of it; else
//! the write fails, and the connection ends with it.
//! Never: limits a read, or a connection on which nothing waits to be written.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// Bytes of an answer that must be taken within the limit. With half a minute that is a modem's pace; a byte now and then would
/// keep the answer in memory for ever.
const TAKEN_MIN: usize = 512 << 10;

/// A connection whose other end must take what it asked for.
pub(super) struct WriteTimeout<S> {
    stream: S,
    limit: Duration,
    /// There is one since a write had to wait, until enough was taken.
    patience: Option<Patience>,
}

struct Patience {
    until: Pin<Box<Sleep>>,
    taken: usize,
}

impl<S> WriteTimeout<S> {
    pub(super) fn new(stream: S, limit: Duration) -> WriteTimeout<S> {
        WriteTimeout { stream, limit, patience: None }
    }

    /// What a write has come to, once it is known or has been waited for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        let limit = self.limit;
        let patience = self.patience.get_or_insert_with(|| Patience { until: Box::pin(sleep(limit)), taken: 0 });
        ready!(patience.until.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the caller does not take its answer")))
    }

    fn judge_write(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let (Poll::Ready(Ok(bytes)), Some(patience)) = (&written, &mut self.patience) {
            patience.taken += bytes;
            if patience.taken >= TAKEN_MIN {
                self.patience = None;
            }
        }
        self.judge(cx, written)
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
        self.judge_write(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.judge_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Nothing waits any more when it is flushed.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if flushed.is_ready() {
            self.patience = None;
        }
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

    /// Writes an answer of several limits' worth to a caller that takes so many bytes every second.
    async fn write_to_one_that_takes(bytes: usize) -> io::Result<()> {
        let (stream, mut caller) = duplex(1024);
        let mut stream = WriteTimeout::new(stream, LIMIT);
        let taking = tokio::spawn(async move {
            let mut taken = vec![0; bytes];
            loop {
                // reason: time is paused; slowness is what is tested
                sleep(Duration::from_secs(1)).await;
                if caller.read_exact(&mut taken).await.is_err() {
                    return;
                }
            }
        });
        let written = stream.write_all(&vec![b'x'; 4 * TAKEN_MIN]).await;
        taking.abort();
        written
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_taken_slowly_goes_on() {
        write_to_one_that_takes(TAKEN_MIN / 4).await.unwrap();
    }

    /// A byte every half minute kept an answer of megabytes in memory, and there was no end to it.
    #[tokio::test(start_paused = true)]
    async fn a_write_that_is_hardly_taken_fails() {
        let error = write_to_one_that_takes(TAKEN_MIN / 16).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_between_two_answers_is_no_slowness() {
        let (stream, mut caller) = duplex(4);
        let mut stream = WriteTimeout::new(stream, LIMIT);
        for _ in 0..3 {
            let answer = async {
                stream.write_all(b"answer").await?;
                stream.flush().await
            };
            let mut taken = [0; 6];
            let (written, _) = tokio::join!(answer, caller.read_exact(&mut taken));
            written.unwrap();
            // reason: paused time
            sleep(2 * LIMIT).await;
        }
    }
}
