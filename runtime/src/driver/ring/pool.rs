//! The buffers that the kernel receives into: a ring of provided buffers, one a worker.
//!
//! An idle connection holds no buffer: the kernel takes one when data is there. Where the kernel can
//! (Linux 6.12), it fills a buffer piece by piece for one receive after another, and hands it back
//! when it is full.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

/// The number of buffers; a power of two, as the kernel asks.
const BUFFERS: u16 = 32;
/// The size of a buffer.
const SIZE: usize = 16 << 10;
/// Below so many free buffers what is received is copied out at once, so that readers that take their
/// time can't hold all of them.
const LOW: u16 = BUFFERS / 4;
/// The buffers' group, as operations name it.
pub(super) const GROUP: u16 = 0;
/// `IOU_PBUF_RING_INC`: buffers are filled piece by piece (Linux 6.12).
const INCREMENTAL: u16 = 2;
const PAGE: usize = 4096;

/// A block of memory that the kernel may write to behind the compiler's back; so no references are
/// made to it, but to parts that the kernel has handed over.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

impl Block {
    fn new(size: usize) -> Self {
        // Constants: a size of some pages, aligned to one.
        let layout = Layout::from_size_align(size, PAGE).expect("a block of whole pages");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, layout }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

#[derive(Clone, Copy, Default)]
struct Buffer {
    /// Up to where the kernel has filled it.
    filled: usize,
    /// Pieces of it that are being read.
    pieces: u32,
    /// The kernel will not fill more of it.
    done: bool,
}

/// A worker's receive buffers.
pub(crate) struct Pool {
    entries: Block,
    data: Block,
    tail: Cell<u16>,
    buffers: RefCell<[Buffer; BUFFERS as usize]>,
    /// Buffers that the kernel may fill.
    free: Cell<u16>,
    incremental: bool,
}

impl Pool {
    /// Makes the buffers and gives them to the kernel.
    ///
    /// # Safety
    /// The pool must live until the ring of `submitter` is closed, or has no operation any more that
    /// would take a buffer from it.
    pub(super) unsafe fn register(submitter: &Submitter<'_>) -> io::Result<Rc<Self>> {
        let mut pool = Self {
            entries: Block::new(PAGE.max(usize::from(BUFFERS) * size_of::<BufRingEntry>())),
            data: Block::new(usize::from(BUFFERS) * SIZE),
            tail: Cell::new(0),
            buffers: RefCell::new([Buffer::default(); BUFFERS as usize]),
            free: Cell::new(0),
            incremental: true,
        };
        let address = pool.entries.start.as_ptr() as u64;
        // SAFETY: the block has room for so many entries, is aligned to a page, and lives as long as
        // the pool, which by the caller's promise is as long as the kernel looks at it.
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
        Ok(Rc::new(pool))
    }

    pub(super) fn is_incremental(&self) -> bool {
        self.incremental
    }

    /// Whether so few buffers are left that none should be held.
    pub(super) fn is_low(&self) -> bool {
        self.free.get() < LOW
    }

    /// Whether the kernel has no buffer at all.
    pub(super) fn is_empty(&self) -> bool {
        self.free.get() == 0
    }

    /// Buffers that are not in the kernel's hands.
    pub(super) fn held(&self) -> u16 {
        BUFFERS - self.free.get()
    }

    fn start_of(&self, buffer: u16) -> *mut u8 {
        // SAFETY: a buffer's number is below BUFFERS (checked where the kernel's word is taken), so
        // this stays within the block.
        unsafe { self.data.start.as_ptr().add(usize::from(buffer) * SIZE) }
    }

    /// Hands a buffer to the kernel.
    fn provide(&self, buffer: u16) {
        let tail = self.tail.get();
        let entries = self.entries.start.as_ptr().cast::<BufRingEntry>();
        // SAFETY: the index is below BUFFERS, so the entry is within the block.
        let slot = unsafe { entries.add(usize::from(tail % BUFFERS)) };
        // SAFETY: the kernel reads only entries below the tail, which doesn't include this one yet; so
        // nobody else uses it, and zeroed memory is a valid entry.
        let entry = unsafe { &mut *slot };
        entry.set_addr(self.start_of(buffer) as u64);
        entry.set_len(SIZE as u32);
        entry.set_bid(buffer);
        let tail = tail.wrapping_add(1);
        self.tail.set(tail);
        // SAFETY: the pointer is the ring's first entry, initialized by zeroing.
        let shared = unsafe { BufRingEntry::tail(entries) };
        // SAFETY: the tail is 16 bits, aligned, in the block, and shared with the kernel, which reads
        // it atomically.
        let shared = unsafe { AtomicU16::from_ptr(shared.cast_mut()) };
        shared.store(tail, Ordering::Release);
        self.free.set(self.free.get() + 1);
    }

    /// Takes over what the kernel says that it has received: so many bytes in this buffer, and
    /// whether it goes on filling it. `None` for what no kernel would say.
    pub(super) fn take(self: &Rc<Self>, buffer: u16, length: usize, more: bool) -> Option<Piece> {
        let mut buffers = self.buffers.borrow_mut();
        let state = buffers.get_mut(usize::from(buffer))?;
        let start = state.filled;
        if start + length > SIZE {
            return None;
        }
        state.filled += length;
        state.pieces += 1;
        if !(more && self.incremental) {
            state.done = true;
            self.free.set(self.free.get() - 1);
        }
        drop(buffers);
        // Both are at most SIZE.
        let (start, length) = (start as u32, length as u32);
        Some(Piece { pool: Rc::clone(self), buffer, start, length })
    }

    fn release(&self, buffer: u16) {
        let mut buffers = self.buffers.borrow_mut();
        let state = &mut buffers[usize::from(buffer)];
        state.pieces -= 1;
        if state.done && state.pieces == 0 {
            *state = Buffer::default();
            drop(buffers);
            self.provide(buffer);
        }
    }
}

/// A part of a buffer, filled by the kernel. The buffer goes back when all its parts are dropped.
pub(crate) struct Piece {
    pool: Rc<Pool>,
    buffer: u16,
    start: u32,
    length: u32,
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `take` has checked that the part is within the buffer.
        let start = unsafe { self.pool.start_of(self.buffer).add(self.start as usize) };
        // SAFETY: initialized (zeroed at first, then by the kernel), and not written to while this
        // lives: the kernel has filled this part, and gets the buffer again when its last part is
        // dropped.
        unsafe { std::slice::from_raw_parts(start, self.length as usize) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.pool.release(self.buffer);
    }
}
