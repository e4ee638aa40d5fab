//! The two packet sockets of a fleet (packet(7)): a receive ring in shared memory, and a sender. Everything unsafe about them is in this file.

#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with};

/// Bytes of a slot of the receive ring. Holds a frame of 1500 bytes with the kernel's header.
const SLOT: usize = 2048;
const SLOTS: usize = 4096;
/// Bytes of a block of the ring; the kernel allocates blocks of contiguous memory.
const BLOCK: usize = 1 << 16;
/// Bytes of `struct virtio_net_hdr` in front of each frame that is sent.
pub(super) const OFFLOAD_HEADER: usize = 10;

const SEND_BUFFER: libc::c_int = 16 << 20;

/// Opens a packet socket, bound to an interface; with `protocol` 0 it receives nothing.
fn open(
    interface: u32,
    protocol: u16,
    set_up: impl FnOnce(&OwnedFd) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
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

/// Sends frames, one packet a call.
#[derive(Debug)]
pub(super) struct PacketSender(OwnedFd);

impl PacketSender {
    /// `bypasses`: whether frames go past the queueing discipline.
    pub(super) fn open(interface: u32, bypasses: bool) -> io::Result<Self> {
        open(interface, 0, |socket| {
            // A header for offloads in front of each frame. As a device that checks checksums
            // would, it spares the receiver the sum over the payload.
            set_option(socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1i32)?;
            set_option(socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, i32::from(bypasses))?;
            // Packets in the server's queue count against the buffer; they must not make a send
            // wait.
            set_option(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER)
        })
        .map(Self)
    }

    /// Sends a frame that begins with an [`OFFLOAD_HEADER`]. Returns false if the receiving queue or
    /// the send buffer was full: the packet is lost, as on a network.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<bool> {
        match retry_on_intr(|| send(&self.0, frame, SendFlags::DONTWAIT)) {
            Err(Errno::NOBUFS | Errno::AGAIN) => Ok(false),
            sent => {
                sent?;
                Ok(true)
            }
        }
    }
}

/// Loads the destination of an IPv4 packet, of which a raw socket sees the Ethernet header, too.
const LOAD_DESTINATION: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const DESTINATION: u32 = 14 + 16;
const SKIP_UNLESS_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Lets a socket receive packets for one address alone (a socket filter, classic BPF): other fleets
/// receive by the same interface.
fn receive_for(socket: &OwnedFd, address: Ipv4Addr) -> io::Result<()> {
    let instruction = |code, k, jf| libc::sock_filter { code, jt: 0, jf, k };
    let mut filter = [
        instruction(LOAD_DESTINATION, DESTINATION, 0),
        instruction(SKIP_UNLESS_EQUAL, address.to_bits(), 1),
        instruction(RETURN, u32::MAX, 0),
        instruction(RETURN, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: `program` is a live value of `length` bytes, and points to as many instructions as it
    // says, in `filter`, which lives until the end of this function. The kernel only reads both, in
    // the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            length,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives IPv4 packets through a ring that it shares with the kernel (`TPACKET_V2`), without
/// system calls.
#[derive(Debug)]
pub(super) struct PacketRing {
    socket: OwnedFd,
    memory: MmapRaw,
    next: usize,
}

impl PacketRing {
    pub(super) fn open(interface: u32, address: Ipv4Addr) -> io::Result<Self> {
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as libc::c_uint,
            tp_block_nr: (SLOT * SLOTS / BLOCK) as libc::c_uint,
            tp_frame_size: SLOT as libc::c_uint,
            tp_frame_nr: SLOTS as libc::c_uint,
        };
        let socket = open(interface, libc::ETH_P_IP as u16, |socket| {
            receive_for(socket, address)?;
            set_option(socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1i32)?;
            set_option(
                socket,
                libc::SOL_PACKET,
                libc::PACKET_VERSION,
                libc::tpacket_versions::TPACKET_V2 as libc::c_int,
            )?;
            set_option(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, request)
        })?;
        let memory = MmapOptions::new().len(SLOT * SLOTS).populate().map_raw(&socket)?;
        Ok(Self { socket, memory, next: 0 })
    }

    /// Gives the next packet to `handle`, from its IPv4 header on, if there is one.
    #[inline]
    pub(super) fn receive(&mut self, handle: impl FnOnce(&[u8])) -> bool {
        // SAFETY: `next` is below SLOTS, so the slot lies within the mapping.
        let slot = unsafe { self.memory.as_mut_ptr().add(self.next * SLOT) };
        // SAFETY: a slot begins with the 32-bit status word, aligned because slots are. Kernel and
        // program hand the slot to each other by it, so both sides access it atomically.
        let status = unsafe { AtomicU32::from_ptr(slot.cast()) };
        // Acquire: the packet was written before the status.
        if status.load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return false;
        }
        // SAFETY: the slot begins with this structure, of integers, and is aligned for it. The kernel
        // has handed the slot over and doesn't write to it until the status is reset below.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        // SAFETY: the kernel doesn't write to the slot, as above. All SLOT bytes lie within the
        // mapping, and `bytes` does not outlive the call.
        let bytes = unsafe { std::slice::from_raw_parts(slot, SLOT) };
        let end = (usize::from(header.tp_mac) + header.tp_snaplen as usize).min(SLOT);
        handle(bytes.get(header.tp_net.into()..end).unwrap_or_default());
        // Release: the kernel must not reuse the slot before its bytes were read.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        true
    }

    /// Packets that found the ring full since the last call.
    pub(super) fn take_drops(&self) -> io::Result<u64> {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
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
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(statistics.tp_drops.into()) }
    }
}
