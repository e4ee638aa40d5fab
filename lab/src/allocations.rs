//! Counts a process's allocations, for another process to read.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

static COUNT: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counting. For `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

// SAFETY: everything is the system allocator's; counting allocates nothing and can't unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Where this process counts, for [`read`].
pub(crate) fn address() -> u64 {
    (&raw const COUNT) as u64
}

/// The allocations so far of a process of one's own that counts at this address (`proc(5)`,
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
    fn a_count_is_read_from_another_process_by_its_address() {
        // The test's own program has another allocator, so it counts by hand.
        let before = read(std::process::id(), address()).unwrap();
        COUNT.fetch_add(3, Ordering::Relaxed);
        assert_eq!(read(std::process::id(), address()).unwrap(), before + 3);
    }
}
