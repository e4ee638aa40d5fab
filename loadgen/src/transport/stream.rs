//! What the transports have in common.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{AsyncBufRead, AsyncWrite};
use net::{TcpStream, UnixStream};

/// When the kernel received the last packet of what was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RxTimestamp {
    /// Time since 1970.
    pub(crate) time: Duration,
    /// How long before the read that was.
    pub(crate) age: Duration,
}

/// When the kernel sent a byte.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TxTimestamp {
    /// The byte's position in the stream, modulo 2^32.
    pub(crate) position: u32,
    /// Time since 1970.
    pub(crate) time: Duration,
}

/// Bytes that were read, with their timestamp if the transport has one.
pub(crate) type Chunk<'a> = (&'a [u8], Option<RxTimestamp>);

pub(crate) trait Transport: AsyncBufRead + AsyncWrite + Unpin {
    /// Returns the bytes that can be read. Transports with kernel timestamps append those of sent bytes to
    /// `sent`.
    fn poll_chunk(
        &mut self,
        context: &mut Context<'_>,
        sent: &mut VecDeque<TxTimestamp>,
    ) -> Poll<io::Result<Chunk<'_>>> {
        let _ = sent;
        Pin::new(self).poll_fill_buf(context).map_ok(|chunk| (chunk, None))
    }

    /// Starts kernel timestamps, if the transport has them. The next byte has position 0.
    fn start_timestamps(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Transport for TcpStream {}
impl Transport for UnixStream {}

pub(crate) type BoxedTransport = Box<dyn Transport>;
