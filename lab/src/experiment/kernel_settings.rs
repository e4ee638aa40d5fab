//! Contenders under settings of the kernel that no controller changes.
//!
//! `deferX`, `suspendX` and `napibusy` are the cases of these names in "Suspend IRQs during
//! application busy periods", the kernel series that brought interrupt suspension (Damato and
//! Karsten, Linux 6.13), with the values of its cover letter. What they do is in the kernel's
//! Documentation/networking/napi.rst. `busypollX` is what the sysctl `net.core.busy_poll` X does to
//! one server: an epoll instance whose `busy_poll_usecs` is 0 has the sysctl's, and the kernel's
//! budget of 8 (`fs/eventpoll.c`, `ep_busy_loop`). The sysctl itself is the whole host's: no
//! network namespace has its own.

use std::fmt::Write;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use policies::epoll_params::EpollParams;
use policies::netlink::netdev::{NapiSetting, Netdev};
use policies::pidfd::duplicate;
use policies::{GraceTime, Policy, host};
use serde::Serialize;

use crate::polling_config::PollingConfig;
use crate::testbed::{SERVER_INTERFACE, Testbed};

/// Settings of a server's queue, and of the epoll instance in which it waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KernelSettings {
    pub name: String,
    pub defer_hard_irqs: u64,
    pub gro_flush_timeout: Duration,
    pub irq_suspend_timeout: Duration,
    pub epoll: EpollParams,
}

impl KernelSettings {
    /// The names, for messages; X is a number of microseconds.
    pub const NAMES: &str = "deferX, suspendX, napibusy, busypollX";

    pub fn named(text: &str) -> Option<Self> {
        let digits = text.find(|letter: char| letter.is_ascii_digit()).unwrap_or(text.len());
        let (kind, number) = text.split_at(digits);
        let micros = number.parse::<u32>().ok().filter(|micros| (1..=1_000_000).contains(micros));
        let (defer_hard_irqs, gro, suspend, usecs, budget, prefer_busy_poll) = match (kind, micros) {
            ("defer", Some(gro)) => (100, gro, 0, 0, 0, 0),
            ("suspend", Some(gro)) => (100, gro, 20_000, 0, 64, 1),
            ("napibusy", None) if number.is_empty() => (100, 200, 0, 64, 64, 1),
            ("busypoll", Some(usecs)) => (0, 0, 0, usecs, 0, 0),
            _ => return None,
        };
        let mut epoll = EpollParams::polling(usecs, budget);
        epoll.prefer_busy_poll = prefer_busy_poll;
        let micros = |micros: u32| Duration::from_micros(micros.into());
        let (gro_flush_timeout, irq_suspend_timeout) = (micros(gro), micros(suspend));
        Some(Self { name: text.to_owned(), defer_hard_irqs, gro_flush_timeout, irq_suspend_timeout, epoll })
    }

    /// Policy and polling of the server on epoll that has them. Only kernel polling has waits that
    /// suspension works with; with a fixed grace time it sets the same values.
    pub(super) fn policy(&self) -> (Policy, PollingConfig) {
        if self.irq_suspend_timeout.is_zero() {
            return (Policy::Vanilla, PollingConfig::default());
        }
        let grace_time = GraceTime::Fixed(self.gro_flush_timeout);
        (Policy::KernelPolling, PollingConfig { grace_time, ..PollingConfig::default() })
    }

    pub(super) fn set(&self, testbed: &Testbed, server: u32) -> io::Result<String> {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut text = testbed.server.run(|| {
            let mut netdev = Netdev::open()?;
            let queues = host::interface(SERVER_INTERFACE).map_err(io::Error::other)?.queues;
            let mut text = String::new();
            for napi in queues.into_iter().filter_map(|queue| queue.napi) {
                for (setting, value) in [
                    (NapiSetting::DeferHardIrqs, self.defer_hard_irqs),
                    (NapiSetting::GroFlushTimeout, nanos(self.gro_flush_timeout)),
                    (NapiSetting::IrqSuspendTimeout, nanos(self.irq_suspend_timeout)),
                ] {
                    netdev.set_napi(napi.id, setting, value)?;
                }
                let napi = netdev.napi(napi.id)?;
                let number = |value: Option<u64>| value.unwrap_or(0);
                let _ = write!(
                    text,
                    "defer-hard-irqs {}, gro-flush-timeout {} ns, irq-suspend-timeout {} ns",
                    number(napi.defer_hard_irqs),
                    number(napi.gro_flush_timeout),
                    number(napi.irq_suspend_timeout)
                );
            }
            Ok(text)
        })?;
        for instance in epoll_instances(server)? {
            // Kernel polling has set those of the instance in which it waits, and others must stay
            // as they are.
            if self.policy().0 == Policy::Vanilla {
                self.epoll.write(&instance)?;
            }
            let params = EpollParams::read(&instance)?;
            if params != EpollParams::default() {
                let EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll, .. } = params;
                let _ = write!(
                    text,
                    "; busy_poll_usecs {busy_poll_usecs}, busy_poll_budget {busy_poll_budget}, prefer_busy_poll {prefer_busy_poll}"
                );
            }
        }
        Ok(text)
    }
}

/// Duplicates of a process's epoll instances.
fn epoll_instances(process: u32) -> io::Result<Vec<OwnedFd>> {
    let mut instances = Vec::new();
    for entry in fs::read_dir(format!("/proc/{process}/fd"))? {
        let entry = entry?;
        // A descriptor may be closed meanwhile.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if target.as_os_str() == "anon_inode:[eventpoll]" {
            let number = entry.file_name().to_string_lossy().parse().map_err(io::Error::other)?;
            instances.push(duplicate(process, number)?);
        }
    }
    Ok(instances)
}
