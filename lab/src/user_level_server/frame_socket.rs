//! An AF_XDP socket in copy mode: frames that it receives and sends, in memory that it shares with the kernel. Everything
//! unsafe about it is in this file.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size_force;
use rustix::net::{SendFlags, send};
use xdp::nic::NicIndex;

use xdp::slab::{HeapSlab, Slab};
use xdp::socket::{XdpSocket, XdpSocketBuilder};
use xdp::umem::{FrameSize, UmemCfgBuilder};
use xdp::{CompletionRing, FillRing, Packet, RingConfigBuilder, RxRing, TxRing, Umem};

use super::spec::LostFrames;
use super::xdp_program::XdpError;

/// Frames that wait for packets: twice what a veth's queue holds.
const RECEIVE_FRAMES: u32 = 512;
/// Frames for what is sent, and has not been received yet.
const SEND_FRAMES: u32 = 2048;
/// Packets that are taken from the ring at a time.
const BATCH: usize = 64;
/// Frames that the kernel sends in one system call (`TX_BATCH_SIZE`).
const KERNEL_BATCH: usize = 32;
/// Bytes of the send buffer. Packets that the other side has not received yet count against it, and must not make a send wait.
const SEND_BUFFER: usize = 16 << 20;
/// Sends frames.
pub(super) struct FrameSender {
    umem: Umem,
    ring: TxRing,
    completed: CompletionRing,
    outgoing: HeapSlab,
    /// Frames that the kernel has and has not sent yet.
    in_kernel: usize,
    /// Whether the kernel was not asked to send some of them, or could not.
    unsent: bool,
    /// Frames that could not be had because all were in use.
    refused: u64,
    /// Frames that the receiver's queue had no room for: one for each call that says so.
    dropped: u64,
}

/// An AF_XDP socket, bound to queue 0 of an interface.
pub(super) struct FrameSocket {
    // Closed before the memory is unmapped, which the sender owns.
    socket: XdpSocket,
    fill: FillRing,
    ring: RxRing,
    received: HeapSlab,
    /// Frames that were received and not replaced yet.
    to_fill: usize,
    pub(super) sender: FrameSender,
}

impl FrameSocket {
    /// Binds a socket in copy mode.
    pub(super) fn open(interface: u32) -> Result<Self, XdpError> {
        const KERNEL: &str = "root (CAP_NET_RAW and CAP_NET_ADMIN), and a kernel with CONFIG_XDP_SOCKETS";
        let error = |step| move |source| XdpError { step, needs: KERNEL, source };
        let config = |error: xdp::error::Error| XdpError {
            step: "configure the AF_XDP socket's rings",
            needs: KERNEL,
            source: io::Error::other(error.to_string()),
        };
        let umem = UmemCfgBuilder {
            frame_size: FrameSize::TwoK,
            frame_count: RECEIVE_FRAMES + SEND_FRAMES,
            ..UmemCfgBuilder::default()
        };
        let umem = Umem::map(umem.build().map_err(config)?)
            .map_err(error("map memory for the AF_XDP socket's frames"))?;
        let rings = RingConfigBuilder {
            rx_count: RECEIVE_FRAMES,
            fill_count: RECEIVE_FRAMES,
            tx_count: SEND_FRAMES,
            completion_count: SEND_FRAMES,
        };
        let mut builder = XdpSocketBuilder::new().map_err(socket_error("open an AF_XDP socket"))?;
        let rings = builder.build_rings(&umem, rings.build().map_err(config)?);
        let (rings, mut flags) = rings.map_err(socket_error("set up the AF_XDP socket's rings"))?;
        // SAFETY: the descriptor is the builder's, which lives until the socket is bound.
        let fd = unsafe { BorrowedFd::borrow_raw(builder.as_raw_fd()) };
        set_socket_send_buffer_size_force(fd, SEND_BUFFER)
            .map_err(|errno| error("set the AF_XDP socket's send buffer")(errno.into()))?;
        // Said, not left to the kernel: what is measured is copy mode, also where a driver has more.
        flags.force_copy();
        let socket = builder
            .bind(NicIndex(interface), 0, flags)
            .map_err(socket_error("bind the AF_XDP socket to the interface's queue"))?;
        let no_ring = || XdpError {
            step: "set up the AF_XDP socket's rings",
            needs: KERNEL,
            source: io::ErrorKind::NotFound.into(),
        };
        let sender = FrameSender {
            umem,
            ring: rings.tx_ring.ok_or_else(no_ring)?,
            completed: rings.completion_ring,
            outgoing: HeapSlab::with_capacity(SEND_FRAMES as usize),
            in_kernel: 0,
            unsent: false,
            refused: 0,
            dropped: 0,
        };
        let mut socket = Self {
            socket,
            fill: rings.fill_ring,
            ring: rings.rx_ring.ok_or_else(no_ring)?,
            received: HeapSlab::with_capacity(BATCH),
            to_fill: RECEIVE_FRAMES as usize,
            sender,
        };
        socket.fill();
        Ok(socket)
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.socket.raw_fd()
    }

    /// Gives the next frame to `handle`, if there is one.
    #[inline]
    pub(super) fn receive(&mut self, handle: impl FnOnce(&[u8], &mut FrameSender)) -> bool {
        if self.received.is_empty() {
            // SAFETY: the packets point into `umem`, which this value owns. They stay in `received` until they are freed below,
            // so none outlives it.
            unsafe { self.ring.recv(&self.sender.umem, &mut self.received) };
        }
        let Some(packet) = self.received.pop_back() else { return false };
        handle(&packet, &mut self.sender);
        self.sender.umem.free_packet(packet);
        self.to_fill += 1;
        true
    }

