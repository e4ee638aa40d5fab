//! The budget of operations of one poll.
//!
//! A task whose socket always has something would never return to its worker: timers, other tasks
//! and the queue would wait. Receives, sends, accepts, descriptors, timers and joins are therefore
//! counted. Once a poll has completed [`OPERATIONS`] of them, the next one wakes its task and is
//! pending, so that the task goes to the end of the run queue. A large read or write counts as
//! several.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, ready};

/// How many operations one poll of a task may complete.
pub(crate) const OPERATIONS: u32 = 128;
/// A read or write counts as one more operation for each 512 bytes. One poll then moves at most 64
/// KiB by small reads and writes, or one larger one. Parsing 64 KiB of the smallest HTTP/2 frames
/// takes 0.3 ms.
const BYTES: usize = 512;
/// Outside of a task's poll nothing is counted.
const UNLIMITED: u32 = u32::MAX;

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(UNLIMITED) };
    /// Whether the poll has asked for more than it had.
    static OVERRAN: Cell<bool> = const { Cell::new(false) };
    /// Whether a task's own code runs, which may go on for long, or block.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// What is counted of the poll that runs, if one does.
#[derive(Clone, Copy)]
pub(crate) struct State {
    left: u32,
    overran: bool,
    in_task: bool,
}

impl State {
    pub(crate) fn save() -> Self {
        Self { left: LEFT.get(), overran: OVERRAN.get(), in_task: IN_TASK.get() }
    }

    pub(crate) fn restore(self) {
        LEFT.set(self.left);
        OVERRAN.set(self.overran);
        IN_TASK.set(self.in_task);
    }
}

pub(crate) fn begin_poll() {
    LEFT.set(OPERATIONS);
    OVERRAN.set(false);
    IN_TASK.set(true);
}

/// A task's poll is over. Returns whether it was made to yield.
pub(crate) fn end_poll() -> bool {
    LEFT.set(UNLIMITED);
    IN_TASK.set(false);
    OVERRAN.get()
}

/// Whether a task's own code runs on this thread.
pub(crate) fn is_in_task() -> bool {
    IN_TASK.try_with(Cell::get).unwrap_or(false)
}

/// Runs what no task's code follows in this poll.
pub(crate) fn after_task<R>(action: impl FnOnce() -> R) -> R {
    with_in_task(false, action)
}

/// Runs a hook of the application, which may go on for long or block, like a task.
pub(crate) fn as_task<R>(action: impl FnOnce() -> R) -> R {
    with_in_task(true, action)
}

fn with_in_task<R>(in_task: bool, action: impl FnOnce() -> R) -> R {
    let before = IN_TASK.try_with(|cell| cell.replace(in_task));
    let result = action();
    if let Ok(before) = before {
        IN_TASK.set(before);
    }
    result
}

/// Ready if the poll may complete another operation. Otherwise its task is woken, to go on in its
/// next poll.
pub(crate) fn poll_budget(context: &Context<'_>) -> Poll<()> {
    if LEFT.get() > 0 {
        return Poll::Ready(());
    }
    OVERRAN.set(true);
    context.waker().wake_by_ref();
    Poll::Pending
}

pub(crate) fn spend() {
    let left = LEFT.get();
    if left != UNLIMITED {
        LEFT.set(left.saturating_sub(1));
    }
}

/// Charges the bytes of a read or write, in addition to the operation itself ([`BYTES`]). This bounds
/// what one connection moves before other tasks run.
pub(crate) fn spend_bytes(bytes: usize) {
    if bytes < BYTES {
        return;
    }
    let left = LEFT.get();
    if left != UNLIMITED {
        LEFT.set(left.saturating_sub(u32::try_from(bytes / BYTES).unwrap_or(u32::MAX)));
    }
}

/// Charges an operation that completes without the driver, such as a read of bytes that are
/// buffered, to the poll's budget. Without it, a task that repeats such an operation until
/// something comes would keep its worker from bringing it.
pub fn poll_operation(context: &Context<'_>) -> Poll<()> {
    let polled = poll_budget(context);
    if polled.is_ready() {
        spend();
    }
    polled
}

/// Charges one operation to the poll's budget. A loop whose operations are another crate's, such as
/// receives from a channel, never ends its poll while there is something to receive: nothing of the
/// runtime sees it. With this in each round it yields like one over a socket.
pub async fn consume_budget() {
    std::future::poll_fn(|context| poll_operation(context)).await;
}

/// Runs another crate's future, such as a receive from a channel, as one operation of the poll's
/// budget: as a socket's receives are, it is pending once the poll has used up its budget.
///
/// ```
/// # #[runtime::main(driver = "epoll")]
/// # async fn main() {
/// # let mut numbers = futures_util::stream::iter(0..1000);
/// use futures_util::StreamExt;
///
/// let mut sum = 0;
/// while let Some(number) = runtime::cooperative(numbers.next()).await {
///     sum += number;
/// }
/// # assert_eq!(sum, 499_500);
/// # assert!(runtime::metrics()[0].forced_yields >= 7);
/// # }
/// ```
pub async fn cooperative<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        ready!(poll_budget(context));
        let polled = future.as_mut().poll(context);
        if polled.is_ready() {
            spend();
        }
        polled
    })
    .await
}

/// Lets operations complete although the poll has used up its budget, and without using it.
pub(crate) fn without_budget<R>(action: impl FnOnce() -> R) -> R {
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            LEFT.set(self.0);
        }
    }
    let _restore = Restore(LEFT.replace(UNLIMITED));
    action()
}

/// Runs a future whose operations are not counted. One poll of a task completes at most 128
/// receives, sends, accepts and timers, so that others get their turn; this future may take as many
/// as it finds, and has to yield by itself ([`yield_now`](crate::yield_now)).
pub async fn unconstrained<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|context| without_budget(|| future.as_mut().poll(context))).await
}
