//! A packet capture of TCP: when data goes to a port, and comes from it.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, Socket, Type};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// The kernel's timestamp, since 1970.
    pub at: Duration,
    pub client: u16,
    pub to_server: bool,
}

#[derive(Debug)]
pub struct Capture {
    thread: JoinHandle<io::Result<Vec<Packet>>>,
    /// When it ends, in nanoseconds since 1970; 0 while it runs.
    stop: Arc<AtomicU64>,
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Every protocol (`packet(7)`), in network byte order.
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();

impl Capture {
    /// Captures packets from and to a server's port on loopback. Needs `CAP_NET_RAW`.
    pub fn start(port: u16) -> io::Result<Self> {
        // On loopback each packet is seen once outgoing and once incoming.
        Self::start_of(libc::PACKET_OUTGOING, port)
    }

    /// Captures packets that this host receives for a server's port, in the calling thread's
    /// network namespace. Needs `CAP_NET_RAW`.
    pub fn start_incoming(port: u16) -> io::Result<Self> {
        Self::start_of(libc::PACKET_HOST, port)
    }

    fn start_of(packet_type: u8, port: u16) -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(i32::from(ALL))))?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let socket = OwnedFd::from(socket);
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20))?;
        let stop = Arc::new(AtomicU64::new(0));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || capture(&socket, packet_type, port, &stopped));
        Ok(Self { thread, stop })
    }

    /// Ends the capture. Returns all packets with data by their timestamps.
    pub fn finish(self) -> io::Result<Vec<Packet>> {
        self.stop.store(now(), Ordering::Relaxed);
        let mut packets = self.thread.join().expect("the capture's thread")?;
        packets.sort_unstable_by_key(|packet| packet.at);
        Ok(packets)
    }
}

fn capture(socket: &OwnedFd, packet_type: u8, port: u16, stop: &AtomicU64) -> io::Result<Vec<Packet>> {
    let mut packets = Vec::new();
    let mut control = nix::cmsg_space!(TimeSpec);
    let mut buffer = [0; 128];
    loop {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let received =
            recvmsg::<LinkAddr>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::MSG_TRUNC);
        let (address, stamp) = match received {
            Ok(message) => {
                let stamp = message.cmsgs()?.find_map(|control| match control {
                    ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
                    _ => None,
                });
                (message.address, stamp)
            }
            // After this timeout everything from before the end has been read.
            Err(nix::errno::Errno::EAGAIN) if stop.load(Ordering::Relaxed) > 0 => return Ok(packets),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let over = Some(stop.load(Ordering::Relaxed)).filter(|over| *over > 0);
        if stamp.zip(over).is_some_and(|(at, over)| at > Duration::from_nanos(over)) {
            // Packets of others may never cease.
            return Ok(packets);
        }
        let wanted = address.is_some_and(|address| address.pkttype() == packet_type);
        if let (true, Some(at)) = (wanted, stamp) {
            packets.extend(parse(&buffer, at, port));
        }
    }
}

/// Parses IPv4 and TCP (RFC 791, RFC 9293). `None` without data, or if it is not from or to the
/// port.
fn parse(bytes: &[u8], at: Duration, port: u16) -> Option<Packet> {
    let number = |bytes: &[u8], at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    const TCP: u8 = 6;
    if bytes.first()? >> 4 != 4 || *bytes.get(9)? != TCP {
        return None;
    }
    let head = usize::from(bytes[0] & 15) * 4;
    let tcp = bytes.get(head..)?;
    let data = usize::from(number(bytes, 2)?).checked_sub(head + usize::from(tcp.get(12)? >> 4) * 4)?;
    let (from, to) = (number(tcp, 0)?, number(tcp, 2)?);
    let client = if to == port { from } else { to };
    (data > 0 && (from == port || to == port)).then_some(Packet { at, client, to_server: to == port })
}
