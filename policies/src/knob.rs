//! One setting of the host: what it is called, how it is read and written.

use std::fmt;
use std::fs;
use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::irq::Direction;
use crate::neighbours::Irqbalance;
use crate::netlink::errno;
use crate::netlink::ethtool::{Coalescing, Ethtool};
use crate::netlink::netdev::{NapiSetting, Netdev};
use crate::{Cpus, Policy, host, irq};

/// One setting of an interface. Keyed by queue rather than by NAPI id, because ids change when a
/// link is reopened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "knob", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Knob {
    /// How many queues the device receives with.
    Channels {
        /// Whether a channel is a pair of queues, one to receive and one to send.
        combined: bool,
    },
    /// A value of the device's interrupt coalescing.
    Coalesce {
        /// Which.
        parameter: Coalescing,
    },
    /// The CPUs that the queue's packets are handed to (`rps_cpus`).
    RpsCpus {
        /// The receive queue.
        queue: u32,
    },
    /// How many flows the queue steers to the CPUs of their applications (`rps_flow_cnt`).
    RpsFlowCount {
        /// The receive queue.
        queue: u32,
    },
    /// The CPUs that send by the queue (`xps_cpus`).
    XpsCpus {
        /// The send queue.
        queue: u32,
    },
    /// Whether a running irqbalance leaves an interrupt alone.
    IrqbalanceBan {
        /// The interrupt.
        irq: u32,
    },
    /// The CPUs that the queue's interrupt goes to (`smp_affinity_list`).
    IrqAffinity {
        /// The receive queue.
        queue: u32,
        /// Its interrupt.
        irq: u32,
    },
    /// The same for a queue that sends, where that has an interrupt of its own.
    TxIrqAffinity {
        /// The send queue.
        queue: u32,
        /// Its interrupt.
        irq: u32,
    },
    /// `napi_defer_hard_irqs` of the device, on kernels that don't have it for each NAPI (before 6.13).
    DeferHardIrqs,
    /// `gro_flush_timeout` of the device, in nanoseconds, on such kernels.
    GroFlushTimeout,
    /// `defer-hard-irqs` of the queue's NAPI: empty polls that re-arm the timer, not the interrupt.
    NapiDeferHardIrqs {
        /// The receive queue.
        queue: u32,
    },
    /// `gro-flush-timeout` of the queue's NAPI, in nanoseconds: the grace time after an empty poll.
    NapiGroFlushTimeout {
        /// The receive queue.
        queue: u32,
    },
    /// `irq-suspend-timeout` of the queue's NAPI, in nanoseconds: the net below an application that
    /// stops polling.
    NapiIrqSuspendTimeout {
        /// The receive queue.
        queue: u32,
    },
    /// Whether a kernel thread polls the queue's NAPI (1) or the softirq (0).
    NapiThreaded {
        /// The receive queue.
        queue: u32,
    },
    /// The CPUs of the kernel thread that polls the queue's NAPI.
    NapiThreadAffinity {
        /// The receive queue.
        queue: u32,
    },
}

/// What a knob is set to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// A count, a switch, or nanoseconds.
    Number(u64),
    /// A set of CPUs.
    Cpus(Cpus),
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
            Knob::Coalesce { parameter } => write!(f, "{}", parameter.name()),
            Knob::RpsCpus { queue } => write!(f, "rx-{queue} rps_cpus"),
            Knob::RpsFlowCount { queue } => write!(f, "rx-{queue} rps_flow_cnt"),
            Knob::XpsCpus { queue } => write!(f, "tx-{queue} xps_cpus"),
            Knob::IrqbalanceBan { irq } => write!(f, "irqbalance bans irq {irq}"),
            Knob::IrqAffinity { queue, irq } => write!(f, "rx-{queue} irq {irq} affinity"),
            Knob::TxIrqAffinity { queue, irq } => write!(f, "tx-{queue} irq {irq} affinity"),
            Knob::DeferHardIrqs => write!(f, "napi_defer_hard_irqs"),
            Knob::GroFlushTimeout => write!(f, "gro_flush_timeout"),
            Knob::NapiDeferHardIrqs { queue } => write!(f, "rx-{queue} defer-hard-irqs"),
            Knob::NapiGroFlushTimeout { queue } => write!(f, "rx-{queue} gro-flush-timeout"),
            Knob::NapiIrqSuspendTimeout { queue } => write!(f, "rx-{queue} irq-suspend-timeout"),
            Knob::NapiThreaded { queue } => write!(f, "rx-{queue} threaded"),
            Knob::NapiThreadAffinity { queue } => write!(f, "rx-{queue} napi thread affinity"),
        }
    }
}

