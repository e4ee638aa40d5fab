//! What a packet capture sees of TCP on this machine's loopback: when data goes to a port, and comes back.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, Socket, Type};

/// A packet with data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    /// When the kernel saw it, since 1970.
    pub at: Duration,
    /// The client's port.
    pub client: u16,
    /// Whether it went to the server.
    pub to_server: bool,
}

/// A capture that runs.
#[derive(Debug)]
pub struct Capture {
    thread: JoinHandle<io::Result<Vec<Packet>>>,
    /// When it is over, in nanoseconds since 1970; 0 is not yet.
    stop: Arc<AtomicU64>,
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Every protocol (`packet(7)`), as it is on the wire.
const ALL: u16 = (libc::ETH_P_ALL as u16).to_be();
/// Of addresses in front of a packet: it goes out. On loopback each goes out and comes in.
const OUTGOING: u8 = libc::PACKET_OUTGOING;

impl Capture {
    /// Captures what goes from and to a server's port; needs `CAP_NET_RAW`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(port: u16) -> io::Result<Self> {
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(i32::from(ALL))))?;
        socket.set_read_timeout(Some(Duration::from_millis(50)))?;
        let socket = OwnedFd::from(socket);
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20))?;
        let stop = Arc::new(AtomicU64::new(0));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || capture(&socket, port, &stopped));
        Ok(Self { thread, stop })
    }

    /// All packets with data, in their order.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// Where the capture did.
    pub fn finish(self) -> io::Result<Vec<Packet>> {
        self.stop.store(now(), Ordering::Relaxed);
        let mut packets = self.thread.join().expect("the capture's thread")?;
        packets.sort_unstable_by_key(|packet| packet.at);
        Ok(packets)
    }
}

fn capture(socket: &OwnedFd, port: u16, stop: &AtomicU64) -> io::Result<Vec<Packet>> {
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
            // What was seen before the end has come by then.
            Err(nix::errno::Errno::EAGAIN) if stop.load(Ordering::Relaxed) > 0 => return Ok(packets),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let over = Some(stop.load(Ordering::Relaxed)).filter(|over| *over > 0);
        if stamp.zip(over).is_some_and(|(at, over)| at > Duration::from_nanos(over)) {
            // There may be no end of others' packets.
            return Ok(packets);
        }
        let outgoing = address.is_some_and(|address| address.pkttype() == OUTGOING);
        if let (true, Some(at)) = (outgoing, stamp) {
            packets.extend(parse(&buffer, at, port));
        }
    }
}

/// IPv4 and TCP (RFC 791, RFC 9293), with data, from or to a port.
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
