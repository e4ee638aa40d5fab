//! Keeps a policy while links come and go and others move interrupts.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::grace_time_tuner::GraceTimeTuner;
use crate::netlink::route::{self, LinkMonitor};
use crate::{Guard, Knob, host};

/// What workers and their queues' interrupts have to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// Workers are pinned, and each queue's interrupt follows its worker; one that is moved away is put
    /// back.
    #[default]
    Pin,
    /// Each worker runs on the core that its queue's interrupt goes to, and moves when that does. Waking
    /// a thread on the core that took the interrupt is much cheaper than across cores (FastWake).
    Follow,
    /// Interrupts stay where the host has them.
    None,
}

impl std::str::FromStr for Affinity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "pin" => Ok(Affinity::Pin),
            "follow" => Ok(Affinity::Follow),
            "none" => Ok(Affinity::None),
            _ => Err(format!("unknown affinity {text:?}; write pin, follow or none")),
        }
    }
}

/// Something that happened to an interface under a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The link went down.
    LinkDown,
    /// The link came up.
    LinkUp,
    /// The interface is gone, or in another network namespace; nothing is kept any more.
    InterfaceGone,
    /// The interface has another name.
    Renamed(String),
    /// A knob had lost its value, and was turned again; or could not be.
    Reapplied {
        /// What was turned, and how it went.
        what: String,
        /// What it had.
        had: Option<String>,
    },
    /// Another grace time has been found better for the load that there is.
    GraceTime {
        /// The receive queue.
        queue: u32,
        /// The grace time.
        time: Duration,
    },
    /// The grace time can't be adapted, and stays.
    TuningStopped {
        /// The receive queue.
        queue: u32,
        /// The grace time.
        time: Duration,
        /// The kernel's word.
        reason: String,
    },
    /// A queue's interrupt goes to another core.
    InterruptMoved {
        /// The receive queue.
        queue: u32,
        /// The core.
        core: u32,
    },
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Change::LinkDown => write!(f, "the link is down"),
            Change::LinkUp => write!(f, "the link is up"),
            Change::InterfaceGone => write!(f, "the interface is gone, and the policy with it"),
            Change::Renamed(name) => write!(f, "the interface is called {name} now"),
            Change::Reapplied { what, had: Some(had) } => write!(f, "{what} (somebody had made it {had})"),
            Change::Reapplied { what, had: None } => write!(f, "{what}"),
            Change::GraceTime { queue, time } => {
                write!(f, "rx-{queue} waits {} µs after an empty poll now", time.as_micros())
            }
            Change::TuningStopped { queue, time, reason } => write!(
                f,
                "rx-{queue} goes on waiting {} µs after an empty poll, whatever the load: {reason}",
                time.as_micros()
            ),
            Change::InterruptMoved { queue, core } => write!(f, "rx-{queue} interrupts core {core} now"),
        }
    }
}

/// How often interrupts are looked at; no message tells when one is moved.
const INTERVAL: Duration = Duration::from_secs(1);

/// What the application's side gives a supervisor.
pub struct SupervisorHooks {
    /// Bytes that the worker of a receive queue has received so far: what grace times are compared by.
    pub received_bytes: Box<dyn FnMut(u32) -> u64 + Send>,
    /// Called about once a second.
    pub on_tick: Box<dyn FnMut() + Send>,
}

impl std::fmt::Debug for SupervisorHooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SupervisorHooks")
    }
}

/// A thread that keeps a guard's policy, until it is dropped; then the guard restores the host.
#[derive(Debug)]
pub struct Supervisor {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<Guard>>,
}

