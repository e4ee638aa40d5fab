//! The C library's allocator.

/// What is larger is mapped by itself, and given back to the kernel when it is freed.
const MAPPED_FROM: i32 = 128 << 10;

/// Keeps the allocator from raising that size: it does so whenever something large is freed, and then the
/// tables that the store outgrows stay resident beside the limit (`mallopt(3)`, `M_MMAP_THRESHOLD`).
pub fn give_back_what_is_large() {
    // SAFETY: only sets a parameter of the allocator, before other threads use it. Fails where another
    // allocator is linked, which has none.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM) };
}
