//! Kernel polling for servers that were not written for it, from outside.
//!
//! The kernel keeps the parameters of polling in the epoll instance and in the NAPI, not in the
//! process. So another process can set them: it duplicates the server's epoll instance
//! (`pidfd_getfd`), and sets its parameters (`EPIOCSPARAMS`) and those of the NAPI that the
//! server's connections come from (netdev netlink).
//!
//! [`observe`] looks at a server, and says what prevents it. An [`Attachment`] keeps a server under
//! kernel polling: it measures its threads and its queue, asks the [controller](crate::controller),
//! and sets what it chooses. It holds each queue as a program on the runtime does, with a journal.
//!
//! ```no_run
//! use policies::attach::{AttachConfig, Attachment, Target, observe};
//! use policies::JournalDir;
//!
//! let target = Target::Unit("nginx".to_owned());
//! let observation = observe(&target, None, &JournalDir::default())?;
//! println!("{}", observation.verdict());
//! if !observation.is_prevented() {
//!     let attachment = Attachment::start(AttachConfig::new(target), |event| println!("{event}"))?;
//!     std::thread::sleep(std::time::Duration::from_secs(10));
//!     println!("{:?}", attachment.status());
//!     attachment.detach();
//! }
//! # Ok::<(), policies::Error>(())
//! ```

mod attacher;
mod attachment;
mod event;
mod held_queue;
mod instance;
mod load;
mod process;
mod queue_map;
mod reporter;
mod steer;
mod survey;
mod target;
mod watchdog;

pub use attachment::Attachment;
pub use event::{AttachEvent, InstanceName};
pub use queue_map::QueueName;
pub use reporter::{AttachStatus, AttachedQueue};
pub use survey::{Fitness, Observation, ObservedInstance, ObservedProcess, observe};
pub use target::{AttachConfig, Target};
