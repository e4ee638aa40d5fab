//! Datagrams that are received or sent by one call (`recvmmsg(2)`, `sendmmsg(2)`).

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

use socket2::{SockAddr, SockAddrStorage};

use crate::tcp::internet_address;
use crate::udp_message::{ControlBuffer, DatagramInfo, SendOptions, header};

/// The most messages that the kernel takes in one call (`UIO_MAXIOV`).
const MOST: usize = 1024;

/// Room for datagrams that one call receives, which can be used again
/// ([`UdpSocket::recv_batch`](crate::UdpSocket::recv_batch)).
pub struct RecvBatch {
    /// A buffer for each datagram, one after the other.
    buffers: Box<[u8]>,
    each: usize,
    senders: Box<[SockAddrStorage]>,
    controls: Box<[ControlBuffer]>,
    received: Vec<DatagramInfo>,
}

impl fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBatch").field("received", &self.received).finish_non_exhaustive()
    }
}

impl RecvBatch {
    /// Room for so many datagrams, 1024 at most, of so many bytes each. What is longer loses its
    /// end. With [`set_gro`](crate::UdpSocket::set_gro) a buffer takes several datagrams of one
    /// sender, and needs 64 KiB.
    ///
    /// # Panics
    /// If one of the numbers is 0.
    pub fn new(datagrams: usize, bytes: usize) -> Self {
        assert!(datagrams > 0 && bytes > 0, "a batch needs room for datagrams");
        let datagrams = datagrams.min(MOST);
        Self {
            buffers: vec![0; datagrams * bytes].into(),
            each: bytes,
            senders: (0..datagrams).map(|_| SockAddrStorage::zeroed()).collect(),
            controls: (0..datagrams).map(|_| ControlBuffer::new()).collect(),
            received: Vec::with_capacity(datagrams),
        }
    }

    /// What the last call has received, in order: what is known of each, and its bytes.
    pub fn iter(&self) -> impl Iterator<Item = (&DatagramInfo, &[u8])> {
        let buffers = self.buffers.chunks(self.each);
        self.received.iter().zip(buffers).map(|(info, buffer)| (info, &buffer[..info.length]))
    }

    /// How many datagrams the last call has received, each of those that came together counted.
    pub(crate) fn datagrams(&self) -> usize {
        self.received.iter().map(DatagramInfo::count).sum()
    }

    /// How many bytes the last call has received.
    pub(crate) fn bytes(&self) -> usize {
        self.received.iter().map(|info| info.length).sum()
    }

    pub(crate) fn receive(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        self.received.clear();
        let mut parts: Vec<_> = self
            .buffers
            .chunks_mut(self.each)
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() })
            .collect();
        let places = self.senders.iter_mut().zip(self.controls.iter_mut()).zip(&mut parts);
        let headers = places.map(|((sender, control), part)| {
            let length = size_of::<SockAddrStorage>() as libc::socklen_t;
            let msg_hdr = header(((&raw mut *sender).cast(), length), part, control.bytes_mut());
            libc::mmsghdr { msg_hdr, msg_len: 0 }
        });
        let mut headers: Vec<libc::mmsghdr> = headers.collect();
        // SAFETY: `headers` has as many elements as is said. The kernel writes to them, and to what
        // each points to within the length beside the pointer: a sender's storage, a control
        // buffer, and by its part a buffer, all of this batch, which is borrowed exclusively.
        // Nobody uses them, or the parts in this frame, until the call returns.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        let places = self.senders.iter_mut().zip(self.controls.iter());
        for (header, (sender, control)) in headers.iter().zip(places).take(received) {
            let message = &header.msg_hdr;
            let sender = std::mem::replace(sender, SockAddrStorage::zeroed());
            // SAFETY: the kernel has written a sender's address of this length to the storage.
            let sender = unsafe { SockAddr::new(sender, message.msg_namelen) };
            let received = (header.msg_len as usize, message.msg_flags);
            let sender = internet_address(&sender)?;
            self.received.push(DatagramInfo::new(received, sender, control, message.msg_controllen as _));
        }
        Ok(received)
    }
}

/// A datagram of [`UdpSocket::send_batch`](crate::UdpSocket::send_batch).
#[derive(Debug, Clone, Copy)]
pub struct OutgoingDatagram<'a> {
    /// What it carries; several datagrams if the options have a segment size.
    pub bytes: &'a [u8],
    /// The address to which it is sent.
    pub to: SocketAddr,
    /// How it is sent.
    pub options: SendOptions,
}

pub(crate) fn send(socket: &impl AsFd, datagrams: &[OutgoingDatagram<'_>]) -> io::Result<usize> {
    let datagrams = &datagrams[..datagrams.len().min(MOST)];
    let receivers: Vec<_> = datagrams.iter().map(|datagram| SockAddr::from(datagram.to)).collect();
    let controls = datagrams.iter().map(|datagram| datagram.options.control(datagram.to.ip()));
    let mut controls: Vec<ControlBuffer> = controls.collect::<io::Result<_>>()?;
    let parts = datagrams.iter().map(|datagram| libc::iovec {
        iov_base: datagram.bytes.as_ptr().cast_mut().cast(),
        iov_len: datagram.bytes.len(),
    });
    let mut parts: Vec<_> = parts.collect();
    let places = receivers.iter().zip(&mut controls).zip(&mut parts);
    let headers = places.map(|((to, control), part)| {
        let address = (to.as_ptr().cast_mut().cast(), to.len());
        libc::mmsghdr { msg_hdr: header(address, part, control.written()), msg_len: 0 }
    });
    let mut headers: Vec<libc::mmsghdr> = headers.collect();
    // SAFETY: `headers` has as many elements as is said, to which the kernel writes lengths. It
    // only reads what they point to, within the length beside each pointer: an address, the
    // messages of a control buffer, and by its part the bytes of a datagram. All of them live until
    // the call returns.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_fd().as_raw_fd(),
            headers.as_mut_ptr(),
            headers.len() as libc::c_uint,
            libc::MSG_NOSIGNAL as _,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
