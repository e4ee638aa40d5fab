//! A pool of reply buffers per thread. A connection borrows one while it executes requests, so an idle
//! connection holds none.

use std::cell::RefCell;

/// Larger buffers, in bytes, are freed instead of pooled.
const MAX_CAPACITY: usize = 128 << 10;
/// Buffers that a thread's pool holds.
const MAX_POOLED: usize = 16;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Takes an empty buffer.
pub fn take() -> Vec<u8> {
    POOL.try_with(|pool| pool.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

/// Returns a buffer to the pool.
pub fn give_back(mut buffer: Vec<u8>) {
    if buffer.capacity() > MAX_CAPACITY || buffer.capacity() == 0 {
        return;
    }
    buffer.clear();
    // Fails while the thread exits and its pool is gone.
    let _ = POOL.try_with(|pool| {
        let mut pool = pool.borrow_mut();
        if pool.len() < MAX_POOLED {
            pool.push(buffer);
        }
    });
}
