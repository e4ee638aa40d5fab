//! What a task is called.

use std::cell::Cell;
use std::fmt;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// A task's number, which no other task of the process has had or will have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many numbers a thread takes at once.
const BLOCK: u64 = 1 << 16;

thread_local! {
    /// The thread's next number, and the end of its block.
    static NUMBERS: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    static CURRENT: Cell<Option<Id>> = const { Cell::new(None) };
}

impl Id {
    pub(crate) fn next() -> Self {
        static BLOCKS: AtomicU64 = AtomicU64::new(0);
        let take = |numbers: &Cell<(u64, u64)>| {
            let (mut next, mut end) = numbers.get();
            if next == end {
                next = BLOCKS.fetch_add(1, Ordering::Relaxed) * BLOCK;
                end = next + BLOCK;
            }
            numbers.set((next + 1, end));
            next
        };
        // A thread that ends has no block any more.
        let number = NUMBERS.try_with(take);
        Self(number.unwrap_or_else(|_| BLOCKS.fetch_add(1, Ordering::Relaxed) * BLOCK))
    }

    #[cfg(feature = "task-spans")]
    pub(crate) fn as_u64(self) -> u64 {
        self.0
    }

    /// Makes it the number of the task that runs on this thread; returns that of the one before.
    pub(crate) fn enter(task: Option<Self>) -> Option<Self> {
        CURRENT.replace(task)
    }
}

/// The number of the task that runs. The future of a `block_on` has one, too.
///
/// # Panics
/// Outside of a task.
pub fn id() -> Id {
    try_id().expect("only a task of a Lull runtime has a number")
}

/// The number of the task that runs; `None` outside of a task.
pub fn try_id() -> Option<Id> {
    CURRENT.try_with(Cell::get).ok().flatten()
}

/// A task's number, its name, and where it was spawned.
pub(crate) struct Identity {
    pub(crate) id: Id,
    pub(crate) spawned: &'static Location<'static>,
    /// Boxed twice, as most tasks have none.
    #[expect(clippy::box_collection, reason = "most tasks have none: it is to be small")]
    pub(crate) name: Option<Box<String>>,
    /// The task waits for a closure on another thread, which has the span, or is this crate's own.
    #[cfg(feature = "task-spans")]
    pub(crate) has_no_span: bool,
}

impl Identity {
    pub(crate) fn new(spawned: &'static Location<'static>) -> Self {
        Self {
            id: Id::next(),
            spawned,
            name: None,
            #[cfg(feature = "task-spans")]
            has_no_span: false,
        }
    }

    /// The identity of a task that subscribers don't see: it waits for blocking work, or is this
    /// crate's own.
    pub(crate) fn without_span(spawned: &'static Location<'static>) -> Self {
        Self {
            #[cfg(feature = "task-spans")]
            has_no_span: true,
            ..Self::new(spawned)
        }
    }
}
