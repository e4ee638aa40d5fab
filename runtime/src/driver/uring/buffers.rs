//! The buffers that the kernel receives into: one ring of provided buffers per worker.
//!
//! An idle connection holds no buffer: the kernel takes one when data arrives. From Linux 6.12 on
//! it fills a buffer incrementally, for one receive after another, and returns it when it is full.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;
use io_uring::{Submitter, cqueue};

/// The number of buffers; the kernel requires a power of two.
const BUFFERS: u16 = 32;
/// The size of a buffer, in bytes.
const SIZE: usize = 16 << 10;
/// With fewer free buffers than this, received bytes are copied out at once, so that slow readers
/// can't hold all buffers.
const LOW: u16 = BUFFERS / 4;
pub(super) const GROUP: u16 = 0;
/// `IOU_PBUF_RING_INC`: buffers are filled incrementally (Linux 6.12).
const INCREMENTAL: u16 = 2;

/// Memory that the kernel may write to at any time. References are made only to the parts that the
/// kernel has handed over.
struct SharedMemory {
    start: NonNull<u8>,
    layout: Layout,
}

impl SharedMemory {
    fn new(size: usize) -> Self {
        // The kernel takes whole pages, of which arm64 has some of 16 and 64 KiB.
        let page = rustix::param::page_size();
        let layout = Layout::from_size_align(size.max(page), page).expect("a few pages");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout }
    }
}

// SAFETY: it owns its memory, which any thread may free.
unsafe impl Send for SharedMemory {}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

#[derive(Clone, Copy, Default)]
struct Buffer {
    filled: usize,
    slices: u32,
    /// The kernel fills no more of it.
    done: bool,
}

pub(crate) struct BufferPool {
    entries: SharedMemory,
    data: SharedMemory,
    tail: Cell<u16>,
    buffers: RefCell<[Buffer; BUFFERS as usize]>,
    /// The number of buffers that the kernel may fill.
    free: Cell<u16>,
    pub(super) incremental: bool,
}

impl BufferPool {
    /// Allocates the buffers and provides them to the kernel.
    ///
    /// # Safety
    /// The pool must live until the ring of `submitter` is closed, or has no operation left that
    /// could take a buffer.
    pub(super) unsafe fn register(submitter: &Submitter<'_>) -> io::Result<Self> {
        let mut pool = Self {
            entries: SharedMemory::new(usize::from(BUFFERS) * size_of::<BufRingEntry>()),
            data: SharedMemory::new(usize::from(BUFFERS) * SIZE),
            tail: Cell::new(0),
            buffers: RefCell::new([Buffer::default(); BUFFERS as usize]),
            free: Cell::new(0),
            incremental: true,
        };
        let address = pool.entries.start.as_ptr() as u64;
        // SAFETY: the memory has room for BUFFERS entries, is aligned to a page, and lives as long
        // as the pool, which by the caller's promise is as long as the kernel uses it.
        let register =
            |flags| unsafe { submitter.register_buf_ring_with_flags(address, BUFFERS, GROUP, flags) };
        match register(INCREMENTAL) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                register(0)?;
                pool.incremental = false;
            }
            result => result?,
        }
        (0..BUFFERS).for_each(|buffer| pool.provide(buffer));
        Ok(pool)
    }

    /// Whether few buffers are free, so that readers should hold none.
    pub(super) fn is_low(&self) -> bool {
        self.free.get() < LOW
    }

    /// The number of buffers that the kernel may fill.
    pub(super) fn free(&self) -> u16 {
        self.free.get()
    }

    /// Whether a receive that took one buffer has had room for more.
    pub(super) fn had_room(&self, flags: u32, length: usize) -> bool {
        if self.incremental { cqueue::buffer_more(flags) } else { length < SIZE }
    }

    /// The number of buffers that the kernel can't fill now.
    pub(super) fn held(&self) -> u16 {
        BUFFERS - self.free.get()
    }

    fn start_of(&self, buffer: u16) -> *mut u8 {
        // SAFETY: a buffer id is below BUFFERS (`take` checks those of the kernel), so this stays
        // within the memory.
        unsafe { self.data.start.as_ptr().add(usize::from(buffer) * SIZE) }
    }

    fn provide(&self, buffer: u16) {
        let tail = self.tail.get();
        let entries = self.entries.start.as_ptr().cast::<BufRingEntry>();
        // SAFETY: the index is below BUFFERS, so the entry is within the memory.
        let slot = unsafe { entries.add(usize::from(tail % BUFFERS)) };
        // SAFETY: the kernel reads only entries below the tail, which doesn't include this one yet,
        // so nobody else uses it; and zeroed memory is a valid entry.
        let entry = unsafe { &mut *slot };
        entry.set_addr(self.start_of(buffer) as u64);
        entry.set_len(SIZE as u32);
        entry.set_bid(buffer);
        let tail = tail.wrapping_add(1);
        self.tail.set(tail);
        // SAFETY: the pointer is the ring's first entry, initialized by zeroing.
        let shared = unsafe { BufRingEntry::tail(entries) };
        // SAFETY: the tail is 16 bits, aligned, within the memory, and shared with the kernel,
        // which reads it atomically.
        let shared = unsafe { AtomicU16::from_ptr(shared.cast_mut()) };
        shared.store(tail, Ordering::Release);
        self.free.set(self.free.get() + 1);
    }

    /// Takes over `length` received bytes of a buffer. `more`: the kernel goes on filling it.
    /// `None` if the kernel's values are out of range.
    pub(super) fn take(self: &Rc<Self>, buffer: u16, length: usize, more: bool) -> Option<BufferSlice> {
        let mut buffers = self.buffers.borrow_mut();
        let state = buffers.get_mut(usize::from(buffer))?;
        let start = state.filled;
        if start + length > SIZE {
            return None;
        }
        state.filled += length;
        state.slices += 1;
        if !(more && self.incremental) {
            state.done = true;
            self.free.set(self.free.get() - 1);
        }
        drop(buffers);
        // Both are at most SIZE.
        let (start, length) = (start as u32, length as u32);
        Some(BufferSlice { pool: Rc::clone(self), buffer, start, length })
    }

    fn release(&self, buffer: u16) {
        let mut buffers = self.buffers.borrow_mut();
        let state = &mut buffers[usize::from(buffer)];
        state.slices -= 1;
        if state.done && state.slices == 0 {
            *state = Buffer::default();
            drop(buffers);
            self.provide(buffer);
        }
    }
}

/// A part of a buffer, filled by the kernel. The buffer is provided again when all its slices are
/// dropped.
pub(crate) struct BufferSlice {
    pool: Rc<BufferPool>,
    buffer: u16,
    start: u32,
    length: u32,
}

impl Deref for BufferSlice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `take` has checked that the slice is within the buffer.
        let start = unsafe { self.pool.start_of(self.buffer).add(self.start as usize) };
        // SAFETY: initialized (zeroed at first, then by the kernel), and not written to while this
        // lives: the kernel has filled this part, and gets the buffer again when its last slice is
        // dropped.
        unsafe { std::slice::from_raw_parts(start, self.length as usize) }
    }
}

impl Drop for BufferSlice {
    fn drop(&mut self) {
        self.pool.release(self.buffer);
    }
}
