//! Reads a knob's present value from the kernel, or from a recorded interface.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::{Knob, Value};
use crate::host::device::Device;
use crate::host::irq::{self, Direction};
use crate::host::{Cpus, Interface, RxQueue, scheduler, sysfs};
use crate::netlink::ethtool::Ethtool;
use crate::netlink::netdev::NapiSetting;

impl Knob {
    /// The NAPI setting and queue of a per-NAPI knob; `None` for other knobs.
    pub(super) fn napi_setting(&self) -> Option<(NapiSetting, u32)> {
        match *self {
            Knob::NapiDeferHardIrqs { queue } => Some((NapiSetting::DeferHardIrqs, queue)),
            Knob::NapiGroFlushTimeout { queue } => Some((NapiSetting::GroFlushTimeout, queue)),
            Knob::NapiIrqSuspendTimeout { queue } => Some((NapiSetting::IrqSuspendTimeout, queue)),
            Knob::NapiThreaded { queue } => Some((NapiSetting::Threaded, queue)),
            _ => None,
        }
    }

    /// The present number of the interrupt whose affinity the knob is; `None` for other knobs.
    pub(super) fn interrupt(&self, device: &Device) -> Option<io::Result<u32>> {
        match *self {
            Knob::IrqAffinity { queue, .. } => Some(device.irq(queue, Direction::Rx)),
            Knob::TxIrqAffinity { queue, .. } => Some(device.irq(queue, Direction::Tx)),
            _ => None,
        }
    }

    /// The sysfs file of the knob; `None` for knobs that are not files.
    pub(crate) fn file(&self, device: &Device) -> Option<PathBuf> {
        let name = device.name();
        match self {
            Knob::RpsCpus { queue } => Some(sysfs::rps_cpus(name, *queue)),
            Knob::RpsFlowCount { queue } => Some(sysfs::rps_flow_count(name, *queue)),
            Knob::XpsCpus { queue } => Some(sysfs::xps_cpus(name, *queue)),
            Knob::DeferHardIrqs => Some(sysfs::class_net(name).join("napi_defer_hard_irqs")),
            Knob::GroFlushTimeout => Some(sysfs::class_net(name).join("gro_flush_timeout")),
            _ => None,
        }
    }

    pub(crate) fn read(&self, device: &Device) -> io::Result<Value> {
        match *self {
            Knob::Channels { .. } => {
                Ok(Value::Number(Ethtool::open()?.channels(device.verified_index()?)?.count.into()))
            }
            Knob::RxRing => {
                Ok(Value::Number(Ethtool::open()?.rx_ring(device.verified_index()?)?.size.into()))
            }
            Knob::Coalesce { parameter } => {
                let values = Ethtool::open()?.coalescing(device.verified_index()?)?;
                let value = values.iter().find(|(which, _)| *which == parameter);
                value.map(|(_, value)| Value::Number((*value).into())).ok_or_else(|| {
                    io::Error::new(
                        io::ErrorKind::Unsupported,
                        format!("the device does not support {}", parameter.name()),
                    )
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
            Knob::NapiThreadPriority { queue } => scheduler::fifo_priority(device.napi_thread(queue)?)
                .map(|priority| Value::Number(priority.into())),
        }
    }

    fn read_file(&self, device: &Device) -> io::Result<String> {
        device.verified_index()?;
        fs::read_to_string(self.file(device).ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// The CPUs that an interrupt still goes to although its affinity excludes some of them; `None`
    /// if the affinity is in effect, and for other knobs.
    pub(crate) fn pending_cpus(&self, device: &Device, target: &Value) -> Option<Cpus> {
        let irq = self.interrupt(device)?.ok()?;
        let Value::Cpus(wanted) = target else { return None };
        // The list is empty until the interrupt is started.
        let effective = irq::effective_affinity(irq).ok()?;
        let elsewhere = effective.iter().any(|cpu| !wanted.contains(cpu));
        elsewhere.then_some(effective)
    }
}

fn number(value: Option<u64>) -> io::Result<Value> {
    value.map(Value::Number).ok_or_else(|| {
        io::Error::new(io::ErrorKind::Unsupported, "this kernel does not report the setting for a NAPI")
    })
}

impl Knob {
    /// The value that discovery has read; `None` if it could not read one.
    pub(crate) fn recorded(&self, interface: &Interface) -> Option<Value> {
        let rx = |index: u32| interface.queues.iter().find(|queue| queue.index == index);
        let tx = |index: u32| interface.tx_queues.iter().find(|queue| queue.index == index);
        let napi = |index, setting| {
            let value = |queue: &RxQueue| queue.napi.as_ref()?.value(setting);
            rx(index).and_then(value).map(Value::Number)
        };
        match *self {
            Knob::Channels { .. } => interface.channels.map(|channels| Value::Number(channels.count.into())),
            Knob::RxRing => interface.rx_ring.map(|ring| Value::Number(ring.size.into())),
            Knob::Coalesce { parameter } => {
                let found = interface.coalescing.iter().find(|(which, _)| *which == parameter);
                found.map(|(_, value)| Value::Number((*value).into()))
            }
            Knob::RpsCpus { queue } => rx(queue)?.rps_cpus.clone().map(Value::Cpus),
            Knob::RpsFlowCount { queue } => rx(queue)?.rps_flow_count.map(Value::Number),
            Knob::XpsCpus { queue } => tx(queue)?.xps_cpus.clone().map(Value::Cpus),
            Knob::IrqAffinity { queue, .. } => rx(queue)?.irq_affinity.clone().map(Value::Cpus),
            Knob::TxIrqAffinity { queue, .. } => tx(queue)?.irq_affinity.clone().map(Value::Cpus),
            Knob::DeferHardIrqs => interface.defer_hard_irqs.map(Value::Number),
            Knob::GroFlushTimeout => interface.gro_flush_timeout.map(Value::Number),
            Knob::NapiDeferHardIrqs { queue } => napi(queue, NapiSetting::DeferHardIrqs),
            Knob::NapiGroFlushTimeout { queue } => napi(queue, NapiSetting::GroFlushTimeout),
            Knob::NapiIrqSuspendTimeout { queue } => napi(queue, NapiSetting::IrqSuspendTimeout),
            Knob::NapiThreaded { queue } => napi(queue, NapiSetting::Threaded),
            Knob::NapiThreadAffinity { queue } => {
                Some(Value::Cpus(rx(queue)?.napi_thread.as_ref()?.cpus.clone()))
            }
            Knob::NapiThreadPriority { queue } => {
                rx(queue)?.napi_thread.as_ref()?.fifo_priority.map(|priority| Value::Number(priority.into()))
            }
        }
    }

    /// That the kernel manages the affinity which the knob is.
    #[cfg(feature = "tools")]
    pub(crate) fn managed_irq(&self, interface: &Interface) -> Option<super::permission::NotPermitted> {
        let (irq, is_managed) = match *self {
            Knob::IrqAffinity { irq, .. } => {
                (irq, interface.queues.iter().any(|queue| queue.irq == Some(irq) && queue.irq_managed))
            }
            Knob::TxIrqAffinity { irq, .. } => {
                (irq, interface.tx_queues.iter().any(|queue| queue.irq == Some(irq) && queue.irq_managed))
            }
            _ => return None,
        };
        is_managed.then_some(super::permission::NotPermitted::ManagedIrq(irq))
    }
}
