//! Answers: what comes back from a call.
//! Invariant: no more than the cap is kept, and `truncated` says when there was more.
//! Never: decompresses; a small body can unpack to a huge one.

use bytes::{Bytes, BytesMut};
use entrega_core::outcome::Answer;
use http::Response;
use http_body_util::BodyExt;
use hyper::body::Body;

/// How much of an unwanted rest is read away so that its connection can be used again. Past that
/// a new connection is cheaper.
const DRAIN_BYTES_MAX: u64 = 256 * 1024;

/// Reads an answer up to `bytes_max`. Where a rest remains unread, gives back the body as well.
pub(crate) async fn read<B>(response: Response<B>, bytes_max: usize) -> Result<(Answer, Option<B>), B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let (head, mut body) = response.into_parts();
    let (kept, truncated) = keep(&mut body, bytes_max).await?;
    let rest = (truncated && !body.is_end_stream()).then_some(body);
    let answer = Answer { status: head.status, headers: head.headers, body: kept, truncated, retry_after: None };
    Ok((answer, rest))
}

/// Reads a rest away, unless it is or turns out to be too long. A connection whose answer was not read to its end is of no
/// more use.
pub(crate) async fn drain<B>(mut rest: B)
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut room = DRAIN_BYTES_MAX;
    while rest.size_hint().lower() <= room {
        // The answer stands: a rest that fails costs its connection and nothing else.
        let Ok(Some(data)) = next_data(&mut rest).await else {
            return;
        };
        match room.checked_sub(data.len() as u64) {
            Some(left) => room = left,
            None => return,
        }
    }
}

async fn keep<B>(body: &mut B, bytes_max: usize) -> Result<(Bytes, bool), B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let Some(mut first) = next_data(body).await? else {
        return Ok((Bytes::new(), false));
    };
    if first.len() > bytes_max {
        first.truncate(bytes_max);
        return Ok((first, true));
    }
    // Most answers are one frame: those bytes are handed on without a copy.
    let Some(second) = next_data(body).await? else {
        return Ok((first, false));
    };
    let expected = first.len() as u64 + second.len() as u64 + body.size_hint().lower();
    let mut kept = BytesMut::with_capacity(expected.min(bytes_max as u64) as usize);
    kept.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(data) = next {
        let room = bytes_max - kept.len();
        kept.extend_from_slice(&data[..data.len().min(room)]);
        if data.len() > room {
            return Ok((kept.freeze(), true));
        }
        next = next_data(body).await?;
    }
    Ok((kept.freeze(), false))
}

/// The next bytes of a body; trailers are skipped.
async fn next_data<B>(body: &mut B) -> Result<Option<Bytes>, B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    // A body of known length says that it is over before the connection gets to confirm it.
    while !body.is_end_stream() {
        match body.frame().await.transpose()?.map(|frame| frame.into_data()) {
            Some(Ok(data)) => return Ok(Some(data)),
            Some(Err(_trailers)) => continue,
            None => return Ok(None),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body_util::Full;
    use hyper::body::Frame;
    use proptest::prelude::*;

    use super::*;

    /// A body of given frames whose length nobody knows beforehand, like a chunked one.
    struct Frames(VecDeque<Bytes>);

    impl Frames {
        fn of(sizes: &[usize]) -> Self {
            Self(sizes.iter().map(|size| Bytes::from(vec![b'x'; *size])).collect())
        }
    }

    impl Body for Frames {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Ready(self.0.pop_front().map(|data| Ok(Frame::data(data))))
        }
    }

    #[tokio::test]
    async fn bodies_are_kept_up_to_the_cap() {
        for (frames, kept, truncated, rest) in [
            (&[][..], 0, false, false),
            (&[0], 0, false, false),
            (&[10], 10, false, false),
            (&[11], 10, true, true),
            (&[10, 0], 10, false, false),
            (&[10, 1], 10, true, true),
            (&[4, 6], 10, false, false),
            (&[4, 3, 3], 10, false, false),
            (&[4, 3, 4, 9], 10, true, true),
        ] {
            let (answer, left) = read(Response::new(Frames::of(frames)), 10).await.unwrap();
            assert_eq!((answer.body.len(), answer.truncated), (kept, truncated), "{frames:?}");
            assert_eq!(left.is_some(), rest, "{frames:?}");
        }
    }

    #[tokio::test]
    async fn a_single_frame_is_not_copied() {
        let body = Frames::of(&[5]);
        let address = body.0[0].as_ptr();
        let (answer, _) = read(Response::new(body), 10).await.unwrap();
        assert_eq!(answer.body.as_ptr(), address);
    }

    #[tokio::test]
    async fn draining_stops_at_its_limit() {
        let mut body = Frames::of(&[64 * 1024; 10]);
        drain(&mut body).await;
        // Four frames fill the limit, the fifth shows that there is more.
        assert_eq!(body.0.len(), 5);
    }

    #[tokio::test]
    async fn a_rest_known_to_be_too_long_is_not_read() {
        let mut body = Full::new(Bytes::from(vec![b'x'; 300 * 1024]));
        drain(&mut body).await;
        assert_eq!(body.size_hint().exact(), Some(300 * 1024));
    }

    proptest! {
        #[test]
        fn what_is_kept_is_the_start_of_the_body(
            frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..6),
            bytes_max in 0usize..60,
        ) {
            let whole = frames.concat();
            let body = Frames(frames.into_iter().map(Bytes::from).collect());
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (answer, _) = runtime.block_on(read(Response::new(body), bytes_max)).unwrap();
            prop_assert_eq!(&answer.body[..], &whole[..whole.len().min(bytes_max)]);
            prop_assert_eq!(answer.truncated, whole.len() > bytes_max);
        }
    }
}
