//! Network polling policies, and the host's knobs for them.
//!
//! A [`Policy`] decides where network processing runs in relation to the application. A [`Plan`]
//! turns it into steps for one interface, and [`apply`] carries them out:
//!
//! ```
//! use policies::{Plan, Policy, Settings, host};
//!
//! let loopback = host::interface("lo")?;
//! let plan = Plan::new(Policy::KernelPolling, &loopback, &Settings::default());
//! for step in &plan.steps {
//!     println!("{} = {}: {}", step.knob, step.target, step.purpose);
//! }
//! // Loopback has no NAPI: there is nothing to set, and a note says so.
//! assert!(plan.steps.is_empty());
//! println!("{}", plan.notes[0]);
//! # Ok::<(), policies::Error>(())
//! ```
//!
//! The steps set interrupt affinity, RPS masks, per-NAPI interrupt deferral and suspension, NAPI
//! threads, and, under suppression only, interrupt coalescing. The old values go to a journal in
//! `/run/lull` first. They are restored when the [`Guard`] is dropped, on SIGINT and SIGTERM, and
//! after SIGKILL by the next [`apply`], by [`recover`] or by `policies restore`.
//!
//! # Not for
//! - A program on the runtime: its `Builder` plans, applies and supervises by this crate.
//! - Polling itself: a worker's waits poll. This crate sets what the kernel needs for that.
//! - Distributing flows over queues: RSS and ntuple rules are shown, and stay as they are.
//! - Other kernels than Linux, and kernel polling on one before 6.13.
//!
//! # Where things are
//! | Module | Content |
//! |---|---|
//! | [`host`] | interfaces, queues, interrupts, CPUs as they are now |
//! | `knob` | a [`Knob`]: who may set it, how it is read and written |
//! | `plan` | the [`Plan`] for a policy, with its [`Settings`] and [`Note`]s |
//! | `journal` | old values on disk, and restoring them |
//! | `apply` | carries out a plan; the [`Guard`] |
//! | [`controller`] | chooses how a queue is driven, from what its worker measures |
//! | `supervise` | the [`Supervisor`] that keeps a policy in effect, and sets what the controller chooses |
//! | [`status`] | what workers publish for `policies watch` |
//! | [`counters`] | interrupts, packets, softirqs and CPU time of a run |
//! | [`socket_options`], [`epoll_params`], [`pidfd`] | a socket's NAPI, an epoll instance's polling, descriptors of other processes |
//! | [`netlink`] | rtnetlink, netdev and ethtool requests |
//!
//! # Features
//! - `serde` (off by default): plans, reports and settings can be serialized.
//! - `tools` (off by default): what the `policies` command and measurements need beyond a runtime:
//!   `attach`, `explain`, and [`counters`] of a run.
//!
//! The crate is synchronous. It reports by [`tracing`] what it can't return.
//!
//! The kernel's side is described in `Documentation/networking/napi.rst`, the policies in Cai and
//! Karsten, *Kernel vs. User-Level Networking: Don't Throw Out the Stack with the Interrupts*
//! (2023).

// `docs/internals/unsafe.md` lists the files that are excepted.
#![deny(unsafe_code)]
#![allow(missing_docs)]
// docs.rs then shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

mod apply;
#[cfg(feature = "tools")]
pub mod attach;
pub mod controller;
pub mod counters;
mod cpus;
pub mod epoll_params;
mod error;
#[cfg(feature = "tools")]
pub mod explain;
mod grace_time;
pub mod host;
mod journal;
mod json;
mod knob;
mod names;
pub mod netlink;
pub mod pidfd;
mod plan;
mod policy;
pub mod prometheus_text;
pub mod signals;
pub mod socket_options;
pub mod status;
mod supervise;
pub mod thread_time;

pub use apply::{AdaptedQueue, Applied, Guard, Outcome, QueueDelegate, apply};
pub use cpus::{Cpus, InvalidCpus, Pid};
pub use error::Error;
pub use grace_time::{GraceTime, InvalidGraceTime};
pub use host::machine::missing_capabilities;
pub use host::numa::{NumaNode, Topology, nearest_cores};
pub use host::{Interface, RxQueue, TxQueue};
#[cfg(fuzzing)]
pub use journal::fuzzing;
#[cfg(feature = "tools")]
pub use journal::{Drift, drift};
pub use journal::{
    JournalDir, JournalSummary, JournalsOfProcess, LeftJournal, Lifetime, Recovery, RestoreOutcome,
    RestoreReport, journals_of, recover, restore, restore_preview, summaries, summaries_everywhere,
};
pub use knob::permission::{NotPermitted, may_set};
pub use knob::{Knob, Value};
pub use names::UnknownName;
pub use plan::{Note, Plan, Settings, Step, SuppressionValues};
pub use policy::{Affinity, Policy, Processing, WorkerWait};
pub use supervise::{Change, ChangeStep, QueueChange, QueueRequests, Supervisor, SupervisorHooks};
