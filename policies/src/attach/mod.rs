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
mod event;
mod forecast;
mod held_queue;
mod instance;
mod load;
mod process;
mod reporter;
mod steer;
mod survey;
mod target;
mod watchdog;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

pub use event::{AttachEvent, InstanceName};
pub use forecast::Forecast;
pub use instance::QueueName;
pub use reporter::{AttachStatus, AttachedQueue};
pub use survey::{Fitness, Observation, ObservedInstance, ObservedProcess, observe};
pub use target::{AttachConfig, Target};

use attacher::{Attacher, STEP};
use reporter::Reporter;
use target::ProcessFinder;

use crate::error::Error;
use crate::host::net_namespace::NetNamespace;

/// A server under kernel polling. Dropping it puts everything back.
///
/// SIGINT and SIGTERM put it back, too; after SIGKILL the next [`apply`](crate::apply), attachment
/// or [`recover`](crate::recover) does.
pub struct Attachment {
    stop: Arc<AtomicBool>,
    status: Arc<Mutex<AttachStatus>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Attachment {
    /// Starts a thread that attaches the server's epoll instances as they come and go, in the
    /// network namespace of its first process. It calls `on_event` on that thread.
    ///
    /// Look at the server first ([`observe`]): this reports what it leaves alone,
    /// but not what would have to be fixed.
    ///
    /// # Errors
    /// [`Error::NoTarget`] if there is no such process, unit or group; [`Error::Kernel`] if its
    /// network namespace can't be entered or the kernel has no netdev netlink.
    pub fn start(
        config: AttachConfig,
        on_event: impl FnMut(&AttachEvent) + Send + 'static,
    ) -> Result<Self, Error> {
        let finder = ProcessFinder::new(&config.target)?;
        let (stop, status) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::default()));
        let namespace = match finder.processes().first() {
            Some(first) => NetNamespace::of_process(*first),
            None => NetNamespace::current(),
        };
        let namespace = namespace.map_err(Error::kernel("open the network namespace of the server"))?;
        let reporter = Reporter::new(Box::new(on_event), Arc::clone(&status));
        let (started, starts) = mpsc::channel();
        let stop_requested = Arc::clone(&stop);
        let run = move || {
            let entered =
                namespace.enter().map_err(Error::kernel("enter the network namespace of the server"));
            let attacher = entered.and_then(|()| Attacher::new(config, finder, reporter));
            let mut attacher = match attacher {
                Ok(attacher) => attacher,
                Err(error) => return drop(started.send(Err(error))),
            };
            // The caller waits for it.
            let _ = started.send(Ok(()));
            while !stop_requested.load(Ordering::Acquire) && attacher.turn() {
                thread::park_timeout(STEP);
            }
            attacher.detach_all();
        };
        let thread = thread::Builder::new()
            .name("lull-attach".to_owned())
            .spawn(run)
            .map_err(Error::kernel("start a thread"))?;
        match starts.recv() {
            Ok(Ok(())) => Ok(Self { stop, status, thread: Some(thread) }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Kernel {
                operation: "attach".to_owned(),
                source: std::io::ErrorKind::Other.into(),
            }),
        }
    }

    pub fn status(&self) -> AttachStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether all processes of the target have ended, and everything was put back.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(thread::JoinHandle::is_finished)
    }

    /// Puts everything back, and waits for that.
    pub fn detach(self) {
        drop(self);
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // After a panic it has put everything back while it unwound.
            drop(thread.join());
        }
    }
}
