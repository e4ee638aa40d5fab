//! A knob's value on a recorded interface.

use super::permission::NotPermitted;
use super::{Knob, Value};
use crate::host::{Interface, RxQueue, TxQueue};
use crate::netlink::netdev::NapiSetting;

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
    pub(crate) fn managed_irq(&self, interface: &Interface) -> Option<NotPermitted> {
        let is_managed = match *self {
            Knob::IrqAffinity { irq, .. } => {
                interface.queues.iter().any(|queue: &RxQueue| queue.irq == Some(irq) && queue.irq_managed)
            }
            Knob::TxIrqAffinity { irq, .. } => {
                interface.tx_queues.iter().any(|queue: &TxQueue| queue.irq == Some(irq) && queue.irq_managed)
            }
            _ => false,
        };
        let (Knob::IrqAffinity { irq, .. } | Knob::TxIrqAffinity { irq, .. }) = *self else { return None };
        is_managed.then_some(NotPermitted::ManagedIrq(irq))
    }
}
