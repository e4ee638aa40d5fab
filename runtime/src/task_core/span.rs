//! The spans of tasks, with the feature `task-spans` (without it: `no_span.rs`).
//!
//! Names, targets and fields are those of tokio's spans (`tokio/src/util/trace.rs`) and of what its
//! wakers record (`tokio/src/runtime/task/waker.rs`), which `console-subscriber` looks for.
//! `worker` is Lull's.

use tracing::Span;
use tracing::span::{Entered, Id};

use super::identity::Identity;

/// A task is polled in its span, which closes when the future is dropped. Without a subscriber that
/// wants it, it does nothing.
pub(crate) struct TaskSpan(Span);

pub(crate) struct SpanId(Option<Id>);

macro_rules! task_span {
    ($target:literal, $kind:literal, $identity:expr, $size:expr $(, $field:ident = $value:expr)*) => {
        TaskSpan(tracing::trace_span!(
            target: $target,
            // It may outlive the task that spawned it.
            parent: None,
            "runtime.spawn",
            kind = $kind,
            task.name = $identity.name.as_deref().map(String::as_str),
            task.id = $identity.id.as_u64(),
            $($field = $value,)*
            size.bytes = $size,
            loc.file = $identity.spawned.file(),
            loc.line = $identity.spawned.line(),
            loc.col = $identity.spawned.column(),
        ))
    };
}

impl TaskSpan {
    pub(crate) fn none() -> Self {
        Self(Span::none())
    }

    /// The span of a task with a future of `size` bytes.
    pub(crate) fn task(identity: &Identity, worker: usize, size: usize) -> Self {
        if identity.has_no_span {
            return Self::none();
        }
        task_span!("tokio::task", "task", identity, size, worker = worker)
    }

    /// The span of a root future of `size` bytes.
    pub(crate) fn block_on(identity: &Identity, worker: usize, size: usize) -> Self {
        task_span!("tokio::task", "block_on", identity, size, worker = worker)
    }

    /// The span of a closure of `size` bytes that may block. It takes the place of the span of the
    /// task that waits for the closure.
    pub(crate) fn blocking(identity: &Identity, size: usize) -> Self {
        task_span!("tokio::task::blocking", "blocking", identity, size)
    }

    pub(crate) fn enter(&self) -> Entered<'_> {
        self.0.enter()
    }

    pub(crate) fn id(&self) -> SpanId {
        SpanId(self.0.id())
    }
}

impl SpanId {
    /// Records what is done with a waker of the span's task, on any thread.
    pub(crate) fn record(&self, operation: &'static str) {
        if let Some(id) = &self.0 {
            tracing::trace!(target: "tokio::task::waker", op = operation, task.id = id.into_u64());
        }
    }
}
