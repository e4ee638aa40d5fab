//! A network of two namespaces whose packets a thread forwards, and loses, repeats, delays or resets. Each end is a TUN
//! device, so TCP on both sides is the kernel's. Every kernel with `CONFIG_TUN` can do that; few have `sch_netem`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::testbed::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub const SERVER: &str = "198.18.1.1";
const CLIENT: &str = "198.18.1.2";
/// Longer than a batch of segments, shorter than a retransmission timeout.
const DELAY: Duration = Duration::from_millis(5);

/// What happens to packets: shares in thousandths.
#[derive(Debug, Default)]
pub struct Impairment {
    pub lost: AtomicU32,
    pub repeated: AtomicU32,
    /// So long that later ones overtake them.
    pub delayed: AtomicU32,
    /// Connections are reset on both sides, as by a firewall that has lost its state. Of packets with data.
    pub reset: AtomicU32,
    /// How many packets were lost, repeated, delayed and reset so far.
    pub counts: [AtomicU64; 4],
}

/// Ends with its thread when it is dropped.
#[derive(Debug)]
pub struct Tunnel {
    pub impairment: Arc<Impairment>,
    over: Arc<AtomicBool>,
    forwarder: Option<JoinHandle<()>>,
}

/// `struct ifreq` of `linux/if.h`, of which TUNSETIFF reads the name and the flags.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// `TUNSETIFF`, `IFF_TUN` and `IFF_NO_PI` of `linux/if_tun.h`.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca_u32 as libc::Ioctl;
const IFF_TUN: u16 = 1;
const IFF_NO_PI: u16 = 0x1000;

/// Opens a new device in the calling thread's namespace, and gives it an address.
#[allow(unsafe_code)]
fn open_device(own: &str, peer: &str) -> io::Result<File> {
    let mut options = File::options();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut request = InterfaceRequest { name: [0; 16], flags: IFF_TUN | IFF_NO_PI, rest: [0; 22] };
    request.name[..5].copy_from_slice(b"lossy");
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, 40 bytes on 64-bit Linux; `request` has this size and
    // layout, and lives until the call has returned. The descriptor is open.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    for arguments in [
        &["addr", "add", own, "peer", peer, "dev", "lossy"][..],
        // Some queue, so that a burst is not dropped here.
        &["link", "set", "lossy", "up", "txqueuelen", "5000"],
    ] {
        if !Command::new("ip").args(arguments).status()?.success() {
            return Err(io::Error::other(format!("ip {} failed", arguments.join(" "))));
        }
    }
    Ok(file)
}

impl Tunnel {
    pub fn between(server: &Namespace, client: &Namespace) -> io::Result<Self> {
        let ends = [server.run(|| open_device(SERVER, CLIENT))?, client.run(|| open_device(CLIENT, SERVER))?];
        let (impairment, over) = (Arc::new(Impairment::default()), Arc::new(AtomicBool::new(false)));
        let shared = (Arc::clone(&impairment), Arc::clone(&over));
        let forwarder = std::thread::spawn(move || forward(&ends, &shared.0, &shared.1));
        Ok(Self { impairment, over, forwarder: Some(forwarder) })
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(forwarder) = self.forwarder.take() {
            let _ = forwarder.join();
        }
    }
}

fn forward(ends: &[File; 2], impairment: &Impairment, over: &AtomicBool) {
    // Always the same sequence; which packets it meets is a matter of time.
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut late: BTreeMap<(Instant, u64), (usize, Vec<u8>)> = BTreeMap::new();
    let mut buffer = vec![0; 65536];
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        let mut waiting = ends.each_ref().map(|end| PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN));
        let _ = poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 1_000_000 }));
        while late.first_key_value().is_some_and(|((due, _), _)| *due <= Instant::now()) {
            let (_, (to, packet)) = late.pop_first().expect("there is one");
            let _ = (&ends[to]).write(&packet);
        }
        for from in [0, 1] {
            let to = 1 - from;
            // A few of each side in turn.
            for _ in 0..32 {
                let Ok(length) = (&ends[from]).read(&mut buffer) else { break };
                let packet = &buffer[..length];
                let mut chance = |share: &AtomicU32, kind: usize| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    let happens = (seed >> 20) % 1000 < u64::from(share.load(Ordering::Relaxed));
                    impairment.counts[kind].fetch_add(happens.into(), Ordering::Relaxed);
                    happens
                };
                if chance(&impairment.lost, 0) {
                    continue;
                }
                if has_data(packet) && chance(&impairment.reset, 3) {
                    let _ = (&ends[to]).write(&reset(packet, false));
                    let _ = (&ends[from]).write(&reset(packet, true));
                    continue;
                }
                if chance(&impairment.repeated, 1) {
                    let _ = (&ends[to]).write(packet);
                }
                if chance(&impairment.delayed, 2) {
                    number += 1;
                    late.insert((Instant::now() + DELAY, number), (to, packet.to_vec()));
                    continue;
                }
                let _ = (&ends[to]).write(packet);
            }
        }
    }
}

fn has_data(packet: &[u8]) -> bool {
    let tcp = packet.len() >= 40 && packet[0] == 0x45 && packet[9] == 6;
    tcp && packet.len() > 20 + usize::from(packet[32] >> 4) * 4
}

/// The reset of a TCP packet's connection: to its receiver, or back to its sender.
fn reset(packet: &[u8], back: bool) -> Vec<u8> {
    let mut reset = packet[..40].to_vec();
    if back {
        reset[12..16].copy_from_slice(&packet[16..20]);
        reset[16..20].copy_from_slice(&packet[12..16]);
        reset[20..22].copy_from_slice(&packet[22..24]);
        reset[22..24].copy_from_slice(&packet[20..22]);
        // A RST is accepted if its sequence number is the next that the receiver expects: the one it has acknowledged.
        reset[24..28].copy_from_slice(&packet[28..32]);
    }
    reset[2..4].copy_from_slice(&40_u16.to_be_bytes());
    // A header of five words, and the flag RST alone.
    reset[28..32].fill(0);
    (reset[32], reset[33]) = (5 << 4, 4);
    reset[10..12].fill(0);
    let header = !sum(&reset[..20], 0);
    reset[10..12].copy_from_slice(&header.to_be_bytes());
    reset[36..40].fill(0);
    // The pseudo header: addresses, protocol and length.
    let pseudo = sum(&reset[12..20], 6 + 20);
    let checksum = !sum(&reset[20..], pseudo.into());
    reset[36..38].copy_from_slice(&checksum.to_be_bytes());
    reset
}

/// The sum of the internet checksum (RFC 1071).
fn sum(bytes: &[u8], start: u32) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum = start + words.sum::<u32>();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
