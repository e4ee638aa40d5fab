//! Who else on this machine moves interrupts or holds queues.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use procfs::process::{Process, all_processes};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketType, UCred, connect, recvmsg, sendmsg, socket, sockopt,
};
use serde::Serialize;

use crate::{Cpus, Error, JournalDir, Lifetime, Policy};

/// Queues of an interface that a running process holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The process.
    pub pid: u32,
    /// What it runs on them.
    pub policy: Policy,
    /// Their numbers.
    pub queues: Cpus,
}

/// The running processes that hold queues of an interface.
pub fn holders(interface: &str, journals: &JournalDir) -> Result<Vec<Holder>, Error> {
    let journals = journals.read()?.into_iter().map(|(_, journal)| journal);
    Ok(journals
        .filter(|journal| journal.interface == interface && journal.lifetime == Lifetime::Process)
        .filter(|journal| !journal.is_abandoned())
        .map(|journal| Holder {
            pid: journal.writer.pid,
            policy: journal.policy,
            queues: journal.queues.iter().copied().collect(),
        })
        .collect())
}

/// How long irqbalance may take to answer, and how much it may say: some sixty bytes an interrupt.
const PATIENCE: Duration = Duration::from_secs(2);
const LONGEST_ANSWER: usize = 4 << 20;

/// A running irqbalance: each ten seconds it moves interrupts as it sees fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Irqbalance {
    /// Its process.
    pub pid: i32,
}

impl Irqbalance {
    /// Finds it among the processes that this one may see.
    pub fn find() -> Option<Self> {
        // Only root's: anybody may call a process so.
        let named = |process: &Process| {
            process.uid().is_ok_and(|owner| owner == 0)
                && process.stat().is_ok_and(|stat| stat.comm == "irqbalance")
        };
        let process = all_processes().ok()?.filter_map(Result::ok).find(named)?;
        Some(Self { pid: process.pid })
    }

    /// The interrupts that it has been told to leave alone.
    pub fn banned(&self) -> io::Result<Vec<u32>> {
        Ok(parse_setup(&self.ask("setup")?))
    }

    /// Has it leave exactly these interrupts alone: the list replaces the one that it had. Needs root.
    pub fn ban(&self, irqs: &[u32]) -> io::Result<()> {
        let list = irqs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let list = if list.is_empty() { "NONE".to_owned() } else { list };
        self.ask(&format!("settings ban irqs {list}")).map(drop)
    }

    /// One request over its socket (irqbalance(1), "API"), which wants to know who asks.
    fn ask(&self, request: &str) -> io::Result<String> {
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
        // It answers some requests, and closes after each. One that only trickles is cut off.
        let give_up = Instant::now() + PATIENCE;
        let mut answer = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        sockopt::set_socket_timeout(&stream, sockopt::Timeout::Recv, Some(PATIENCE))?;
        loop {
            if Instant::now() > give_up || answer.len() > LONGEST_ANSWER {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "irqbalance's answer does not end"));
            }
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [io::IoSliceMut::new(&mut buffer)];
            match recvmsg(stream.as_fd(), &mut slices, &mut ancillary, RecvFlags::empty()) {
                Ok(message) if message.bytes == 0 => break,
                Ok(message) => answer.extend_from_slice(&buffer[..message.bytes]),
                Err(rustix::io::Errno::CONNRESET) => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }

    /// Its socket is a file below /run, or where that can't be made an abstract one.
    fn connect(&self) -> io::Result<OwnedFd> {
        let name = format!("irqbalance{}.sock", self.pid);
        let addresses = [
            SocketAddrUnix::new(Path::new("/run/irqbalance").join(&name)),
            SocketAddrUnix::new_abstract_name(name.as_bytes()),
        ];
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for address in addresses {
            let stream = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
            match connect(&stream, &address?) {
                Ok(()) => return Ok(stream),
                Err(error) => refused = error.into(),
            }
        }
        Err(refused)
    }
}

/// `SLEEP 10 IRQ 31 LOAD 0 DIFF 12 CLASS 5 ... BANNED 00000000`: the interrupts are the banned ones.
fn parse_setup(answer: &str) -> Vec<u32> {
    let mut words = answer.split_whitespace();
    let mut irqs = Vec::new();
    while let Some(word) = words.next() {
        if word == "IRQ" {
            irqs.extend(words.next().and_then(|number| number.parse::<u32>().ok()));
        }
    }
    irqs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interrupts_that_irqbalance_leaves_alone_are_found_in_its_answer() {
        let answer = "SLEEP 10 IRQ 31 LOAD 0 DIFF 12 CLASS 5 IRQ 40 LOAD 3 DIFF 0 CLASS 5 BANNED 00000000";
        assert_eq!(parse_setup(answer), [31, 40]);
        assert_eq!(parse_setup("SLEEP 10 BANNED 0"), [0u32; 0]);
    }
}
