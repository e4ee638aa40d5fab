//! TCP with kernel timestamps of sent and received packets (`SO_TIMESTAMPING`; the kernel's
//! `Documentation/networking/timestamping.rst`).

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::{AsyncBufRead, AsyncRead, AsyncWrite};
use nix::libc;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, TimestampingFlag, Timestamps, recvmsg, setsockopt, sockopt,
};
use runtime::io::{AsyncFd, Direction, SourceKind};

use crate::transport::stream::{Chunk, RxTimestamp, Transport, TxTimestamp};

/// Size of the receive buffer, in bytes.
const CHUNK: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct TimestampedTcpStream {
    fd: AsyncFd<TcpStream>,
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
    control: Vec<u8>,
    timestamp: Option<RxTimestamp>,
}

impl TimestampedTcpStream {
    /// Wraps a connection. The runtime watches a duplicate of its descriptor.
    pub(crate) fn new(stream: net::TcpStream) -> io::Result<Self> {
        let stream = TcpStream::from(stream.as_fd().try_clone_to_owned()?);
        Ok(Self {
            fd: AsyncFd::new(stream, SourceKind::Other)?,
            buffer: vec![0; CHUNK].into(),
            begin: 0,
            end: 0,
            control: nix::cmsg_space!(Timestamps, libc::sock_extended_err, libc::sockaddr_in6),
            timestamp: None,
        })
    }
}

/// The software timestamp, and the position in the stream that it belongs to if it is of a sent byte.
fn parse_control(controls: impl IntoIterator<Item = ControlMessageOwned>) -> (Option<Duration>, Option<u32>) {
    let (mut timestamp, mut position) = (None, None);
    for control in controls {
        match control {
            // Zero if the kernel has no timestamp. It enables timestamping with a delay, so the first packets
            // may lack one.
            ControlMessageOwned::ScmTimestampsns(Timestamps { system, .. }) => {
                timestamp = Some(Duration::from(system)).filter(|time| !time.is_zero());
            }
            ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
                position = Some(error.ee_data);
            }
            _ => {}
        }
    }
    (timestamp, position)
}

/// Reads, with the time at which the kernel received the last packet of what was read.
fn receive(
    socket: &TcpStream,
    buffer: &mut [u8],
    control: &mut [u8],
) -> io::Result<(usize, Option<RxTimestamp>)> {
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(control), MsgFlags::empty())?;
    let (time, _) = parse_control(message.cmsgs()?);
    let timestamp = time.and_then(|time| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Some(RxTimestamp { time, age: now.checked_sub(time)? })
    });
    Ok((message.bytes, timestamp))
}

/// Takes the timestamp of a sent byte from the socket's error queue.
fn take_tx_timestamp(socket: &TcpStream, control: &mut [u8]) -> Option<TxTimestamp> {
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut [], Some(control), flags).ok()?;
    let (time, position) = parse_control(message.cmsgs().ok()?);
    Some(TxTimestamp { position: position?, time: time? })
}

impl Transport for TimestampedTcpStream {
    fn start_timestamps(&mut self) -> io::Result<()> {
        setsockopt(
            self.fd.get_ref(),
            sockopt::Timestamping,
            &(TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE
                | TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE
                | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE
                // Identify timestamps by stream position, and leave the packet out.
                | TimestampingFlag::SOF_TIMESTAMPING_OPT_ID
                | TimestampingFlag::SOF_TIMESTAMPING_OPT_TSONLY),
        )
        .map_err(io::Error::from)
    }

    fn poll_chunk(
        &mut self,
        context: &mut Context<'_>,
        sent: &mut VecDeque<TxTimestamp>,
    ) -> Poll<io::Result<Chunk<'_>>> {
        ready!(Pin::new(&mut *self).poll_fill_buf(context))?;
        while let Some(timestamp) = take_tx_timestamp(self.fd.get_ref(), &mut self.control) {
            sent.push_back(timestamp);
        }
        Poll::Ready(Ok((&self.buffer[self.begin..self.end], self.timestamp)))
    }
}

impl AsyncRead for TimestampedTcpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let chunk = ready!(self.as_mut().poll_fill_buf(context))?;
        let length = chunk.len().min(into.len());
        into[..length].copy_from_slice(&chunk[..length]);
        self.consume(length);
        Poll::Ready(Ok(length))
    }
}

impl AsyncBufRead for TimestampedTcpStream {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { fd, buffer, begin, end, control, timestamp } = self.get_mut();
        if begin == end {
            let read = fd.poll_io(Direction::Read, context, |socket| receive(socket, buffer, control));
            let (length, received) = ready!(read)?;
            fd.record_read(length, CHUNK);
            (*begin, *end, *timestamp) = (0, length, received);
        }
        Poll::Ready(Ok(&buffer[*begin..*end]))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        self.get_mut().begin += amount;
    }
}

impl AsyncWrite for TimestampedTcpStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.fd.poll_io(Direction::Write, context, |mut socket| socket.write(bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.fd.get_ref().shutdown(std::net::Shutdown::Write))
    }
}
