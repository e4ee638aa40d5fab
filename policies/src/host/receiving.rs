//! How a device spreads received packets over its queues, and what it drops.

#![expect(unsafe_code, reason = "neither rustix nor netlink has the number of ntuple rules")]

use std::ffi::c_char;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use serde::{Deserialize, Serialize};

use super::interface::{Interface, sysfs};
use crate::netlink::ethtool::{Ethtool, FlowControl, Rss};
use crate::netlink::netdev::Netdev;

/// What decides on which queue of a device a packet arrives, and whether it arrives. What can't be
/// read is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Receiving {
    pub rss: Option<Rss>,
    /// The number of rules that send flows elsewhere (`ethtool -n`).
    pub ntuple_rules: Option<u32>,
    pub flow_control: Option<FlowControl>,
    /// Packets that each queue has dropped: `(queue, packets)`. Empty if the driver doesn't count
    /// them.
    pub queue_drops: Vec<(u32, u64)>,
    /// Packets that found no room in the device (`rx_missed_errors`).
    pub missed: Option<u64>,
    /// Packets that were received and dropped (`rx_dropped`).
    pub dropped: Option<u64>,
}

impl Receiving {
    /// Reads an interface's, which takes some system calls.
    pub fn of(interface: &Interface) -> Self {
        let (name, index) = (&interface.name, interface.index);
        let mut ethtool = Ethtool::open().ok();
        let statistic = |counter: &str| {
            let file = sysfs::class_net(name).join("statistics").join(counter);
            fs::read_to_string(file).ok()?.trim().parse().ok()
        };
        Self {
            rss: ethtool.as_mut().and_then(|it| it.rss(index).ok()),
            ntuple_rules: ntuple_rules(name).ok(),
            flow_control: ethtool.as_mut().and_then(|it| it.flow_control(index).ok()),
            queue_drops: Netdev::open().and_then(|mut netdev| netdev.rx_drops(index)).unwrap_or_default(),
            missed: statistic("rx_missed_errors"),
            dropped: statistic("rx_dropped"),
        }
    }

    pub fn drops_of(&self, queue: u32) -> Option<u64> {
        self.queue_drops.iter().find(|(index, _)| *index == queue).map(|(_, drops)| *drops)
    }

    /// The queues of `interface` to which no hash leads; empty if that is not known.
    pub fn queues_without_entry(&self, interface: &Interface) -> Vec<u32> {
        let Some(rss) = &self.rss else { return Vec::new() };
        let queues = interface.queues.iter().map(|queue| queue.index);
        queues.filter(|index| !rss.entries.iter().any(|(queue, _)| queue == index)).collect()
    }
}

/// `struct ethtool_rxnfc`, of which only the number of rules is read here.
#[repr(C, align(8))]
struct RxRules {
    command: u32,
    /// `flow_type`, `data`, and `fs`, a rule.
    unused: [u32; 45],
    rules: u32,
    padding: u32,
}

const _: () = assert!(size_of::<RxRules>() == 192 && std::mem::offset_of!(RxRules, rules) == 184);

/// `ETHTOOL_GRXCLSRLCNT`
const COUNT_RX_RULES: u32 = 0x2e;

/// The number of a device's ntuple rules, by ioctl: netlink doesn't have them.
///
/// # Errors
/// `EOPNOTSUPP` if the driver has none, `ENODEV` if there is no such interface.
fn ntuple_rules(interface: &str) -> io::Result<u32> {
    // Any socket does: the interface is that of its network namespace.
    let socket = UnixDatagram::unbound()?;
    let mut rules = RxRules { command: COUNT_RX_RULES, unused: [0; 45], rules: 0, padding: 0 };
    let mut name = [0; libc::IFNAMSIZ];
    if interface.len() >= name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in name.iter_mut().zip(interface.bytes()) {
        *to = from as c_char;
    }
    let data = (&raw mut rules).cast::<c_char>();
    let mut request =
        libc::ifreq { ifr_name: name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: data } };
    // SAFETY: the request holds a name that ends with a zero, and a pointer to a
    // `struct ethtool_rxnfc`. Both live through the call. The kernel copies that struct, whose size
    // is asserted above, in and out again; for this command it reads and writes nothing beyond it.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(rules.rules) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_counters_and_neither_rules_nor_a_table() {
        let receiving = Receiving::of(&crate::host::interface("lo").unwrap());
        assert_eq!((receiving.missed, receiving.dropped.is_some()), (Some(0), true));
        assert_eq!((receiving.rss, receiving.ntuple_rules, receiving.flow_control), (None, None, None));
        let unsupported = ntuple_rules("lo").unwrap_err().raw_os_error();
        assert_eq!(unsupported, Some(libc::EOPNOTSUPP));
        assert_eq!(ntuple_rules("nonexistent0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
