//! Received packets: by queue if the driver counts so, and by the CPU that polled them, in whichever context.

use std::fs;
use std::io;

use serde::Serialize;

use crate::error::Error;
use crate::host::Interface;
use crate::netlink::netdev::Netdev;
use crate::netlink::route;

/// Received packets of an interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RxPackets {
    /// By queue: `(queue, packets)`.
    PerQueue(Vec<(u32, u64)>),
    /// Of the whole interface, if the driver doesn't count by queue.
    Interface(u64),
}

impl RxPackets {
    /// The sum over all queues.
    pub fn total(&self) -> u64 {
        match self {
            RxPackets::PerQueue(queues) => queues.iter().map(|(_, packets)| packets).sum(),
            RxPackets::Interface(packets) => *packets,
        }
    }

    /// Reads the netdev netlink queue statistics, or else the link's counter.
    pub(super) fn read(interface: &Interface) -> Result<Self, Error> {
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

/// Reads `processed` of `/proc/net/softnet_stat`: index is the CPU's number, and offline CPUs have 0.
///
/// `__netif_receive_skb_core` counts there what it hands to protocols: in a softirq, in a NAPI's kernel
/// thread and in a busy poll alike.
pub(super) fn received_by_cpu() -> io::Result<Vec<u64>> {
    parse(&fs::read_to_string("/proc/net/softnet_stat")?).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse(text: &str) -> Option<Vec<u64>> {
    /// The column of the CPU's number, from 0 (Linux 5.10).
    const CPU: usize = 12;
    let mut received = Vec::new();
    for (position, line) in text.lines().enumerate() {
        let mut columns = line.split_whitespace().map(|column| u64::from_str_radix(column, 16).ok());
        let processed = columns.next()??;
        // Offline CPUs have no line. Older kernels don't say which CPU a line is for.
        let cpu = match columns.nth(CPU - 1) {
            Some(cpu) => usize::try_from(cpu?).ok()?,
            None => position,
        };
        if received.len() <= cpu {
            received.resize(cpu + 1, 0);
        }
        received[cpu] = processed;
    }
    Some(received)
}

/// The difference of two readings of a counter that the kernel keeps in 32 bits.
pub(super) fn received_since(now: u64, then: u64) -> u64 {
    now.wrapping_sub(then) & u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_belong_to_the_cpu_in_their_late_column() {
        let text = "0000000a 0 0 0 0 0 0 0 0 0 0 0 00000000 00000000 00000000\n\
                    000000ff 0 0 0 0 0 0 0 0 0 0 0 00000003 00000000 00000000\n";
        assert_eq!(parse(text), Some(vec![10, 0, 0, 255]));
    }

    #[test]
    fn without_that_column_lines_are_in_the_order_of_cpus() {
        assert_eq!(parse("0000000a 0 0\n0000000b 0 0\n"), Some(vec![10, 11]));
        assert_eq!(parse("not hexadecimal\n"), None);
    }

    #[test]
    fn a_counter_that_overflowed_still_gives_the_difference() {
        assert_eq!(received_since(5, 0xffff_fffe), 7);
        assert_eq!(received_since(7, 5), 2);
    }
}
