//! CPU cycles, instructions and cache misses from `perf_event_open(2)`.

use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use rustix::io::Errno;
use serde::Serialize;

#[derive(Debug)]
pub struct PerfCounters {
    cycles: Counter,
    instructions: Counter,
    /// `None` where the machine counts no cache misses.
    cache_misses: Option<Counter>,
}

/// Hardware counters since their start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PerfReading {
    /// CPU cycles, user and kernel.
    pub cycles: u64,
    /// Instructions retired, user and kernel.
    pub instructions: u64,
    /// Accesses that missed the last-level cache; `None` on a machine that does not count them.
    pub cache_misses: Option<u64>,
}

impl PerfCounters {
    /// Starts counting on a CPU, including softirqs and other processes. Needs `CAP_PERFMON`.
    ///
    /// # Errors
    /// `Unsupported` if the machine (often a virtual one) has no such counters; `PermissionDenied`
    /// if `kernel.perf_event_paranoid` forbids it.
    pub fn start(cpu: u32) -> io::Result<Self> {
        let open = |event| {
            let mut builder = Builder::new(event);
            // Network processing runs in the kernel, which the perf_event crate excludes by
            // default.
            builder.include_kernel().any_pid().one_cpu(cpu as usize);
            let mut counter = builder.build()?;
            counter.enable()?;
            io::Result::Ok(counter)
        };
        let counters = (|| {
            Ok(Self {
                cycles: open(Hardware::CPU_CYCLES)?,
                instructions: open(Hardware::INSTRUCTIONS)?,
                cache_misses: open(Hardware::CACHE_MISSES).ok(),
            })
        })();
        counters.map_err(|error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV) => io::Error::new(
                io::ErrorKind::Unsupported,
                "not supported: this machine has no hardware performance counters",
            ),
            _ => error,
        })
    }

    pub fn read(&mut self) -> io::Result<PerfReading> {
        Ok(PerfReading {
            cycles: self.cycles.read()?,
            instructions: self.instructions.read()?,
            cache_misses: self.cache_misses.as_mut().map(Counter::read).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_count_or_are_reported_as_not_supported() {
        match PerfCounters::start(0) {
            Ok(mut counters) => assert!(counters.read().unwrap().instructions > 0),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                assert!(error.to_string().contains("not supported"));
            }
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
        }
    }
}
