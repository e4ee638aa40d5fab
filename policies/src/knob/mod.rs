//! Single settings of the host: what they are called, who may set them, how they are read and
//! written, and what a policy loses without one.

pub(crate) mod permission;
mod read;
mod write;

pub(crate) use write::is_refusal;

use std::fmt;

use serde_core::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use serde_json::Value as Json;

use crate::host::Cpus;
use crate::json::json_variants;
use crate::netlink::ethtool::Coalescing;
use crate::policy::Policy;

/// A setting of the host that a policy may change.
///
/// Per-queue knobs are keyed by queue number, not by NAPI id: ids change when a link is reopened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Knob {
    Channels {
        /// Whether a channel is a pair of a receive and a transmit queue.
        combined: bool,
    },
    /// The size of the device's receive rings, in descriptors (`ethtool -G`).
    RxRing,
    /// An interrupt coalescing parameter of the device (`ethtool -C`).
    Coalesce { parameter: Coalescing },
    /// The CPUs of receive packet steering (`rps_cpus`).
    RpsCpus { queue: u32 },
    /// The size of the flow table of receive flow steering (`rps_flow_cnt`).
    RpsFlowCount { queue: u32 },
    /// The CPUs that send through the queue (`xps_cpus`).
    XpsCpus { queue: u32 },
    /// The CPUs that the receive queue's interrupt may go to (`smp_affinity_list`).
    IrqAffinity {
        queue: u32,
        /// The interrupt's number when the plan was made.
        irq: u32,
    },
    /// The CPUs that the interrupt of a transmit queue may go to, if no receive queue shares it.
    TxIrqAffinity {
        queue: u32,
        /// The interrupt's number when the plan was made.
        irq: u32,
    },
    /// `napi_defer_hard_irqs` of the device, on kernels without the per-NAPI setting (before 6.13).
    DeferHardIrqs,
    /// `gro_flush_timeout` of the device in nanoseconds, on kernels without the per-NAPI setting.
    GroFlushTimeout,
    /// `defer-hard-irqs` of the queue's NAPI: the number of empty polls that re-arm the timer
    /// instead of the interrupt.
    NapiDeferHardIrqs { queue: u32 },
    /// `gro-flush-timeout` of the queue's NAPI in nanoseconds: the grace time after an empty poll.
    NapiGroFlushTimeout { queue: u32 },
    /// `irq-suspend-timeout` of the queue's NAPI in nanoseconds: after this time without a poll the
    /// kernel polls again itself.
    NapiIrqSuspendTimeout { queue: u32 },
    /// Who polls the queue's NAPI: the softirq (0), a kernel thread that packets wake (1), or a
    /// kernel thread that polls all the time and keeps the interrupt masked (2, Linux 6.19).
    NapiThreaded { queue: u32 },
    /// The CPUs of the kernel thread that polls the queue's NAPI.
    NapiThreadAffinity { queue: u32 },
    /// The `SCHED_FIFO` priority of the kernel thread that polls the queue's NAPI, 1 to 99; 0 is an
    /// ordinary thread (`SCHED_OTHER`).
    NapiThreadPriority { queue: u32 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A count, a switch (0 or 1), or nanoseconds.
    Number(u64),
    Cpus(Cpus),
}

json_variants!(
    Knob, "knob": Channels = "channels" { combined }, RxRing = "rx-ring" {}, Coalesce = "coalesce" { parameter },
    RpsCpus = "rps-cpus" { queue }, RpsFlowCount = "rps-flow-count" { queue }, XpsCpus = "xps-cpus" { queue },
    IrqAffinity = "irq-affinity" { queue, irq }, TxIrqAffinity = "tx-irq-affinity" { queue, irq },
    DeferHardIrqs = "defer-hard-irqs" {}, GroFlushTimeout = "gro-flush-timeout" {},
    NapiDeferHardIrqs = "napi-defer-hard-irqs" { queue }, NapiGroFlushTimeout = "napi-gro-flush-timeout" { queue },
    NapiIrqSuspendTimeout = "napi-irq-suspend-timeout" { queue }, NapiThreaded = "napi-threaded" { queue },
    NapiThreadAffinity = "napi-thread-affinity" { queue }, NapiThreadPriority = "napi-thread-priority" { queue }
);

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Value::Number(number) => number.serialize(serializer),
            Value::Cpus(cpus) => cpus.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Json::deserialize(deserializer)?;
        match json.as_u64() {
            Some(number) => Ok(Value::Number(number)),
            None => Cpus::deserialize(json).map(Value::Cpus).map_err(D::Error::custom),
        }
    }
}

