//! Received packets: by queue if the driver counts so, and those that busy polls took.

use std::fs;
use std::io;

use crate::error::Error;
use crate::host::Interface;
use crate::netlink::netdev::Netdev;
use crate::netlink::route;

#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum RxPackets {
    PerQueue(Vec<(u32, u64)>),
    /// Of the whole interface, if the driver doesn't count by queue.
    Interface(u64),
}

impl RxPackets {
    pub fn total(&self) -> u64 {
        match self {
            RxPackets::PerQueue(queues) => queues.iter().map(|(_, packets)| packets).sum(),
            RxPackets::Interface(packets) => *packets,
        }
    }

    /// Reads the netdev netlink queue statistics, or else the link's counter.
    pub fn read(interface: &Interface) -> Result<Self, Error> {
        let by_queue = Netdev::open().and_then(|mut netdev| netdev.rx_packets(interface.index));
        match by_queue {
            Ok(queues) if !queues.is_empty() => Ok(RxPackets::PerQueue(queues)),
            _ => {
                let links = route::links().map_err(Error::kernel("read the interface's packet count"))?;
                let link = links.into_iter().find(|link| link.index == interface.index);
                Ok(RxPackets::Interface(link.and_then(|link| link.rx_packets).unwrap_or(0)))
            }
        }
    }
}

/// Packets that busy polls have received since boot, in the calling thread's network namespace
/// (`BusyPollRxPackets` in `/proc/thread-self/net/netstat`).
///
/// # Errors
/// If the file can't be read; `Unsupported` if the kernel has no such counter.
pub fn busy_poll_rx_packets() -> io::Result<u64> {
    // /proc/self would be the namespace of the process's main thread.
    let text = fs::read_to_string("/proc/thread-self/net/netstat")?;
    parse_netstat(&text, "TcpExt:", "BusyPollRxPackets").ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "this kernel has no BusyPollRxPackets counter")
    })
}

/// Finds a counter in `netstat`, which has pairs of lines with the same prefix: names, then values.
fn parse_netstat(text: &str, prefix: &str, counter: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(prefix));
    let (names, values) = (lines.next()?, lines.next()?);
    names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(name, _)| *name == counter)
        .and_then(|(_, value)| value.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_netstat_counter_is_found_by_its_column() {
        let text = "TcpExt: SyncookiesSent BusyPollRxPackets\nTcpExt: 3 42\nIpExt: InNoRoutes\nIpExt: 1\n";
        assert_eq!(parse_netstat(text, "TcpExt:", "BusyPollRxPackets"), Some(42));
        assert_eq!(parse_netstat(text, "TcpExt:", "Nonesuch"), None);
    }
}