/// How a value got into the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// As it was given.
    Whole,
    /// As near to it as the device allows.
    Limit(Value),
}

impl Knob {
    /// The queue that the knob is of; `None` for those of the whole device.
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
            | Knob::NapiThreadAffinity { queue } => Some(queue),
            Knob::Channels { .. }
            | Knob::Coalesce { .. }
            | Knob::IrqbalanceBan { .. }
            | Knob::DeferHardIrqs
            | Knob::GroFlushTimeout => None,
        }
    }

    /// What a policy is without this knob.
    pub fn without(&self, policy: Policy) -> &'static str {
        match self {
            Knob::Channels { .. } => "the device keeps its number of queues, and workers may share one",
            Knob::Coalesce { parameter } if parameter.is_switch() => {
                "the device goes on choosing when it interrupts"
            }
            Knob::Coalesce { .. } => "the device interrupts as often as before; only deferral holds it back",
            Knob::RpsCpus { .. } | Knob::RpsFlowCount { .. } => {
                "packets are handed to other cores after they were polled"
            }
            Knob::XpsCpus { .. } => "what is sent goes out by queues of other workers",
            Knob::IrqbalanceBan { .. } => "irqbalance moves the interrupt again within ten seconds",
            Knob::IrqAffinity { .. } if policy == Policy::Packing => {
                "the queue interrupts a core that is not a packing core"
            }
            Knob::IrqAffinity { .. } => "the queue may interrupt another core than its worker's",
            Knob::TxIrqAffinity { .. } => "the end of sending may interrupt another core than the worker's",
            Knob::DeferHardIrqs
            | Knob::GroFlushTimeout
            | Knob::NapiDeferHardIrqs { .. }
            | Knob::NapiGroFlushTimeout { .. } => "interrupts come back after each empty poll",
            Knob::NapiIrqSuspendTimeout { .. } => {
                "interrupts are deferred, not suspended, while there is work"
            }
            Knob::NapiThreaded { .. } | Knob::NapiThreadAffinity { .. } => {
                "the queue is polled where the kernel has it polled"
            }
        }
    }

    fn setting(&self) -> Option<(NapiSetting, u32)> {
        match *self {
            Knob::NapiDeferHardIrqs { queue } => Some((NapiSetting::DeferHardIrqs, queue)),
            Knob::NapiGroFlushTimeout { queue } => Some((NapiSetting::GroFlushTimeout, queue)),
            Knob::NapiIrqSuspendTimeout { queue } => Some((NapiSetting::IrqSuspendTimeout, queue)),
            Knob::NapiThreaded { queue } => Some((NapiSetting::Threaded, queue)),
            _ => None,
        }
    }

    /// The interrupt whose affinity the knob is, as the device has it now; `None` for other knobs.
    fn interrupt(&self, device: &Device) -> Option<io::Result<u32>> {
        match *self {
            Knob::IrqAffinity { queue, .. } => Some(device.irq(queue, Direction::Rx)),
            Knob::TxIrqAffinity { queue, .. } => Some(device.irq(queue, Direction::Tx)),
            _ => None,
        }
    }

    /// The file that holds the knob, where it is one.
    pub(crate) fn file(&self, device: &Device) -> Option<std::path::PathBuf> {
        let name = device.name();
        match self {
            Knob::RpsCpus { queue } => Some(host::rps_path(name, *queue)),
            Knob::RpsFlowCount { queue } => Some(host::rps_flow_path(name, *queue)),
            Knob::XpsCpus { queue } => Some(host::xps_path(name, *queue)),
            Knob::DeferHardIrqs => Some(host::class_net(name).join("napi_defer_hard_irqs")),
            Knob::GroFlushTimeout => Some(host::class_net(name).join("gro_flush_timeout")),
            _ => None,
        }
    }

    /// Reads the present value from the kernel.
    pub(crate) fn read(&self, device: &Device) -> io::Result<Value> {
        match *self {
            Knob::Channels { .. } => {
                Ok(Value::Number(Ethtool::open()?.channels(device.present_index()?)?.count.into()))
            }
            Knob::Coalesce { parameter } => {
                let values = Ethtool::open()?.coalescing(device.present_index()?)?;
                let value = values.iter().find(|(which, _)| *which == parameter);
                value.map(|(_, value)| Value::Number((*value).into())).ok_or_else(|| {
                    io::Error::new(io::ErrorKind::Unsupported, format!("no {} here", parameter.name()))
                })
            }
            Knob::RpsCpus { .. } | Knob::XpsCpus { .. } => {
                let mask = self.read_file(device)?;
                Cpus::from_mask(&mask)
                    .map(Value::Cpus)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
            }
            Knob::RpsFlowCount { .. } | Knob::DeferHardIrqs | Knob::GroFlushTimeout => {
                let number = self.read_file(device)?.trim().parse();
                number.map(Value::Number).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
            }
            Knob::IrqbalanceBan { irq } => Ok(Value::Number(irqbalance()?.banned()?.contains(&irq).into())),
            Knob::IrqAffinity { .. } | Knob::TxIrqAffinity { .. } => {
                irq::affinity(self.interrupt(device).ok_or(io::ErrorKind::InvalidInput)??).map(Value::Cpus)
            }
            Knob::NapiDeferHardIrqs { queue } => number(device.fresh_napi(queue)?.defer_hard_irqs),
            Knob::NapiGroFlushTimeout { queue } => number(device.fresh_napi(queue)?.gro_flush_timeout),
            Knob::NapiIrqSuspendTimeout { queue } => number(device.fresh_napi(queue)?.irq_suspend_timeout),
            Knob::NapiThreaded { queue } => number(device.fresh_napi(queue)?.threaded),
            Knob::NapiThreadAffinity { queue } => {
                Cpus::of_thread(Some(device.napi_thread(queue)?)).map(Value::Cpus)
            }
        }
    }

    fn read_file(&self, device: &Device) -> io::Result<String> {
        device.present_index()?;
        fs::read_to_string(self.file(device).ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// Writes a value, or what comes nearest to it where the device has a limit. What the kernel then
    /// has is for [`Knob::read`] to say.
    pub(crate) fn write(&self, device: &Device, value: &Value) -> io::Result<Written> {
        // Names change hands: nothing is written on an interface that is another one by now.
        let index = device.present_index()?;
        match (self, value) {
            (Knob::Coalesce { parameter }, Value::Number(target)) => {
                return set_coalescing(index, *parameter, *target);
            }
            (Knob::Channels { combined }, Value::Number(count)) => {
                let count = u32::try_from(*count).map_err(|_| io::ErrorKind::InvalidInput)?;
                Ethtool::open()?.set_channels(index, *combined, count)?;
                device.forget();
            }
            (Knob::NapiThreadAffinity { queue }, Value::Cpus(cpus)) => {
                cpus.pin(Some(device.napi_thread(*queue)?))?;
            }
            (Knob::RpsCpus { .. } | Knob::XpsCpus { .. }, Value::Cpus(cpus)) => {
                fs::write(self.file(device).ok_or(io::ErrorKind::InvalidInput)?, cpus.to_mask())?;
            }
            (
                Knob::RpsFlowCount { .. } | Knob::DeferHardIrqs | Knob::GroFlushTimeout,
                Value::Number(number),
            ) => fs::write(self.file(device).ok_or(io::ErrorKind::InvalidInput)?, number.to_string())?,
            (Knob::IrqbalanceBan { irq }, Value::Number(banned)) => {
                let irqbalance = irqbalance()?;
                let mut irqs = irqbalance.banned()?;
                irqs.retain(|other| other != irq);
                irqs.extend((*banned != 0).then_some(*irq));
                irqbalance.ban(&irqs)?;
            }
            (Knob::IrqAffinity { .. } | Knob::TxIrqAffinity { .. }, Value::Cpus(cpus)) => {
                set_affinity(self.interrupt(device).ok_or(io::ErrorKind::InvalidInput)??, cpus)?;
            }
            (_, Value::Number(number)) if self.setting().is_some() => {
                let (setting, queue) = self.setting().ok_or(io::ErrorKind::InvalidInput)?;
                let id = device.napi(queue)?.id;
                Netdev::open()?.set_napi(id, setting, *number)?;
            }
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("{self} does not take the value {value}"),
                ));
            }
        }
        Ok(Written::Whole)
    }

    /// Where an interrupt goes in spite of the affinity that it has been given.
    pub(crate) fn still_goes_to(&self, device: &Device, target: &Value) -> Option<Cpus> {
        let irq = self.interrupt(device)?.ok()?;
        let Value::Cpus(wanted) = target else { return None };
        // Empty until the interrupt is started.
        let effective = irq::effective_affinity(irq).ok()?;
        let elsewhere = effective.iter().any(|cpu| !wanted.contains(cpu));
        elsewhere.then_some(effective)
    }

    /// Whether the knob exists only while another one is on, and goes with it.
    pub(crate) fn vanishes_with_its_owner(&self) -> bool {
        matches!(self, Knob::NapiThreadAffinity { .. })
    }

    /// Whether a device may take less than what it is given, and the journal must allow for it.
    pub(crate) fn has_limit(&self) -> bool {
        matches!(self, Knob::Coalesce { parameter } if !parameter.is_switch())
    }
}

