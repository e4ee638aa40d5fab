//! Carries out a plan: journals the old values, writes and verifies each knob, restores on drop.

mod adapted_queue;
mod apply_plan;
mod coalescing;
#[cfg(feature = "tools")]
mod epoll_journal;
mod guard;
mod left_entries;
mod outcome;
#[cfg(feature = "tools")]
mod steering;
mod undo;
mod write_verified;

pub use adapted_queue::{AdaptedQueue, QueueDelegate};
pub use apply_plan::apply;
#[cfg(feature = "tools")]
pub(crate) use epoll_journal::EpollJournal;
pub use guard::Guard;
pub use outcome::{Applied, Outcome};
#[cfg(feature = "tools")]
pub(crate) use steering::Steering;
