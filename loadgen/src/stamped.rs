//! A TCP connection whose requests and answers the kernel says the time of (`SO_TIMESTAMPING`; the kernel's
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

use crate::transport::{Chunk, Stamp, Transport};

/// As much as is read at once.
const CHUNK: usize = 64 << 10;

/// The connection.
#[derive(Debug)]
pub(crate) struct Stamped {
    fd: AsyncFd<TcpStream>,
    buffer: Box<[u8]>,
    begin: usize,
    end: usize,
    control: Vec<u8>,
    /// Of what is in the buffer.
    stamp: Option<Stamp>,
}

impl Stamped {
    /// Takes the connection over.
    pub(crate) fn new(stream: net::TcpStream) -> io::Result<Self> {
        let stream = TcpStream::from(stream.as_fd().try_clone_to_owned()?);
        Ok(Self {
            fd: AsyncFd::new(stream, SourceKind::Other)?,
            buffer: vec![0; CHUNK].into(),
            begin: 0,
            end: 0,
            control: nix::cmsg_space!(Timestamps, libc::sock_extended_err, libc::sockaddr_in6),
            stamp: None,
        })
    }
}

/// When the kernel says that something was.
fn stamp_of(controls: impl IntoIterator<Item = ControlMessageOwned>) -> (Option<Duration>, Option<u32>) {
    let (mut stamp, mut place) = (None, None);
    for control in controls {
        match control {
            // Zero where the kernel had none, which it has after the first packets at the latest: noting them
            // is switched on with a delay.
            ControlMessageOwned::ScmTimestampsns(Timestamps { system, .. }) => {
                stamp = Some(Duration::from(system)).filter(|stamp| !stamp.is_zero());
            }
            ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _) => {
                place = Some(error.ee_data);
            }
            _ => {}
        }
    }
    (stamp, place)
}

/// Reads, with the time at which the last packet of what was read came.
fn receive(socket: &TcpStream, buffer: &mut [u8], control: &mut [u8]) -> io::Result<(usize, Option<Stamp>)> {
    let mut parts = [IoSliceMut::new(buffer)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(control), MsgFlags::empty())?;
    let (at, _) = stamp_of(message.cmsgs()?);
    let stamp = at.and_then(|at| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        Some(Stamp { at, age: now.checked_sub(at)? })
    });
    Ok((message.bytes, stamp))
}

/// When what was sent went out: the kernel puts that where errors are.
fn sent(socket: &TcpStream, control: &mut [u8]) -> Option<(u32, Duration)> {
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut [], Some(control), flags).ok()?;
    let (at, place) = stamp_of(message.cmsgs().ok()?);
    Some((place?, at?))
}

impl Transport for Stamped {
    fn count_from_here(&mut self) -> io::Result<()> {
        setsockopt(
            self.fd.get_ref(),
            sockopt::Timestamping,
            &(TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE
                | TimestampingFlag::SOF_TIMESTAMPING_TX_SOFTWARE
                | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE
                // By the place of the last byte in the stream, and without the packet.
                | TimestampingFlag::SOF_TIMESTAMPING_OPT_ID
                | TimestampingFlag::SOF_TIMESTAMPING_OPT_TSONLY),
        )
        .map_err(io::Error::from)
    }

    fn poll_chunk(
        &mut self,
        context: &mut Context<'_>,
        went: &mut VecDeque<(u32, Duration)>,
    ) -> Poll<io::Result<Chunk<'_>>> {
        ready!(Pin::new(&mut *self).poll_fill_buf(context))?;
        while let Some(sent) = sent(self.fd.get_ref(), &mut self.control) {
            went.push_back(sent);
        }
        Poll::Ready(Ok((&self.buffer[self.begin..self.end], self.stamp)))
    }
}

impl AsyncRead for Stamped {
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

impl AsyncBufRead for Stamped {
    fn poll_fill_buf(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let Self { fd, buffer, begin, end, control, stamp } = self.get_mut();
        if begin == end {
            let read = fd.poll_io(Direction::Read, context, |socket| receive(socket, buffer, control));
            let (length, seen) = ready!(read)?;
            fd.record_read(length, CHUNK);
            (*begin, *end, *stamp) = (0, length, seen);
        }
        Poll::Ready(Ok(&buffer[*begin..*end]))
    }

    fn consume(self: Pin<&mut Self>, amount: usize) {
        self.get_mut().begin += amount;
    }
}

impl AsyncWrite for Stamped {
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
