//! The `netdev` family: queues, NAPIs and per-queue statistics.
//!
//! Numbers from `include/uapi/linux/netdev.h`; semantics from
//! `Documentation/networking/napi.rst` and `Documentation/netlink/specs/netdev.yaml`.

use std::io;

use super::Request;
use super::generic::{Frame, GenericConnection};
use super::message::Attribute;

const QUEUE_GET: u8 = 10;
const NAPI_GET: u8 = 11;
const QSTATS_GET: u8 = 12;
const NAPI_SET: u8 = 14;

mod napi {
    pub const IFINDEX: u16 = 1;
    pub const ID: u16 = 2;
    pub const IRQ: u16 = 3;
    pub const PID: u16 = 4;
    pub const DEFER_HARD_IRQS: u16 = 5;
    pub const GRO_FLUSH_TIMEOUT: u16 = 6;
    pub const IRQ_SUSPEND_TIMEOUT: u16 = 7;
    pub const THREADED: u16 = 8;
}

mod queue {
    pub const ID: u16 = 1;
    pub const IFINDEX: u16 = 2;
    pub const TYPE: u16 = 3;
    pub const NAPI_ID: u16 = 4;
    pub const TYPE_RX: u64 = 0;
    pub const TYPE_TX: u64 = 1;
}

mod qstats {
    pub const IFINDEX: u16 = 1;
    pub const QUEUE_TYPE: u16 = 2;
    pub const QUEUE_ID: u16 = 3;
    pub const SCOPE: u16 = 4;
    pub const SCOPE_QUEUE: u32 = 1;
    pub const RX_PACKETS: u16 = 8;
}

/// The value of [`NapiSetting::Threaded`] for a kernel thread that polls all the time and keeps the
/// interrupt masked (`NETDEV_NAPI_THREADED_BUSY_POLL`).
pub const THREADED_BUSY_POLL: u64 = 2;

/// A NAPI: the poll context of a queue, with its settings. Settings that the kernel doesn't report
/// are `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Napi {
    /// The id, as `SO_INCOMING_NAPI_ID` returns it for a socket.
    pub id: u32,
    /// The interrupt's number, if the driver reports it.
    pub irq: Option<u32>,
    /// The thread id of the kernel thread that polls the NAPI, if it is threaded.
    pub pid: Option<u32>,
    /// The number of empty polls that re-arm the timer instead of the interrupt.
    pub defer_hard_irqs: Option<u64>,
    /// The timer after an empty poll (grace time), in nanoseconds.
    pub gro_flush_timeout: Option<u64>,
    /// The longest time that interrupts stay suspended without a poll, in nanoseconds (Linux 6.13).
    pub irq_suspend_timeout: Option<u64>,
    /// Whether a kernel thread polls the NAPI: 0 no; 1 when packets wake it (Linux 6.17);
    /// [`THREADED_BUSY_POLL`] all the time (Linux 6.19).
    pub threaded: Option<u64>,
}

impl Napi {
    /// The value of a setting; `None` if the kernel has no such setting.
    pub fn value(&self, setting: NapiSetting) -> Option<u64> {
        match setting {
            NapiSetting::DeferHardIrqs => self.defer_hard_irqs,
            NapiSetting::GroFlushTimeout => self.gro_flush_timeout,
            NapiSetting::IrqSuspendTimeout => self.irq_suspend_timeout,
            NapiSetting::Threaded => self.threaded,
        }
    }

