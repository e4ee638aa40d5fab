//! Talks to a running irqbalance over its socket (`irqbalance(1)`, "API").

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketType, UCred, connect, recvmsg, sendmsg, socket, sockopt,
};

use super::process_stat::ProcessStat;

const REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// The most bytes of a reply, which has some sixty bytes for each interrupt.
const MAX_REPLY: usize = 4 << 20;

/// A running irqbalance. It may move any interrupt every ten seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Irqbalance {
    pub pid: i32,
}

impl Irqbalance {
    /// Finds irqbalance among the processes that are visible to this one.
    pub fn find() -> Option<Self> {
        // Only a process of root: any user can start one of this name.
        let is_irqbalance = |entry: &fs::DirEntry, pid: i32| {
            entry.metadata().is_ok_and(|data| data.uid() == 0)
                && ProcessStat::read(pid).is_ok_and(|stat| stat.name == "irqbalance")
        };
        fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            is_irqbalance(&entry, pid).then_some(Self { pid })
        })
    }

    /// The banned interrupts: those that irqbalance does not move.
    ///
    /// # Errors
    /// If the socket can't be connected, or no reply comes within two seconds. `PermissionDenied`
    /// if irqbalance closes the connection without a reply, as it does unless root asks.
    pub fn banned(&self) -> io::Result<Vec<u32>> {
        let reply = self.request("setup")?;
        match reply.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::PermissionDenied, "irqbalance replies to root only")),
            false => Ok(parse_setup(&reply)),
        }
    }

    /// Replaces the list of banned interrupts. Needs root.
    ///
    /// # Errors
    /// If the socket can't be connected, or irqbalance does not close the connection within two
    /// seconds.
    pub fn ban(&self, irqs: &[u32]) -> io::Result<()> {
        let list = irqs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let list = if list.is_empty() { "NONE".to_owned() } else { list };
        self.request(&format!("settings ban irqs {list}")).map(drop)
    }

    /// Sends one request, with the credentials that irqbalance checks, and returns the reply.
    fn request(&self, request: &str) -> io::Result<String> {
        let stream = self.connect()?;
        sockopt::set_socket_passcred(&stream, true)?;
        let credentials = UCred {
            pid: rustix::process::getpid(),
            uid: rustix::process::getuid(),
            gid: rustix::process::getgid(),
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmCredentials(credentials));
        sendmsg(&stream, &[io::IoSlice::new(request.as_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
        // irqbalance replies to some requests, and closes the connection after each. The deadline
        // also bounds a reply that arrives in small pieces.
        let deadline = Instant::now() + REPLY_TIMEOUT;
        let mut reply = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        sockopt::set_socket_timeout(&stream, sockopt::Timeout::Recv, Some(REPLY_TIMEOUT))?;
        loop {
            if Instant::now() > deadline || reply.len() > MAX_REPLY {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "irqbalance's reply took too long or was too long",
                ));
            }
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [io::IoSliceMut::new(&mut buffer)];
            match recvmsg(stream.as_fd(), &mut slices, &mut ancillary, RecvFlags::empty()) {
                Ok(message) if message.bytes == 0 => break,
                Ok(message) => reply.extend_from_slice(&buffer[..message.bytes]),
                Err(rustix::io::Errno::CONNRESET) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    /// The socket is below /run/irqbalance; irqbalance uses an abstract address if it can't create
    /// that.
    fn connect(&self) -> io::Result<OwnedFd> {
        let name = format!("irqbalance{}.sock", self.pid);
        let addresses = [
            SocketAddrUnix::new(Path::new("/run/irqbalance").join(&name)),
            SocketAddrUnix::new_abstract_name(name.as_bytes()),
        ];
        let mut last_error = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            let stream = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
            // Without it a connect waits for ever if irqbalance is stopped and its backlog full.
            sockopt::set_socket_timeout(&stream, sockopt::Timeout::Send, Some(REPLY_TIMEOUT))?;
            match connect(&stream, &address?) {
                Ok(()) => return Ok(stream),
                Err(error) => last_error = error.into(),
            }
        }
        Err(last_error)
    }
}

/// Parses `SLEEP 10 IRQ 31 LOAD 0 DIFF 12 CLASS 5 ... BANNED 00000000`. Only banned interrupts are
/// listed.
fn parse_setup(reply: &str) -> Vec<u32> {
    let mut words = reply.split_whitespace();
    let mut irqs = Vec::new();
    while let Some(word) = words.next() {
        if word == "IRQ" {
            irqs.extend(words.next().and_then(|number| number.parse::<u32>().ok()));
        }
    }
    irqs
}

#[cfg(test)]
pub(crate) mod tests;
