//! Whether the workers have rings: all of them or none, so that they don't differ in what they can
//! and in what they cost.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;

use policies::Cpus;
use rustix::process::{Resource, getrlimit};

use super::DriverKind;
use super::uring::driver::PreparedRing;
use super::uring::ring::RingOptions;

/// The rings of the workers that have not started, by their numbers.
#[derive(Default)]
pub(crate) struct Rings {
    rings: Vec<Mutex<Option<PreparedRing>>>,
    /// Why `auto` has none.
    pub(crate) missing: Option<String>,
}

impl Rings {
    /// Sets up a ring for each worker, which will run on these cores by turns. `auto` has none if
    /// one of them can't be had.
    pub(crate) fn prepare(
        asked: DriverKind,
        workers: usize,
        cores: &[u32],
        options: &RingOptions,
    ) -> io::Result<Self> {
        if asked == DriverKind::Epoll {
            return Ok(Self::default());
        }
        let ring = || PreparedRing::new(options.clone()).map(|ring| Mutex::new(Some(ring)));
        let rings = (0..workers).map(|worker| match cores {
            [] => ring(),
            cores => on_core(cores[worker % cores.len()], ring),
        });
        match rings.collect() {
            Ok(rings) => Ok(Self { rings, missing: None }),
            Err(error) => {
                let why = explain(&error, workers, options);
                if asked != DriverKind::Auto {
                    let message = format!("the {asked} driver is not available: {why}; use epoll or auto");
                    return Err(io::Error::new(error.kind(), message));
                }
                Ok(Self { missing: Some(why), ..Self::default() })
            }
        }
    }

    pub(crate) fn take(&self, worker: usize) -> Option<PreparedRing> {
        self.rings.get(worker)?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Calls a function on a core. The memory that it makes, and the kernel for it, is then on the NUMA
/// node of that core.
fn on_core<T: Send>(core: u32, make: impl Fn() -> T + Sync) -> T {
    let pinned = || {
        // Fails if the core can't be used, which the worker will say.
        let _ = Cpus::one(core).pin(None);
        make()
    };
    let made = thread::scope(|scope| match thread::Builder::new().spawn_scoped(scope, pinned) {
        Ok(thread) => Some(thread.join()),
        Err(_) => None,
    });
    match made {
        Some(Ok(made)) => made,
        Some(Err(panic)) => std::panic::resume_unwind(panic),
        None => make(),
    }
}

/// Why io_uring is not available, in words.
fn explain(error: &io::Error, workers: usize, options: &RingOptions) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring, or a seccomp filter hides it".to_owned(),
        Some(libc::EPERM) => {
            "io_uring is forbidden (sysctl kernel.io_uring_disabled, or a seccomp filter)".to_owned()
        }
        Some(libc::ENOMEM) => {
            let needed = (workers * options.locked_bytes()) >> 10;
            match getrlimit(Resource::Memlock).current {
                Some(limit) => format!(
                    "the limit on locked memory (ulimit -l) is {} KiB for all processes of the user, and \
                     the rings of {workers} workers lock {needed} KiB",
                    limit >> 10
                ),
                None => format!("there is no memory for the rings of {workers} workers, {needed} KiB"),
            }
        }
        None if error.kind() == io::ErrorKind::Unsupported => error.to_string(),
        Some(libc::EINVAL) => "the kernel's io_uring is too old (Linux 6.0 is needed)".to_owned(),
        _ => format!("io_uring can't be set up: {error}"),
    }
}