impl Value {
    pub(crate) fn number(&self) -> Option<u64> {
        match self {
            Value::Number(number) => Some(*number),
            Value::Cpus(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{number}"),
            Value::Cpus(cpus) if cpus.is_empty() => write!(f, "none"),
            Value::Cpus(cpus) => write!(f, "{cpus}"),
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Knob::Channels { combined: true } => write!(f, "combined channels"),
            Knob::Channels { combined: false } => write!(f, "rx channels"),
            Knob::RxRing => write!(f, "rx ring"),
            Knob::Coalesce { parameter } => write!(f, "{}", parameter.name()),
            Knob::RpsCpus { queue } => write!(f, "rx-{queue} rps_cpus"),
            Knob::RpsFlowCount { queue } => write!(f, "rx-{queue} rps_flow_cnt"),
            Knob::XpsCpus { queue } => write!(f, "tx-{queue} xps_cpus"),
            Knob::IrqAffinity { queue, irq } => write!(f, "rx-{queue} irq {irq} affinity"),
            Knob::TxIrqAffinity { queue, irq } => write!(f, "tx-{queue} irq {irq} affinity"),
            Knob::DeferHardIrqs => write!(f, "napi_defer_hard_irqs"),
            Knob::GroFlushTimeout => write!(f, "gro_flush_timeout"),
            Knob::NapiDeferHardIrqs { queue } => write!(f, "rx-{queue} defer-hard-irqs"),
            Knob::NapiGroFlushTimeout { queue } => write!(f, "rx-{queue} gro-flush-timeout"),
            Knob::NapiIrqSuspendTimeout { queue } => write!(f, "rx-{queue} irq-suspend-timeout"),
            Knob::NapiThreaded { queue } => write!(f, "rx-{queue} threaded"),
            Knob::NapiThreadAffinity { queue } => write!(f, "rx-{queue} napi thread affinity"),
            Knob::NapiThreadPriority { queue } => write!(f, "rx-{queue} napi thread priority"),
        }
    }
}

impl Knob {
    /// The queue that the knob belongs to; `None` for knobs of the device or the machine.
    pub fn queue(&self) -> Option<u32> {
        match *self {
            Knob::RpsCpus { queue }
            | Knob::RpsFlowCount { queue }
            | Knob::XpsCpus { queue }
            | Knob::IrqAffinity { queue, .. }
            | Knob::TxIrqAffinity { queue, .. }
            | Knob::NapiDeferHardIrqs { queue }
            | Knob::NapiGroFlushTimeout { queue }
            | Knob::NapiIrqSuspendTimeout { queue }
            | Knob::NapiThreaded { queue }
            | Knob::NapiThreadAffinity { queue }
            | Knob::NapiThreadPriority { queue } => Some(queue),
            _ => None,
        }
    }

    /// What follows for a policy if this knob can't be set.
    pub fn consequence_of_failure(&self, policy: Policy) -> &'static str {
        match self {
            Knob::Channels { .. } => "the device keeps its number of queues, and workers may share a queue",
            Knob::RxRing => {
                "the device keeps its receive rings, and a long pause of the application may fill them"
            }
            Knob::Coalesce { parameter } if parameter.is_switch() => {
                "the device keeps choosing its own interrupt delays"
            }
            Knob::Coalesce { .. } => {
                "the device interrupts as often as before, and only deferral delays interrupts"
            }
            Knob::RpsCpus { .. } | Knob::RpsFlowCount { .. } => {
                "packets are steered to other cores after they were polled"
            }
            Knob::XpsCpus { .. } => "packets may be sent through queues of other workers",
            Knob::IrqAffinity { .. } if policy.uses_packing_cores() => {
                "the queue interrupts a core that is not a packing core"
            }
            Knob::IrqAffinity { .. } => "the queue may interrupt a core other than its worker's",
            Knob::TxIrqAffinity { .. } => "transmit completions may interrupt a core other than the worker's",
            Knob::DeferHardIrqs
            | Knob::GroFlushTimeout
            | Knob::NapiDeferHardIrqs { .. }
            | Knob::NapiGroFlushTimeout { .. } => "interrupts are re-enabled after each empty poll",
            Knob::NapiIrqSuspendTimeout { .. } => {
                "interrupts are deferred, not suspended, while the application has work"
            }
            Knob::NapiThreaded { .. } if policy.has_polling_threads() => {
                "no kernel thread polls the queue all the time, and vanilla runs instead"
            }
            Knob::NapiThreadAffinity { .. } if policy.has_polling_threads() => {
                "the polling thread could take a worker's core, and vanilla runs instead"
            }
            Knob::NapiThreaded { .. } | Knob::NapiThreadAffinity { .. } => {
                "the kernel chooses the core that polls the queue"
            }
            // Only a policy with polling threads sets it.
            Knob::NapiThreadPriority { .. } => {
                "the polling thread would leave its core to no other thread, and vanilla runs instead"
            }
        }
    }

    /// Whether the knob exists only while another one is on, and disappears with it.
    pub(crate) fn depends_on_another_knob(&self) -> bool {
        matches!(self, Knob::NapiThreadAffinity { .. } | Knob::NapiThreadPriority { .. })
    }

    /// Whether the knob is about the kernel thread that polls a queue.
    pub(crate) fn is_of_napi_thread(&self) -> bool {
        matches!(
            self,
            Knob::NapiThreaded { .. } | Knob::NapiThreadAffinity { .. } | Knob::NapiThreadPriority { .. }
        )
    }

    /// Whether the driver rebuilds the device's queues to change it, and may lose what was set on
    /// them.
    pub(crate) fn rebuilds_queues(&self) -> bool {
        matches!(self, Knob::Channels { .. } | Knob::RxRing)
    }

    /// Whether the driver may round a value: up to what the device needs a multiple of (igb), or
    /// down to a power of two (ena).
    pub(crate) fn is_rounded(&self) -> bool {
        matches!(self, Knob::RxRing)
    }

    /// Whether the device may have a limit below the target. The journal must then accept any value
    /// up to the target as its own.
    pub(crate) fn has_limit(&self) -> bool {
        matches!(self, Knob::Coalesce { parameter } if !parameter.is_switch())
    }
}
