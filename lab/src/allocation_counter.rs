//! Counts the allocations of a process; another process can read the count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub struct CountingAllocator;

#[allow(unsafe_code)]
// SAFETY: every call is forwarded to the system allocator; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract, which is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `GlobalAlloc`'s contract, which is the system allocator's.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract, which is the system allocator's.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Address of this process's count, for [`read`].
pub(crate) fn address() -> u64 {
    (&raw const COUNT) as u64
}

/// The number of allocations so far of another process of this user, whose count is at `address` (`proc(5)`,
/// `/proc/pid/mem`).
pub(crate) fn read(process: u32, address: u64) -> io::Result<u64> {
    let mut count = [0; 8];
    File::open(format!("/proc/{process}/mem"))?.read_exact_at(&mut count, address)?;
    Ok(u64::from_ne_bytes(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_read_through_proc_by_its_address() {
        // The test program has another allocator, so the test counts by itself.
        let before = read(std::process::id(), address()).unwrap();
        COUNT.fetch_add(3, Ordering::Relaxed);
        assert_eq!(read(std::process::id(), address()).unwrap(), before + 3);
    }
}
