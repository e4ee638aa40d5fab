//! The clocks of the event loop.

/// The monotonic clock, which is that of `Instant`, in nanoseconds since an arbitrary start.
pub(crate) fn monotonic_nanos() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// The same clock as it was at the kernel's last tick, up to 10 ms ago. It is read in a fraction of the time.
pub(crate) fn coarse_nanos() -> u64 {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

fn read(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable. Every kernel has these clocks, so the call can't fail.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}
