//! One setting of the host: how it is read and written.

use std::cell::RefCell;
use std::fmt;
use std::fs;
use std::io;

use rustix::thread::{Pid, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

use crate::netlink::netdev::{Napi, NapiSetting, Netdev};
use crate::{Cpus, Interface, host, irq};

/// One setting of an interface. Keyed by queue rather than by NAPI id, because ids change when a
/// link is reopened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "knob", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Knob {
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
    /// The CPUs that the queue's packets are handed to (`rps_cpus`).
    RpsCpus {
        /// The receive queue.
        queue: u32,
    },
    /// The CPUs that the queue's interrupt goes to (`smp_affinity_list`).
    IrqAffinity {
        /// The receive queue.
        queue: u32,
        /// Its interrupt.
        irq: u32,
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
            Knob::NapiDeferHardIrqs { queue } => write!(f, "rx-{queue} defer-hard-irqs"),
            Knob::NapiGroFlushTimeout { queue } => write!(f, "rx-{queue} gro-flush-timeout"),
            Knob::NapiIrqSuspendTimeout { queue } => write!(f, "rx-{queue} irq-suspend-timeout"),
            Knob::NapiThreaded { queue } => write!(f, "rx-{queue} threaded"),
            Knob::NapiThreadAffinity { queue } => write!(f, "rx-{queue} napi thread affinity"),
            Knob::RpsCpus { queue } => write!(f, "rx-{queue} rps_cpus"),
            Knob::IrqAffinity { queue, irq } => write!(f, "rx-{queue} irq {irq} affinity"),
        }
    }
}

/// An interface whose knobs are being turned: looks its NAPIs up once, and again after a change
/// that can move them.
pub(crate) struct Device {
    name: String,
    index: u32,
    queues: RefCell<Option<Interface>>,
}

impl Device {
    pub(crate) fn new(name: &str, index: u32) -> Self {
        Self { name: name.to_owned(), index, queues: RefCell::new(None) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn napi(&self, queue: u32) -> io::Result<Napi> {
        let mut queues = self.queues.borrow_mut();
        if queues.is_none() {
            let interface = host::interface(&self.name).map_err(io::Error::other)?;
            if interface.index != self.index {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    format!("{} is another interface now", self.name),
                ));
            }
            *queues = Some(interface);
        }
        queues
            .as_ref()
            .and_then(|interface| interface.queues.iter().find(|candidate| candidate.index == queue))
            .and_then(|queue| queue.napi.clone())
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("rx-{queue} has no NAPI")))
    }

    /// The NAPI as the kernel reports it now, not as it was when the queues were listed.
    fn fresh_napi(&self, queue: u32) -> io::Result<Napi> {
        let id = self.napi(queue)?.id;
        Netdev::open()?.napi(id)
    }

    fn napi_thread(&self, queue: u32) -> io::Result<Pid> {
        self.fresh_napi(queue)?
            .pid
            .and_then(|pid| Pid::from_raw(pid as i32))
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the NAPI has no thread"))
    }
}

impl Knob {
    fn setting(&self) -> Option<(NapiSetting, u32)> {
        match *self {
            Knob::NapiDeferHardIrqs { queue } => Some((NapiSetting::DeferHardIrqs, queue)),
            Knob::NapiGroFlushTimeout { queue } => Some((NapiSetting::GroFlushTimeout, queue)),
            Knob::NapiIrqSuspendTimeout { queue } => Some((NapiSetting::IrqSuspendTimeout, queue)),
            Knob::NapiThreaded { queue } => Some((NapiSetting::Threaded, queue)),
            _ => None,
        }
    }

    /// Reads the present value from the kernel.
    pub(crate) fn read(&self, device: &Device) -> io::Result<Value> {
        match *self {
            Knob::NapiDeferHardIrqs { queue } => number(device.fresh_napi(queue)?.defer_hard_irqs),
            Knob::NapiGroFlushTimeout { queue } => number(device.fresh_napi(queue)?.gro_flush_timeout),
            Knob::NapiIrqSuspendTimeout { queue } => number(device.fresh_napi(queue)?.irq_suspend_timeout),
            Knob::NapiThreaded { queue } => number(device.fresh_napi(queue)?.threaded),
            Knob::NapiThreadAffinity { queue } => {
                let set = sched_getaffinity(Some(device.napi_thread(queue)?))?;
                let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
                Ok(Value::Cpus(cpus.map(|cpu| cpu as u32).collect()))
            }
            Knob::RpsCpus { queue } => host::read_rps(&device.name, queue).map(Value::Cpus),
            Knob::IrqAffinity { irq, .. } => irq::affinity(irq).map(Value::Cpus),
        }
    }

    /// Writes a value. What the kernel then has is for [`Knob::read`] to say.
    pub(crate) fn write(&self, device: &Device, value: &Value) -> io::Result<()> {
        match (self, value) {
            (Knob::NapiThreadAffinity { queue }, Value::Cpus(cpus)) => {
                let mut set = rustix::thread::CpuSet::new();
                cpus.iter()
                    .filter(|&cpu| (cpu as usize) < rustix::thread::CpuSet::MAX_CPU)
                    .for_each(|cpu| set.set(cpu as usize));
                Ok(sched_setaffinity(Some(device.napi_thread(*queue)?), &set)?)
            }
            (Knob::RpsCpus { queue }, Value::Cpus(cpus)) => {
                fs::write(host::rps_path(&device.name, *queue), cpus.to_mask())
            }
            (Knob::IrqAffinity { irq, .. }, Value::Cpus(cpus)) => irq::set_affinity(*irq, cpus),
            (_, Value::Number(number)) if self.setting().is_some() => {
                let (setting, queue) = self.setting().ok_or(io::ErrorKind::InvalidInput)?;
                let id = device.napi(queue)?.id;
                Netdev::open()?.set_napi(id, setting, *number)
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{self} does not take the value {value}"),
            )),
        }
    }

    /// Whether the knob exists only while another one is on, and goes with it.
    pub(crate) fn vanishes_with_its_owner(&self) -> bool {
        matches!(self, Knob::NapiThreadAffinity { .. })
    }
}

fn number(value: Option<u64>) -> io::Result<Value> {
    value.map(Value::Number).ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "this kernel does not report it for a NAPI")
    })
}
