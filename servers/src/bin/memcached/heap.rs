//! Settings of the C library's allocator.

/// Allocations from this size on, in bytes, are mapped individually and returned to the kernel when
/// freed.
const MMAP_THRESHOLD: i32 = 128 << 10;

/// Fixes the allocator's mmap threshold. By default it rises whenever a large allocation is freed,
/// and then the hash tables that the store outgrows stay resident in addition to the limit
/// (`mallopt(3)`, `M_MMAP_THRESHOLD`).
pub fn fix_mmap_threshold() {
    // SAFETY: sets a parameter of the allocator before other threads use it. Fails without effect
    // if another allocator is linked.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD) };
}