impl Supervisor {
    /// Starts to keep a policy. `tell` hears of each change, on the supervisor's thread.
    pub fn start(
        guard: Guard,
        affinity: Affinity,
        tell: impl FnMut(&Change) + Send + 'static,
        hooks: SupervisorHooks,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let monitor = LinkMonitor::open()?;
        let SupervisorHooks { received_bytes, mut on_tick } = hooks;
        let mut adapter = GraceTimeTuner::new(&guard, received_bytes);
        let mut watch = Watch {
            cores: BTreeMap::new(),
            up: true,
            gone: false,
            affinity,
            guard,
            failed: BTreeMap::new(),
            tell: Box::new(tell),
        };
        let told = Arc::clone(&stop);
        let thread = thread::Builder::new().name("lull-supervisor".to_owned()).spawn(move || {
            let mut heard = true;
            while !told.load(Ordering::Acquire) {
                if !watch.gone {
                    watch.look(heard);
                }
                on_tick();
                if !watch.gone && watch.up {
                    adapter.run(&mut watch.guard, &told, &mut watch.tell);
                }
                heard = watch_until(&monitor, &told);
            }
            watch.guard
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

/// Waits for a message about links, or for the interval to end.
fn watch_until(monitor: &LinkMonitor, stop: &AtomicBool) -> bool {
    const STEP: Duration = Duration::from_millis(100);
    for _ in 0..INTERVAL.as_millis() / STEP.as_millis() {
        if stop.load(Ordering::Acquire) {
            return false;
        }
        match monitor.wait(STEP) {
            Ok(false) => {}
            Ok(true) => {
                // Messages come in bursts, and all of one are looked into at once.
                thread::sleep(STEP);
                return true;
            }
            // A socket that can't be read any more leaves the interval.
            Err(_) => thread::sleep(STEP),
        }
    }
    false
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // The guard that comes back restores the host; a panic has dropped it already.
            drop(thread.join());
        }
    }
}

struct Watch {
    /// The core that each queue's interrupt went to last.
    cores: BTreeMap<u32, u32>,
    up: bool,
    gone: bool,
    affinity: Affinity,
    guard: Guard,
    /// What could not be set again, with the reason: told once, not each second.
    failed: BTreeMap<String, String>,
    tell: Box<dyn FnMut(&Change) + Send>,
}

impl Watch {
    fn look(&mut self, heard: bool) {
        let index = self.guard.plan().ifindex;
        // Without an answer nothing is known, and the next second is another.
        let Ok(links) = route::links() else { return };
        let Some(link) = links.into_iter().find(|link| link.index == index) else {
            self.gone = true;
            (self.tell)(&Change::InterfaceGone);
            return;
        };
        if link.name != self.guard.plan().interface {
            (self.tell)(&Change::Renamed(link.name.clone()));
            if let Err(error) = self.guard.rename(&link.name) {
                (self.tell)(&Change::Reapplied { what: error.to_string(), had: None });
            }
        }
        if link.up != self.up {
            self.up = link.up;
            (self.tell)(if link.up { &Change::LinkUp } else { &Change::LinkDown });
        }
        if !link.up {
            return;
        }
        if heard {
            self.set_again(|knob| !is_affinity(knob), true);
        }
        match self.affinity {
            Affinity::Pin => self.set_again(is_affinity, false),
            Affinity::Follow => self.follow(),
            Affinity::None => {}
        }
    }

    fn set_again(&mut self, select: impl Fn(&Knob) -> bool, only_forgotten: bool) {
        for (applied, had) in self.guard.reapply(select, only_forgotten) {
            let had = had.map(|value| value.to_string());
            let (knob, what) = (applied.knob.to_string(), applied.to_string());
            if applied.outcome.is_ok() {
                self.failed.remove(&knob);
            } else if self.failed.insert(knob, what.clone()).as_ref() == Some(&what) {
                continue;
            }
            (self.tell)(&Change::Reapplied { what, had });
        }
    }

    fn follow(&mut self) {
        let Ok(interface) = host::interface_at(self.guard.plan().ifindex) else { return };
        for queue in &interface.queues {
            let core = queue.irq_effective.as_ref().and_then(|cpus| cpus.iter().next());
            let Some(core) = core else { continue };
            if self.cores.insert(queue.index, core) != Some(core) {
                (self.tell)(&Change::InterruptMoved { queue: queue.index, core });
            }
        }
    }
}

fn is_affinity(knob: &Knob) -> bool {
    matches!(knob, Knob::IrqAffinity { .. } | Knob::TxIrqAffinity { .. })
}
