//! Received packets, by queue if the driver counts so.

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
