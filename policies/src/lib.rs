//! What a network polling policy is, and the host's side of it.
//!
//! A [`Policy`] says where network work runs in relation to the application's. On the host it comes
//! down to a [`Plan`]: an ordered list of knobs (interrupt affinity, RPS masks, per-NAPI deferral and
//! suspension, threaded NAPI), each with its present value, its target, and why. Applying a plan
//! writes the old values to a journal in `/run` first, so that nothing stays behind: not after
//! [`Guard`] is dropped, not after a signal, and not after `SIGKILL` (the next start or
//! `policies restore` reads the journal).
//!
//! ```
//! use policies::{Plan, Policy, Settings};
//!
//! let loopback = policies::host::interface("lo")?;
//! let plan = Plan::new(Policy::KernelPolling, &loopback, &Settings::default());
//! // Loopback has no NAPI of its own, and the plan says so instead of pretending.
//! assert!(plan.steps.is_empty());
//! println!("{}", plan.notes.join("\n"));
//! # Ok::<(), policies::Error>(())
//! ```
//!
//! The crate is synchronous. The kernel's side is described in
//! `Documentation/networking/napi.rst`; the idea in Cai and Karsten, *Kernel vs. User-Level
//! Networking: Don't Throw Out the Stack with the Interrupts* (2023).

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

mod apply;
mod cores;
pub mod counters;
mod cpus;
mod device;
mod error;
pub mod explain;
mod grace_time;
mod grace_time_search;
mod grace_time_tuner;
pub mod host;
mod irq;
mod journal;

mod knob;
pub mod neighbours;
pub mod netlink;
mod perf;
mod permission;
mod plan;
mod policy;
mod restore;
pub mod signals;
pub mod status;
mod supervisor;

pub use apply::{Applied, Guard, Outcome, apply};
pub use cores::nearest_cores;
pub use cpus::{Cpus, InvalidCpus};
pub use error::Error;
pub use grace_time::{GraceTime, InvalidGraceTime};
pub use host::{Interface, RxQueue, TxQueue};
pub use journal::{JournalDir, Lifetime};
pub use knob::{Knob, Value};
pub use permission::{may_set, missing_capabilities};
pub use plan::{Plan, Settings, Step, SuppressionValues};
pub use policy::{Policy, UnknownPolicy};
pub use restore::{RestoreReport, Restored, recover, restore_all};
pub use supervisor::{Affinity, Change, Supervisor, SupervisorHooks};
