//! What a plan has to say beside its steps.

use std::fmt;

use serde_core::{Serialize, Serializer};

use crate::host::Cpus;
use crate::netlink::ethtool::Coalescing;
use crate::policy::Policy;

/// What a policy needs and this host lacks, what it takes, or what is unusual about the interface.
///
/// Serialized as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// What discovery has noted of the interface.
    Interface(String),
    NothingToPoll {
        interface: String,
        policy: Policy,
    },
    LroHidesNapis {
        interface: String,
    },
    DriverIgnoresDeferral {
        driver: String,
    },
    NoSuchQueue {
        interface: String,
        queue: u32,
    },
    MoreQueuesThanWorkers {
        queues: usize,
        workers: usize,
        /// Whether the device can have one queue for each worker.
        can_have_fewer: bool,
    },
    QueuesNotPolled {
        queues: usize,
        polled: usize,
        /// Whether the device can have only those that are polled.
        can_have_fewer: bool,
    },
    FixedQueueCount {
        interface: String,
        count: usize,
    },
    QueueCountRefused {
        interface: String,
        wanted: u32,
        most: u32,
        present: u32,
    },
    /// The number of queues changes first, and the other steps are planned after it.
    PlannedAgain {
        queues: u32,
    },
    FixedRings {
        interface: String,
    },
    RingSizeRefused {
        interface: String,
        wanted: u32,
        most: u32,
        present: u32,
    },
    RingsRebuilt,
    NoCoalescing {
        interface: String,
    },
    CoalescingOfOtherQueues {
        others: usize,
    },
    NoParameter {
        interface: String,
        parameter: Coalescing,
    },
    /// The device delays its interrupts, and the command that turns that off.
    Moderation {
        interface: String,
        what: String,
        remedy: String,
    },
    FewerFrames {
        target: u32,
        wanted: u32,
    },
    ShorterSuspendTimeout {
        micros: u128,
        wanted: u128,
        /// The receive ring's descriptors.
        ring: u32,
        ring_is_known: bool,
        rate: u32,
    },
    DeviceWideDeferral {
        /// Whether the policy suspends interrupts, too.
        suspends: bool,
    },
    NoSuspendTimeout {
        queue: u32,
    },
    WorkersNotPinned,
    NoPollingThreads,
    /// Kernel threads that poll all the time take turns on these cores.
    SharedPollingCores {
        threads: usize,
        cores: Cpus,
    },
    /// Kernel threads that poll all the time have cores of workers.
    PollingOnWorkers {
        cores: Cpus,
    },
    Irqbalance {
        pid: i32,
        irqs: Vec<u32>,
    },
    SharedInterrupts {
        queues: usize,
        interrupts: usize,
    },
    /// Workers run on other NUMA nodes than the device's.
    RemoteWorkers {
        interface: String,
        node: u32,
        near: Cpus,
        far: Cpus,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interface(text) => f.write_str(text),
            Self::NothingToPoll { interface, policy } => write!(
                f,
                "{interface} has no NAPI that can be configured, so {policy} has nothing to poll or defer"
            ),
            Self::LroHidesNapis { interface } => write!(
                f,
                "sockets get no NAPI to poll while {interface} joins packets itself: ethtool -K {interface} lro off"
            ),
            Self::DriverIgnoresDeferral { driver } => write!(
                f,
                "the driver {driver} enables a queue's interrupt after each poll, also while it is deferred or suspended"
            ),
            Self::NoSuchQueue { interface, queue } => write!(f, "{interface} has no queue {queue}"),
            Self::MoreQueuesThanWorkers { queues, workers, can_have_fewer } => {
                let plural = if *workers == 1 { "" } else { "s" };
                let each = queues.div_ceil(*workers);
                write!(f, "{queues} queues for {workers} worker{plural}: ")?;
                write!(f, "a worker's core receives for up to {each} queues")?;
                match can_have_fewer {
                    true => write!(f, "; --channels {workers} leaves a queue for each worker"),
                    false => Ok(()),
                }
            }
            Self::QueuesNotPolled { queues, polled, can_have_fewer } => {
                let plural = if *polled == 1 { "" } else { "s" };
                write!(
                    f,
                    "{polled} of {queues} queues: the others, and the connections that come by them, keep "
                )?;
                write!(f, "their interrupts, as a worker polls one queue")?;
                match can_have_fewer {
                    true => write!(
                        f,
                        "; --channels {polled} leaves the device only {polled} queue{plural}, for all programs of the host"
                    ),
                    false => Ok(()),
                }
            }
            Self::FixedQueueCount { interface, count } => write!(
                f,
                "{interface} does not support changing its number of queues (ethtool channels); it keeps {count}"
            ),
            Self::QueueCountRefused { interface, wanted, most, present } => {
                write!(f, "{interface} supports 1 to {most} queues, not {wanted}; it keeps {present}")
            }
            Self::PlannedAgain { queues } => write!(
                f,
                "the other steps are planned again once the device has {queues} queues; the device \
                 drops packets while it rebuilds its queues"
            ),
            Self::FixedRings { interface } => {
                write!(f, "{interface} does not support changing its receive rings (ethtool rings)")
            }
            Self::RingSizeRefused { interface, wanted, most, present } => write!(
                f,
                "{interface} supports receive rings of at most {most} descriptors, not {wanted}; they keep {present}"
            ),
            Self::RingsRebuilt => f.write_str("the device drops packets while it rebuilds its receive rings"),
            Self::NoCoalescing { interface } => write!(
                f,
                "{interface} does not support interrupt coalescing (ethtool); only deferral delays interrupts"
            ),
            Self::CoalescingOfOtherQueues { others } => write!(
                f,
                "interrupt coalescing is of the whole device, and {others} of its queues are not of this plan; \
                 it stays unchanged, and only deferral delays interrupts"
            ),
            Self::NoParameter { interface, parameter } => {
                write!(f, "{interface} has no {}", parameter.name())
            }
            Self::Moderation { interface, what, remedy } => write!(
                f,
                "{interface} {what}, which adds to the latency at low load; `{remedy}` turns that off for the whole device"
            ),
            Self::FewerFrames { target, wanted } => write!(
                f,
                "{} is {target} instead of {wanted}: half of the receive ring, so that it never overflows before the interrupt",
                Coalescing::RxFrames.name()
            ),
            Self::ShorterSuspendTimeout { micros, wanted, ring, ring_is_known, rate } => write!(
                f,
                "irq-suspend-timeout is {micros} µs instead of {wanted} µs: half of a receive ring of {ring} descriptors{} does not \
                 fill within it at {rate} packets/s of a queue",
                if *ring_is_known { "" } else { " (the size is not known)" },
            ),
            Self::DeviceWideDeferral { suspends } => {
                f.write_str(
                    "this kernel defers interrupts for the whole device; per-NAPI deferral needs Linux 6.13",
                )?;
                f.write_str(if *suspends { ", and so does suspension" } else { "" })
            }
            Self::NoSuspendTimeout { queue } => {
                write!(f, "rx-{queue}: this kernel has no irq-suspend-timeout (it needs Linux 6.13)")
            }
            Self::WorkersNotPinned => {
                f.write_str("workers are not pinned, so interrupts and packet steering stay unchanged")
            }
            Self::NoPollingThreads => f.write_str(
                "kernel threads that poll all the time need Linux 6.19; without them vanilla runs instead",
            ),
            Self::SharedPollingCores { threads, cores } => write!(
                f,
                "{threads} kernel threads poll on cores {cores}; those that share a core take turns of some \
                 milliseconds, in which the other queues wait. Name a packing core for each queue, or fewer queues"
            ),
            Self::PollingOnWorkers { cores } => write!(
                f,
                "a kernel thread polls all the time on cores {cores}, which have workers, and takes up to half of each; \
                 leave a core without a worker, and name it as packing core"
            ),
            Self::Irqbalance { pid, irqs } => write!(
                f,
                "irqbalance runs (process {pid}) and moves interrupts every ten seconds: stop it, or start it with \
                 --banirq=NUMBER for each of {}",
                irqs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ),
            Self::SharedInterrupts { queues, interrupts } => {
                let plural = if *interrupts == 1 {
                    "one interrupt".to_owned()
                } else {
                    format!("{interrupts} interrupts")
                };
                write!(
                    f,
                    "{queues} receive queues share {plural}: those that share one are received on one core, whatever worker they are of"
                )
            }
            Self::RemoteWorkers { interface, node, near, far } => write!(
                f,
                "{interface} is on NUMA node {node} (cores {near}), and workers are on cores {far} of other nodes; \
                 their packets cross the NUMA interconnect"
            ),
        }
    }
}

impl Serialize for Note {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
