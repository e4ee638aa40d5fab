//! The two packet sockets of a fleet (packet(7)): a receive ring in shared memory, and a sender
//! that bypasses the queueing discipline. Everything unsafe about them is in this file.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a slot of the receive ring. Holds a frame of 1500 bytes with the kernel's header.
const SLOT: usize = 2048;
const SLOTS: usize = 4096;
/// Bytes of a block of the ring; the kernel allocates blocks of contiguous memory.
const BLOCK: usize = 1 << 16;
/// Bytes of `struct virtio_net_hdr` in front of each frame that is sent.
pub(super) const OFFLOAD_HEADER: usize = 10;

const SEND_BUFFER: libc::c_int = 16 << 20;

const ETH_P_IP: u16 = 0x0800;
/// `linux/if_packet.h`; not in `libc`.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Opens a packet socket, bound to an interface; with `protocol` 0 it receives nothing.
fn open(
    interface: u32,
    protocol: u16,
    set_up: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    set_up(&socket)?;
    // SAFETY: every bit pattern of 0 is a valid `sockaddr_ll`, which has integer fields alone.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = i32::try_from(interface).map_err(io::Error::other)?;
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the pointer is to a live `sockaddr_ll`, and `length` is its size.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(socket) }
}

fn set_option<T: Copy>(
    socket: &impl AsRawFd,
    level: libc::c_int,
    option: libc::c_int,
    value: T,
) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointer is to a live value of `length` bytes, which the kernel only reads.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes a read of a socket poll the queue that its packets come from, once and whatever it finds,
/// and keeps the queue's notifications masked between the reads (`SO_PREFER_BUSY_POLL`).
pub(super) fn busy_poll_on_read(socket: &impl AsRawFd) -> io::Result<()> {
    /// Packets that one read takes from the queue at most; NAPI's own limit.
    const BUDGET: libc::c_int = 64;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, 1i32)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, 1i32)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, BUDGET)
}

/// Sends frames past the queueing discipline, one packet a call.
#[derive(Debug)]
pub(super) struct PacketSender(OwnedFd);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendOutcome {
    Sent,
    /// The receiving queue or the send buffer was full: the packet is lost, as on a network.
    Dropped,
}

impl PacketSender {
    pub(super) fn open(interface: u32) -> io::Result<Self> {
        open(interface, 0, |socket| {
            // A header for offloads in front of each frame. As a device that checks checksums
            // would, it spares the receiver the sum over the payload.
            set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1i32)?;
            set_option(socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1i32)?;
            // Packets in the server's queue count against the buffer; they must not make a send
            // wait.
            set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)
        })
        .map(Self)
    }

    /// Sends a frame that begins with an [`OFFLOAD_HEADER`].
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<SendOutcome> {
        loop {
            // SAFETY: the pointer and the length are those of a live slice, which the kernel only
            // reads.
            let sent = unsafe {
                libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), libc::MSG_DONTWAIT)
            };
            if sent >= 0 {
                return Ok(SendOutcome::Sent);
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENOBUFS | libc::EAGAIN) => return Ok(SendOutcome::Dropped),
                Some(libc::EINTR) => {}
                _ => return Err(error),
            }
        }
    }
}

/// Receives IPv4 packets through a ring that it shares with the kernel (`TPACKET_V2`), without
/// system calls.
#[derive(Debug)]
pub(super) struct PacketRing {
    socket: OwnedFd,
    memory: NonNull<u8>,
    next: usize,
}

/// `struct tpacket_req`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RingRequest {
    block_size: libc::c_uint,
    block_count: libc::c_uint,
    slot_size: libc::c_uint,
    slot_count: libc::c_uint,
}

/// Where `struct tpacket2_hdr` has `tp_snaplen` and `tp_net`.
const CAPTURED_LENGTH: usize = 8;
const NETWORK_OFFSET: usize = 14;
const MAC_OFFSET: usize = 12;

impl PacketRing {
    pub(super) fn open(interface: u32) -> io::Result<Self> {
        let request = RingRequest {
            block_size: BLOCK as libc::c_uint,
            block_count: (SLOT * SLOTS / BLOCK) as libc::c_uint,
            slot_size: SLOT as libc::c_uint,
            slot_count: SLOTS as libc::c_uint,
        };
        let socket = open(interface, ETH_P_IP, |socket| {
            set_option(socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1i32)?;
            set_option(
                socket,
                libc::SOL_PACKET,
                libc::PACKET_VERSION,
                libc::tpacket_versions::TPACKET_V2 as libc::c_int,
            )?;
            set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, request)
        })?;
        // SAFETY: a new mapping at an address of the kernel's choice, of the size that the ring was
        // made with.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SLOT * SLOTS,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                socket.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { socket, memory, next: 0 })
    }

    /// Gives the next packet to `handle`, from its IPv4 header on, if there is one.
    #[inline]
    pub(super) fn receive(&mut self, handle: impl FnOnce(&[u8])) -> bool {
        // SAFETY: `next` is below SLOTS, so the slot lies within the mapping.
        let slot = unsafe { self.memory.add(self.next * SLOT) };
        // SAFETY: a slot begins with the 32-bit status word, aligned because slots are. Kernel and
        // program hand the slot to each other by it, so both sides access it atomically.
        let status = unsafe { AtomicU32::from_ptr(slot.as_ptr().cast()) };
        // Acquire: the packet was written before the status.
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        // SAFETY: the kernel has handed the slot over and doesn't write to it until the status is
        // reset below. All SLOT bytes lie within the mapping, and `bytes` does not outlive the
        // call.
        let bytes = unsafe { std::slice::from_raw_parts(slot.as_ptr(), SLOT) };
        let half = |at: usize| usize::from(u16::from_ne_bytes([bytes[at], bytes[at + 1]]));
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let captured = word(CAPTURED_LENGTH) as usize;
        let mac = half(MAC_OFFSET);
        let start = half(NETWORK_OFFSET);
        let end = (mac + captured).min(SLOT);
        handle(bytes.get(start..end).unwrap_or_default());
        // Release: the kernel must not reuse the slot before its bytes were read.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        true
    }

    /// Packets that found the ring full since the last call.
    pub(super) fn take_drops(&self) -> io::Result<u64> {
        /// `struct tpacket_stats`.
        #[repr(C)]
        #[derive(Default)]
        struct Statistics {
            packets: libc::c_uint,
            drops: libc::c_uint,
        }
        let mut statistics = Statistics::default();
        let mut length = size_of::<Statistics>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes to a live value of that size; both
        // pointers are valid for the call, and every bit pattern is valid for the integer fields.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(statistics.drops.into()) }
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, of this size, and no slice into it outlives
        // `receive`.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), SLOT * SLOTS) };
    }
}
