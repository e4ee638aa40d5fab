//! Writes a knob's value to the kernel.

use std::fs;
use std::io;

use rustix::io::Errno;

use super::{Knob, Value};
use crate::host::device::Device;
use crate::host::{Cpus, irq, scheduler};
use crate::netlink::errno;
use crate::netlink::ethtool::Ethtool;
use crate::netlink::netdev::{NapiSetting, Netdev, THREADED_BUSY_POLL};

impl Knob {
    /// Writes a value. If the device refuses it, nothing else is tried. [`Knob::read`] shows what
    /// the kernel made of it.
    pub(crate) fn write(&self, device: &Device, value: &Value) -> io::Result<()> {
        // The name may belong to another interface by now, which must not be written to.
        let index = device.verified_index()?;
        match (self, value) {
            (Knob::Coalesce { parameter }, Value::Number(target)) => {
                let target = u32::try_from(*target).map_err(|_| io::ErrorKind::InvalidInput)?;
                Ethtool::open()?.set_coalescing(index, *parameter, target)?;
            }
            (Knob::Channels { combined }, Value::Number(count)) => {
                let count = u32::try_from(*count).map_err(|_| io::ErrorKind::InvalidInput)?;
                Ethtool::open()?.set_channels(index, *combined, count)?;
                device.invalidate_queues();
            }
            (Knob::RxRing, Value::Number(size)) => {
                let size = u32::try_from(*size).map_err(|_| io::ErrorKind::InvalidInput)?;
                // A driver that fails may have rebuilt the rings all the same.
                let set = Ethtool::open()?.set_rx_ring(index, size);
                device.invalidate_queues();
                set?;
            }
            (Knob::NapiThreadAffinity { queue }, Value::Cpus(cpus)) => {
                cpus.pin(Some(device.napi_thread(*queue)?))?;
            }
            (Knob::NapiThreadPriority { queue }, Value::Number(priority)) => {
                let priority = u32::try_from(*priority).map_err(|_| io::ErrorKind::InvalidInput)?;
                scheduler::set_fifo_priority(device.napi_thread(*queue)?, priority)?;
            }
            (Knob::RpsCpus { .. } | Knob::XpsCpus { .. }, Value::Cpus(cpus)) => {
                fs::write(self.file(device).ok_or(io::ErrorKind::InvalidInput)?, cpus.to_mask())?;
            }
            (
                Knob::RpsFlowCount { .. } | Knob::DeferHardIrqs | Knob::GroFlushTimeout,
                Value::Number(number),
            ) => fs::write(self.file(device).ok_or(io::ErrorKind::InvalidInput)?, number.to_string())?,
            (Knob::IrqAffinity { .. } | Knob::TxIrqAffinity { .. }, Value::Cpus(cpus)) => {
                set_affinity(self.interrupt(device).ok_or(io::ErrorKind::InvalidInput)??, cpus)?;
            }
            (_, Value::Number(number)) if self.napi_setting().is_some() => {
                let (setting, queue) = self.napi_setting().ok_or(io::ErrorKind::InvalidInput)?;
                let id = device.napi(queue)?.id;
                let set = Netdev::open()?.set_napi(id, setting, *number);
                let polls = setting == NapiSetting::Threaded && *number == THREADED_BUSY_POLL;
                set.map_err(|error| if polls { explain_refused_thread(error) } else { error })?;
            }
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("{value} is not a valid value for {self}"),
                ));
            }
        }
        Ok(())
    }
}

/// Which kernel a thread that polls all the time needs, where the kernel's error says that it knows
/// none: `ERANGE` since Linux 6.17, `EINVAL` since 6.13, and `EOPNOTSUPP` before.
fn explain_refused_thread(error: io::Error) -> io::Error {
    if !is_refusal(&error) {
        return error;
    }
    // The release is a hint for the reader: what decides is the kernel's refusal.
    let here = fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| String::new(), |here| format!(", and this is Linux {}", here.trim()));
    io::Error::new(
        error.kind(),
        format!("{error}; a kernel thread that polls all the time needs Linux 6.19{here}"),
    )
}

/// Whether an error says that the kernel or the driver does not take this value, and not that it
/// takes none from this process.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    let refusals = [Errno::INVAL, Errno::RANGE, Errno::OPNOTSUPP].map(|errno| Some(errno.raw_os_error()));
    refusals.contains(&errno(error))
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