    /// Whether a kernel thread polls the NAPI all the time. No busy poll of an application gets
    /// packets from it then.
    pub fn has_polling_thread(&self) -> bool {
        self.threaded == Some(THREADED_BUSY_POLL)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NapiSetting {
    DeferHardIrqs,
    GroFlushTimeout,
    IrqSuspendTimeout,
    Threaded,
}

impl NapiSetting {
    fn attribute(self) -> u16 {
        match self {
            NapiSetting::DeferHardIrqs => napi::DEFER_HARD_IRQS,
            NapiSetting::GroFlushTimeout => napi::GRO_FLUSH_TIMEOUT,
            NapiSetting::IrqSuspendTimeout => napi::IRQ_SUSPEND_TIMEOUT,
            NapiSetting::Threaded => napi::THREADED,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ReportedQueue {
    pub index: u32,
    /// The id of the queue's NAPI, if the driver links them.
    pub napi: Option<u32>,
}

/// A connection to the family. Requests fail with `EOPNOTSUPP` on kernels that lack them, and with
/// `ENODEV` if there is no such interface.
#[derive(Debug)]
pub struct Netdev(GenericConnection);

impl Netdev {
    /// # Errors
    /// `NotFound` on kernels before 6.3, which don't have the family.
    pub fn open() -> io::Result<Self> {
        GenericConnection::open("netdev").map(Self)
    }

    /// The receive queues and the transmit queues of an interface (Linux 6.8).
    pub fn queues(&mut self, ifindex: u32) -> io::Result<(Vec<ReportedQueue>, Vec<ReportedQueue>)> {
        let frames =
            self.0.request(QUEUE_GET, &[Attribute::number(queue::IFINDEX, ifindex)], Request::Dump)?;
        let of_type = |kind: u64| {
            let mut queues: Vec<_> = frames
                .iter()
                .filter(|frame| frame.number(queue::TYPE) == Some(kind))
                .filter_map(|frame| {
                    Some(ReportedQueue {
                        index: frame.number(queue::ID)? as u32,
                        napi: frame.number(queue::NAPI_ID).map(|id| id as u32),
                    })
                })
                .collect();
            queues.sort_unstable_by_key(|queue| queue.index);
            queues
        };
        Ok((of_type(queue::TYPE_RX), of_type(queue::TYPE_TX)))
    }

    /// The NAPIs of an interface in ascending order of their ids (Linux 6.8).
    pub fn napis(&mut self, ifindex: u32) -> io::Result<Vec<Napi>> {
        let frames = self.0.request(NAPI_GET, &[Attribute::number(napi::IFINDEX, ifindex)], Request::Dump)?;
        let mut napis: Vec<_> = frames.iter().filter_map(parse_napi).collect();
        napis.sort_unstable_by_key(|napi| napi.id);
        Ok(napis)
    }

    /// One NAPI by its id (Linux 6.8).
    ///
    /// # Errors
    /// `NotFound` if there is no such NAPI.
    pub fn napi(&mut self, id: u32) -> io::Result<Napi> {
        let frames =
            self.0.request(NAPI_GET, &[Attribute::number(napi::ID, id)], Request::Acknowledged(0))?;
        frames.iter().find_map(parse_napi).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Sets one value of a NAPI (Linux 6.13). Needs `CAP_NET_ADMIN` in the initial user namespace.
    ///
    /// # Errors
    /// `InvalidInput` if the value doesn't fit 32 bits, `NotFound` if there is no such NAPI,
    /// `EPERM` without the capability.
    pub fn set_napi(&mut self, id: u32, setting: NapiSetting, value: u64) -> io::Result<()> {
        let value = u32::try_from(value).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{value} does not fit 32 bits"))
        })?;
        let attributes = [Attribute::number(napi::ID, id), Attribute::number(setting.attribute(), value)];
        self.0.request(NAPI_SET, &attributes, Request::Acknowledged(0)).map(drop)
    }

    /// Received packets by queue (Linux 6.10): `(queue, packets)`. Empty if the driver doesn't
    /// count them.
    pub fn rx_packets(&mut self, ifindex: u32) -> io::Result<Vec<(u32, u64)>> {
        let attributes = [
            Attribute::number(qstats::IFINDEX, ifindex),
            Attribute::number(qstats::SCOPE, qstats::SCOPE_QUEUE),
        ];
        let frames = self.0.request(QSTATS_GET, &attributes, Request::Dump)?;
        let is_rx = |frame: &&Frame| frame.number(qstats::QUEUE_TYPE) == Some(queue::TYPE_RX);
        let count =
            |frame: &Frame| Some((frame.number(qstats::QUEUE_ID)? as u32, frame.number(qstats::RX_PACKETS)?));
        Ok(frames.iter().filter(is_rx).filter_map(count).collect())
    }
}

fn parse_napi(frame: &Frame) -> Option<Napi> {
    Some(Napi {
        id: frame.number(napi::ID)? as u32,
        irq: frame.number(napi::IRQ).map(|irq| irq as u32),
        pid: frame.number(napi::PID).map(|pid| pid as u32),
        defer_hard_irqs: frame.number(napi::DEFER_HARD_IRQS),
        gro_flush_timeout: frame.number(napi::GRO_FLUSH_TIMEOUT),
        irq_suspend_timeout: frame.number(napi::IRQ_SUSPEND_TIMEOUT),
        threaded: frame.number(napi::THREADED),
    })
}
