//! Closes a connection so that its last response arrives.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_io::AsyncBufRead;

/// How long a client may take to read the response and to close its side.
const LIMIT: Duration = Duration::from_secs(2);

/// Takes a stream whose side that writes is closed. Reads what the client still sends, and drops it, until the client closes
/// its side.
///
/// A server may answer before it has read the whole request, for example that its body is too large. When a socket is
/// closed while received bytes are unread, or when more arrive after that, the kernel resets the connection, and the
/// client's kernel throws the response away, read or not (RFC 9112, section 9.6).
///
/// It waits for at most [`LIMIT`], and not at all once `shutdown` is ready: then it drops what is there.
pub(super) async fn lingering_close<S>(mut stream: S, mut shutdown: impl FnMut(&Context<'_>) -> Poll<()>)
where
    S: AsyncBufRead + Unpin,
{
    let read_to_the_end = poll_fn(|task| {
        loop {
            match Pin::new(&mut stream).poll_fill_buf(task) {
                Poll::Ready(Ok(bytes)) if !bytes.is_empty() => {
                    let length = bytes.len();
                    Pin::new(&mut stream).consume(length);
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return shutdown(task),
            }
        }
    });
    // The time is up: nothing is left to do for this client.
    let _ = runtime::timeout(LIMIT, read_to_the_end).await;
}
