//! Starts the thread of a connection.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::builder::{Builder, Placement};

/// Starts a thread that is placed as `settings` say. Called on the connection's worker.
///
/// # Errors
/// `InvalidInput` for a name with a NUL byte, else the system's.
pub(crate) fn start(settings: &Builder, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if settings.name.contains('\0') {
        // The standard library would panic.
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "a thread can't be named {:?}: remove the NUL byte (dispatcher::Builder::thread_name)",
                settings.name
            ),
        ));
    }
    let (placement, batch_class) = (settings.placement, settings.batch_class);
    let worker = sched_getaffinity(None).ok();
    let builder = std::thread::Builder::new().name(settings.name.clone()).stack_size(settings.stack_size);
    let start = || {
        builder.spawn(move || {
            if let Some(worker) = worker {
                place(placement, &worker);
            }
            if batch_class {
                // Never refused; a program that runs with another class keeps it.
                let _ = policies::host::scheduler::make_batch();
            }
            body();
        })
    };
    runtime::io::with_settings_from_before(start)?;
    Ok(())
}

/// Moves the calling thread. Where that can't be done (the cores have gone), it runs where it may.
fn place(placement: Placement, worker: &CpuSet) {
    let cores = match placement {
        Placement::SameCore => *worker,
        Placement::AnyCore => return,
        Placement::OtherCores => {
            let Ok(mut cores) = sched_getaffinity(None) else { return };
            for core in (0..CpuSet::MAX_CPU).filter(|&core| worker.is_set(core)) {
                cores.unset(core);
            }
            cores
        }
    };
    if cores.count() > 0 {
        let _ = sched_setaffinity(None, &cores);
    }
}
