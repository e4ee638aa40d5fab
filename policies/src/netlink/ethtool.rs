//! The `ethtool` family: interrupt coalescing, rings, channels, features.
//!
//! Numbers from `include/uapi/linux/ethtool_netlink_generated.h`; semantics from
//! `Documentation/networking/ethtool-netlink.rst`.

use std::io;

use super::Request;
use super::generic::{Frame, GenericConnection};
use super::message::Attribute;
use crate::json::json_text;
use crate::names;

const FEATURES_GET: u8 = 11;
const FEATURES_SET: u8 = 12;
const RINGS_GET: u8 = 15;
const RINGS_SET: u8 = 16;
const CHANNELS_GET: u8 = 17;
const CHANNELS_SET: u8 = 18;
const COALESCE_GET: u8 = 19;
const COALESCE_SET: u8 = 20;

/// Identifies the interface, in every message.
const HEADER: u16 = 1;
const HEADER_DEV_INDEX: u16 = 1;

mod channels {
    pub const RX_MAX: u16 = 2;
    pub const COMBINED_MAX: u16 = 5;
    pub const RX_COUNT: u16 = 6;
    pub const COMBINED_COUNT: u16 = 9;
}

mod rings {
    pub const RX_MAX: u16 = 2;
    pub const RX: u16 = 6;
}

mod features {
    pub const WANTED: u16 = 3;
    pub const ACTIVE: u16 = 4;
    pub const BITS: u16 = 3;
    pub const BIT: u16 = 1;
    pub const BIT_NAME: u16 = 2;
    pub const BIT_VALUE: u16 = 3;
}

/// An interrupt coalescing parameter of a device (`ethtool -C`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Coalescing {
    /// Whether the device or its driver adapts the receive parameters itself: 0 or 1.
    AdaptiveRx,
    /// Whether the device or its driver adapts the transmit parameters itself: 0 or 1.
    AdaptiveTx,
    /// Microseconds from a received packet to its interrupt.
    RxUsecs,
    /// Received packets after which the interrupt is raised at once.
    RxFrames,
    /// Microseconds from a sent packet to its completion interrupt.
    TxUsecs,
    /// Sent packets after which the completion interrupt is raised at once.
    TxFrames,
}

// The adaptive switches come first, because while they are on the device ignores the others. The
// names are ethtool's.
names!(
    Coalescing, "parameter": AdaptiveRx = "adaptive-rx", AdaptiveTx = "adaptive-tx", RxUsecs = "rx-usecs",
    RxFrames = "rx-frames", TxUsecs = "tx-usecs", TxFrames = "tx-frames"
);
json_text!(Coalescing);

impl Coalescing {
    pub fn is_switch(self) -> bool {
        matches!(self, Coalescing::AdaptiveRx | Coalescing::AdaptiveTx)
    }

    fn attribute(self) -> u16 {
        match self {
            Coalescing::RxUsecs => 2,
            Coalescing::RxFrames => 3,
            Coalescing::TxUsecs => 6,
            Coalescing::TxFrames => 7,
            Coalescing::AdaptiveRx => 11,
            Coalescing::AdaptiveTx => 12,
        }
    }
}

/// The number of receive queues of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Channels {
    /// Whether a channel is a pair of a receive and a transmit queue.
    pub combined: bool,
    pub count: u32,
    pub max: u32,
}

/// The size of the receive rings of a device, in descriptors; a packet takes at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct RxRing {
    pub size: u32,
    pub max: u32,
}

/// A connection to the family. Requests fail with `EOPNOTSUPP` for what the device does not support
/// (a veth has neither coalescing nor rings), and with `ENODEV` if there is no such interface.
/// Requests that set a value also fail with `EPERM` without `CAP_NET_ADMIN` in the network
/// namespace, and with `EINVAL` or `ERANGE` beyond the device's limit.
#[derive(Debug)]
pub struct Ethtool(GenericConnection);

impl Ethtool {
    /// # Errors
    /// `NotFound` on kernels before 5.6, which lack the family.
    pub fn open() -> io::Result<Self> {
        GenericConnection::open("ethtool").map(Self)
    }

    /// The coalescing parameters that the device supports, with their values.
    pub fn coalescing(&mut self, ifindex: u32) -> io::Result<Vec<(Coalescing, u32)>> {
        let frame = self.get(COALESCE_GET, ifindex)?;
        let value = |which: Coalescing| Some((which, frame.number(which.attribute())? as u32));
        Ok(Coalescing::ALL.into_iter().filter_map(value).collect())
    }

    pub fn set_coalescing(&mut self, ifindex: u32, which: Coalescing, value: u32) -> io::Result<()> {
        let attribute = match which.is_switch() {
            true => Attribute::byte(which.attribute(), u8::from(value != 0)),
            false => Attribute::number(which.attribute(), value),
        };
        self.set(COALESCE_SET, ifindex, attribute)
    }