fn irqbalance() -> io::Result<Irqbalance> {
    Irqbalance::find().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "irqbalance does not run"))
}

fn set_affinity(irq: u32, cpus: &Cpus) -> io::Result<()> {
    irq::set_affinity(irq, cpus).map_err(|error| {
        if irq::is_managed(irq) {
            io::Error::new(error.kind(), format!("{error}: the kernel manages the affinity of irq {irq}"))
        } else {
            error
        }
    })
}

/// Sets a coalescing value, or the highest that the device takes on the way there: no driver tells its
/// limit but by refusing what is beyond it.
fn set_coalescing(index: u32, parameter: Coalescing, target: u64) -> io::Result<Written> {
    let target = u32::try_from(target).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut ethtool = Ethtool::open()?;
    let beyond = |error: &io::Error| {
        let limits = [Errno::INVAL, Errno::RANGE].map(|limit| Some(limit.raw_os_error()));
        limits.contains(&errno(error))
    };
    let refused = match ethtool.set_coalescing(index, parameter, target) {
        Ok(()) => return Ok(Written::Whole),
        Err(error) => error,
    };
    let now = ethtool.coalescing(index)?.into_iter().find(|(which, _)| *which == parameter);
    let Some((_, now)) = now.filter(|(_, now)| *now < target && beyond(&refused)) else {
        return Err(refused);
    };
    // `taken` is what the device has, `too_much` what it has refused.
    let (mut taken, mut too_much) = (now, target);
    while too_much - taken > 1 {
        let middle = taken + (too_much - taken) / 2;
        match ethtool.set_coalescing(index, parameter, middle) {
            Ok(()) => taken = middle,
            Err(error) if beyond(&error) => too_much = middle,
            Err(error) => return Err(error),
        }
    }
    if taken == now {
        return Err(refused);
    }
    Ok(Written::Limit(Value::Number(taken.into())))
}

fn number(value: Option<u64>) -> io::Result<Value> {
    value.map(Value::Number).ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "this kernel does not report it for a NAPI")
    })
}