    /// Hands what was written to the kernel, and replaces the frames that were received. One system call for
    /// [`KERNEL_BATCH`] frames, and none if there are none to be sent.
    ///
    /// # Errors
    /// If the interface is down or gone.
    #[inline]
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.fill();
        let sender = &mut self.sender;
        // SAFETY: the packets were allocated from `umem`, which lives as long as the socket: both belong to this value, and the
        // socket is closed first.
        let submitted = unsafe { sender.ring.send(&mut sender.outgoing) };
        sender.in_kernel += submitted;
        sender.unsent |= submitted > 0;
        sender.reclaim();
        if !sender.unsent {
            return Ok(());
        }
        // SAFETY: the descriptor is the socket's, which lives as long as `self`.
        let fd = unsafe { BorrowedFd::borrow_raw(self.socket.raw_fd()) };
        // Bounded: what the kernel can't send now it is asked to with the next call.
        for _ in 0..=sender.in_kernel / KERNEL_BATCH {
            let result = send(fd, &[], SendFlags::DONTWAIT).map(drop);
            sender.dropped += u64::from(result == Err(Errno::BUSY));
            sender.unsent = has_more(result)?;
            if !sender.unsent {
                break;
            }
        }
        Ok(())
    }

    /// What was lost since the socket was opened.
    pub(super) fn lost_frames(&self) -> LostFrames {
        let FrameSender { refused, dropped, .. } = self.sender;
        LostFrames { refused, dropped, received: self.receive_losses() }
    }

    /// Received packets that the kernel had to drop.
    fn receive_losses(&self) -> Option<u64> {
        let mut statistics = MaybeUninit::<libc::xdp_statistics>::zeroed();
        let mut length = size_of::<libc::xdp_statistics>() as libc::socklen_t;
        // SAFETY: the pointers are to live values, and the kernel writes at most `length` bytes to the first.
        let result = unsafe {
            libc::getsockopt(
                self.socket.raw_fd(),
                libc::SOL_XDP,
                libc::XDP_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        // SAFETY: numbers, for which zeroes are valid where the kernel has written nothing.
        let statistics = unsafe { statistics.assume_init() };
        // A packet that finds no frame in the fill ring is one of `rx_dropped`.
        (result == 0).then_some(statistics.rx_dropped + statistics.rx_ring_full)
    }

    /// Gives the kernel frames to receive into.
    fn fill(&mut self) {
        if self.to_fill > 0 {
            // SAFETY: `umem` lives as long as the socket, as in `flush`.
            self.to_fill -= unsafe { self.fill.enqueue(&mut self.sender.umem, self.to_fill) };
        }
    }
}

impl FrameSender {
    /// Whether a frame can be had. The frames for reception are never spent on what is sent: at most [`SEND_FRAMES`] are in use
    /// for that, and reception has [`RECEIVE_FRAMES`] in its rings, in the program, or to be filled in.
    #[inline]
    pub(super) fn has_room(&mut self) -> bool {
        if self.in_use() >= SEND_FRAMES as usize {
            self.reclaim();
        }
        self.in_use() < SEND_FRAMES as usize
    }

    /// Frames that were written and not sent yet.
    fn in_use(&self) -> usize {
        self.outgoing.len() + self.in_kernel
    }

    /// Has `write` fill a frame of `length` bytes, which the next flush sends. Without a free frame it is lost, as on a network
    /// whose queue is full.
    #[inline]
    pub(super) fn write<R>(&mut self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let has_room = self.has_room();
        // SAFETY: the packet points into `umem`, which this value owns. It stays in `outgoing` until the ring takes it.
        let packet = if has_room { unsafe { self.umem.alloc() } } else { None };
        let packet = packet.and_then(|mut packet: Packet| {
            let length = i32::try_from(length).ok()?;
            match packet.adjust_tail(length) {
                Ok(()) => Some(packet),
                Err(_) => {
                    self.umem.free_packet(packet);
                    None
                }
            }
        });
        match packet {
            Some(mut packet) => {
                let result = write(&mut packet);
                // Has room, as it has a place for each frame that may be in use.
                if let Some(packet) = self.outgoing.push_front(packet) {
                    self.umem.free_packet(packet);
                    self.refused += 1;
                }
                result
            }
            None => {
                self.refused += 1;
                write(&mut vec![0; length])
            }
        }
    }

    /// Takes back the frames that were sent.
    fn reclaim(&mut self) {
        self.in_kernel -= self.completed.dequeue(&mut self.umem, self.in_kernel);
    }
}

/// Whether the kernel may have left frames in the ring, and wants to be called again. It has emptied the ring only if the call
/// succeeds (`__xsk_generic_xmit`): `EAGAIN` ends a batch, and `EBUSY` is for a packet that a full queue of the receiver has lost,
/// as on a network, with the frames after it left in the ring.
fn has_more(result: rustix::io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(false),
        Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn socket_error(step: &'static str) -> impl Fn(xdp::socket::SocketError) -> XdpError {
    use xdp::socket::SocketError;
    move |error| {
        let source = match error {
            SocketError::SocketCreation(error) | SocketError::Bind(error) => error,
            SocketError::SetSockOpt { inner, .. }
            | SocketError::GetSockOpt { inner, .. }
            | SocketError::RingMap { inner, .. } => inner,
        };
        XdpError {
            step,
            needs: "root (CAP_NET_RAW and CAP_NET_ADMIN), and a kernel with CONFIG_XDP_SOCKETS",
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_asked_again_until_it_has_emptied_the_ring() {
        assert!(!has_more(Ok(())).unwrap());
        for errno in [Errno::AGAIN, Errno::BUSY, Errno::NOBUFS, Errno::INTR] {
            assert!(has_more(Err(errno)).unwrap(), "{errno}");
        }
        assert!(has_more(Err(Errno::NETDOWN)).is_err());
    }
}