    pub fn rx_ring(&mut self, ifindex: u32) -> io::Result<RxRing> {
        let frame = self.get(RINGS_GET, ifindex)?;
        let number = |kind| frame.number(kind).map(|number| number as u32);
        let size = number(rings::RX).ok_or(io::ErrorKind::Unsupported)?;
        Ok(RxRing { size, max: number(rings::RX_MAX).unwrap_or(size) })
    }

    /// Sets the size of the device's receive rings, in descriptors. A driver may round it up to a
    /// multiple that the device needs. It rebuilds its rings, and drops packets meanwhile.
    pub fn set_rx_ring(&mut self, ifindex: u32, size: u32) -> io::Result<()> {
        self.set(RINGS_SET, ifindex, Attribute::number(rings::RX, size))
    }

    pub fn channels(&mut self, ifindex: u32) -> io::Result<Channels> {
        let frame = self.get(CHANNELS_GET, ifindex)?;
        let number = |kind| frame.number(kind).map_or(0, |number| number as u32);
        // A device with both kinds uses the combined channels first (ethtool-netlink.rst).
        let combined = number(channels::COMBINED_MAX) > 0;
        let (count, max) = if combined {
            (channels::COMBINED_COUNT, channels::COMBINED_MAX)
        } else {
            (channels::RX_COUNT, channels::RX_MAX)
        };
        Ok(Channels { combined, count: number(count), max: number(max) })
    }

    /// Sets the number of receive channels. The driver rebuilds its queues and drops packets
    /// meanwhile; most drivers lose the affinity of their interrupts.
    pub fn set_channels(&mut self, ifindex: u32, combined: bool, count: u32) -> io::Result<()> {
        let kind = if combined { channels::COMBINED_COUNT } else { channels::RX_COUNT };
        self.set(CHANNELS_SET, ifindex, Attribute::number(kind, count))
    }

    /// Whether a feature (`ethtool -k` lists their names) is on.
    pub fn has_feature(&mut self, ifindex: u32, name: &str) -> io::Result<bool> {
        let frame = self.get(FEATURES_GET, ifindex)?;
        // A list of the bits that are on.
        let active = frame.inner(features::ACTIVE);
        let bits = active.iter().filter(|attribute| attribute.kind() == features::BITS);
        let bits: Vec<Attribute> = bits.flat_map(Attribute::inner).collect();
        let is_named = |bit: &Attribute| {
            let inner = bit.inner();
            inner.iter().any(|it| it.kind() == features::BIT_NAME && it.as_text() == name)
        };
        Ok(bits.iter().any(is_named))
    }

    /// Switches features (`ethtool -k` lists their names) on or off.
    pub fn set_features(&mut self, ifindex: u32, wanted: &[(&str, bool)]) -> io::Result<()> {
        let bit = |&(name, on): &(&str, bool)| {
            let mut bit = vec![Attribute::text(features::BIT_NAME, name)];
            bit.extend(on.then(|| Attribute::flag(features::BIT_VALUE)));
            Attribute::nested(features::BIT, &bit)
        };
        let bits: Vec<_> = wanted.iter().map(bit).collect();
        let bits = Attribute::nested(features::BITS, &bits);
        self.set(FEATURES_SET, ifindex, Attribute::nested(features::WANTED, &[bits]))
    }

    fn get(&mut self, command: u8, ifindex: u32) -> io::Result<Frame> {
        let frames = self.0.request(command, &[header(ifindex)], Request::Acknowledged(0))?;
        frames.into_iter().next().ok_or_else(|| io::Error::other("the kernel sent no reply"))
    }

    fn set(&mut self, command: u8, ifindex: u32, attribute: Attribute) -> io::Result<()> {
        self.0.request(command, &[header(ifindex), attribute], Request::Acknowledged(0)).map(drop)
    }
}

fn header(ifindex: u32) -> Attribute {
    Attribute::nested(HEADER, &[Attribute::number(HEADER_DEV_INDEX, ifindex)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_loopback_are_read() {
        let index = crate::host::interface("lo").unwrap().index;
        let mut ethtool = Ethtool::open().unwrap();
        assert!(ethtool.has_feature(index, "loopback").unwrap());
        assert!(!ethtool.has_feature(index, "rx-lro").unwrap());
    }

    #[test]
    fn loopback_supports_neither_coalescing_nor_channels_nor_rings() {
        let index = crate::host::interface("lo").unwrap().index;
        let mut ethtool = Ethtool::open().unwrap();
        let unsupported = Some(rustix::io::Errno::OPNOTSUPP.raw_os_error());
        assert_eq!(ethtool.coalescing(index).unwrap_err().raw_os_error(), unsupported);
        assert_eq!(ethtool.channels(index).unwrap_err().raw_os_error(), unsupported);
        assert_eq!(ethtool.rx_ring(index).unwrap_err().raw_os_error(), unsupported);
    }
}
