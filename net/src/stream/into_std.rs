//! Giving a stream's socket back.

use std::error::Error;
use std::fmt;
use std::io;

use socket2::Socket;

use super::generic::Stream;

/// A stream's socket could not be given back. The stream is as it was, with everything that it has
/// received.
///
/// It converts to its [`io::Error`], which closes the stream.
#[derive(Debug)]
pub struct IntoStdError<K> {
    /// The error of sending what was written; or the error that the connection broke with, which
    /// the next read returns; or `EMFILE` without a free descriptor.
    pub error: io::Error,
    /// It can be read, written to and given back as before.
    pub stream: Stream<K>,
}

impl<K> fmt::Display for IntoStdError<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a stream can't be given back")
    }
}

impl<K: fmt::Debug> Error for IntoStdError<K> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

impl<K> From<IntoStdError<K>> for io::Error {
    fn from(failed: IntoStdError<K>) -> Self {
        failed.error
    }
}

impl<K> Stream<K> {
    /// The socket, and the bytes that were received and not read.
    pub(crate) async fn into_socket(mut self) -> Result<(Socket, Vec<u8>), IntoStdError<K>> {
        let quiet = std::future::poll_fn(|context| self.io.poll_quiesce(context)).await;
        // A duplicate: those who only look at the socket, such as `serve`, may have a share in the
        // descriptor.
        match quiet.and_then(|()| self.socket().try_clone()) {
            Ok(socket) => {
                let unread = self.take_unread();
                Ok((socket, unread))
            }
            Err(error) => Err(IntoStdError { error, stream: self }),
        }
    }
}
