//! The process's limits: core files and locked memory.

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub fn remove_core_limit() -> Result<(), String> {
    setrlimit(Resource::Core, UNLIMITED)
        .map_err(|error| format!("-r: cannot raise the limit of core files: {error}"))
}

const UNLIMITED: Rlimit = Rlimit { current: None, maximum: None };
/// Address space that the C library reserves for the heap of one thread, in bytes: it aligns 64 MiB
/// (`HEAP_MAX_SIZE` of glibc's `malloc/arena.c`). All of it counts as locked.
const HEAP_RESERVATION: u64 = 128 << 20;
/// Buffers of connections, and whatever else is not the store's, in bytes.
const OTHER_MEMORY: u64 = 256 << 20;

/// Locks all memory, now and later. `store` is the store's limit in bytes.
///
/// Later allocations fail above the limit of locked memory (`mmap(2)`, `EAGAIN`), so the limit must
/// leave room for all of them, unless the process keeps `CAP_IPC_LOCK` because it `stays_root`.
pub fn lock_memory(store: u64, workers: u64, stays_root: bool) -> Result<(), String> {
    if setrlimit(Resource::Memlock, UNLIMITED).is_err() {
        let maximum = getrlimit(Resource::Memlock).maximum;
        // Raising the soft limit to the hard one needs no privilege.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: maximum, maximum });
    }
    let advice = "raise the limit of locked memory (ulimit -l, or LimitMEMLOCK= of systemd), or omit -k";
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE)
        .map_err(|error| format!("-k: cannot lock memory: {error}; {advice}"))?;
    let Some(limit) = getrlimit(Resource::Memlock).current.filter(|_| !stays_root) else { return Ok(()) };
    let needed = locked_bytes() + store + OTHER_MEMORY + HEAP_RESERVATION * (workers + 1);
    if limit >= needed {
        return Ok(());
    }
    Err(format!(
        "-k: up to {} MiB of locked memory are needed, and the limit is {} MiB; {advice}",
        needed >> 20,
        limit >> 20
    ))
}

fn locked_bytes() -> u64 {
    let status = procfs::process::Process::myself().and_then(|process| process.status());
    status.ok().and_then(|status| status.vmlck).unwrap_or(0) * 1024
}
