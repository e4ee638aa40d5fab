//! Descriptors that are passed to another process beside a datagram (`SCM_RIGHTS` in `unix(7)`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// The most descriptors that a datagram has (`SCM_MAX_FD`, include/net/scm.h).
const MOST: usize = 253;

/// What [`UnixDatagram::recv_with_descriptors`](crate::UnixDatagram::recv_with_descriptors) has received.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReceivedDescriptors {
    /// How many bytes of the buffer the datagram has filled.
    pub length: usize,
    /// Whether the datagram was longer than the buffer: the rest is lost.
    pub truncated: bool,
    /// The descriptors, in the sender's order. They close when they are dropped, and at `exec`.
    pub descriptors: Vec<OwnedFd>,
    /// The sender passed more: this process may have no more open files (`RLIMIT_NOFILE`), and the kernel has closed the
    /// others.
    pub descriptors_lost: bool,
}

/// Sends a datagram with descriptors, which stay open here, too.
pub(super) fn send(socket: impl AsFd, datagram: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        let error = format!("{} descriptors: at most {MOST} can be passed at once", descriptors.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, error));
    }
    Ok(sendmsg(socket, &[IoSlice::new(datagram)], &mut control, SendFlags::NOSIGNAL)?)
}

pub(super) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<ReceivedDescriptors> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    Ok(ReceivedDescriptors {
        length: received.bytes,
        truncated: received.flags.contains(ReturnFlags::TRUNC),
        descriptors,
        descriptors_lost: received.flags.contains(ReturnFlags::CTRUNC),
    })
}
