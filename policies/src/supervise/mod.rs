//! A thread that keeps an applied policy in effect while links change and other processes move
//! interrupts, and sets what the workers' controllers choose for their queues.

mod queue_change;
mod queue_requests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

pub use queue_change::{ChangeStep, QueueChange};
pub use queue_requests::QueueRequests;

use crate::apply::{Guard, QueueDelegate, apply};
use crate::controller::QueueSettings;
use crate::host::{Interface, interface_by_index, sysfs};
use crate::journal::Lifetime;
use crate::knob::Knob;
use crate::netlink::route::{self, Link, LinkMonitor, Woken};
use crate::plan::Plan;
use crate::policy::Affinity;

/// How often interrupts are checked: the kernel sends no message when one is moved.
const INTERVAL: Duration = Duration::from_secs(1);

/// The application's callbacks for a [`Supervisor`], which calls them on its thread.
pub struct SupervisorHooks {
    /// What the workers want set on their queues.
    pub requests: Arc<QueueRequests>,
    /// Sets a queue's values if this process may not, because it has given up its privileges since
    /// its start.
    pub delegate: Option<Box<QueueDelegate>>,
    /// Called about once a second with the interface's index, which is another one after it was
    /// taken away and given back.
    pub on_tick: Box<dyn FnMut(u32) + Send>,
    /// Whether the policy is applied again to an interface that was taken away and is back.
    pub takes_back: bool,
}

/// A thread that keeps a guard's policy in effect.
///
/// It sets knobs again that were lost, moves interrupts back or reports where they went, follows
/// renames, applies the policy again to an interface that was taken away and given back, and sets
/// what the workers' controllers choose for their queues. Dropping the supervisor stops the thread
/// and restores the host.
#[derive(Debug)]
pub struct Supervisor {
    stop: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Supervisor {
    /// Starts a supervisor. It calls `on_change` on its thread.
    ///
    /// # Errors
    /// If the netlink socket can't be opened or the thread can't be started. The host is restored
    /// then.
    pub fn start(
        guard: Guard,
        affinity: Affinity,
        on_change: impl FnMut(&Change) + Send + 'static,
        hooks: SupervisorHooks,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let monitor = LinkMonitor::open()?;
        let SupervisorHooks { requests, delegate, mut on_tick, takes_back } = hooks;
        if delegate.is_some() {
            guard.leave_to_delegate();
        }
        let interface = SupervisedInterface {
            guard,
            affinity,
            requests,
            delegate,
            is_up: true,
            is_gone: false,
            takes_back,
            identity: None,
            had_napis: false,
            napis: Vec::new(),
            others: BTreeSet::new(),
            irq_cores: BTreeMap::new(),
            adapted: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            reported_failures: BTreeMap::new(),
            on_change: Box::new(on_change),
        };
        let stop_requested = Arc::clone(&stop);
        // A worker that starts after this call knows whether its requests can be met.
        let (started, has_started) = sync_channel(1);
        let thread = thread::Builder::new().name("lull-supervisor".to_owned()).spawn(move || {
            // Dropped after the interface, which gives the queues their values from before.
            let _end = interface.requests.supervised(interface.delegate.is_some());
            let mut interface = interface;
            let _ = started.send(());
            let mut link_changed = true;
            while !stop_requested.load(Ordering::Acquire) {
                interface.check(link_changed);
                interface.set_requested();
                on_tick(interface.guard.plan().ifindex);
                link_changed = interface.wait_for_link_change(&monitor, &stop_requested);
            }
            // It may own a file in the directory of journals, which is removed with its last one.
            drop(on_tick);
            // Here, and not where the supervisor is dropped: that thread may have given up its
            // privileges.
            drop(interface.guard);
        })?;
        // Fails only if the thread has ended.
        let _ = has_started.recv();
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // Also after a panic the thread has dropped the guard, which restores the host.
            drop(thread.join());
        }
    }
}

struct SupervisedInterface {
    guard: Guard,
    affinity: Affinity,
    requests: Arc<QueueRequests>,
    delegate: Option<Box<QueueDelegate>>,
    is_up: bool,
    is_gone: bool,
    takes_back: bool,
    /// By what the interface is recognised after it was gone; `None` until it was seen.
    identity: Option<InterfaceIdentity>,
    had_napis: bool,
    /// Its NAPIs at the last check, by which a link shows that was closed and opened in between.
    napis: Vec<u32>,
    /// The indices of the interfaces beside it, as long as it was there.
    others: BTreeSet<u32>,
    /// The core that each queue's interrupt went to at the last check.
    irq_cores: BTreeMap<u32, u32>,
    /// What was set last for each queue that its worker's controller has adapted.
    adapted: BTreeMap<u32, QueueSettings>,
    /// Queues whose values the delegate may still set. It is asked again each second.
    unanswered: BTreeSet<u32>,
    /// Knobs that could not be set again, with the message: reported once, not every second.
    reported_failures: BTreeMap<String, String>,
    on_change: Box<dyn FnMut(&Change) + Send>,
}

impl SupervisedInterface {
    /// Waits for a change of the interface or the end of the interval, and sets what workers ask for
    /// meanwhile. Returns whether it has changed.
    fn wait_for_link_change(&mut self, monitor: &LinkMonitor, stop: &AtomicBool) -> bool {
        const STEP: Duration = Duration::from_millis(100);
        // When it is back it has another index.
        let index = (!self.is_gone).then_some(self.guard.plan().ifindex);
        let (mut end, mut has_changed) = (Instant::now() + INTERVAL, false);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || stop.load(Ordering::Acquire) {
                return has_changed;
            }
            match monitor.wait_with(index, self.requests.as_fd(), left.min(STEP)) {
                Ok(Woken::Timeout) => {}
                Ok(Woken::Other) => self.set_requested(),
                // Changes come in bursts; one check covers the whole burst.
                Ok(Woken::LinkChange) if !has_changed => {
                    (end, has_changed) = (Instant::now() + STEP, true);
                }
                Ok(Woken::LinkChange) => {}
                // Without the socket, the interval still ends.
                Err(_) => thread::sleep(STEP),
            }
        }
    }

    fn set_requested(&mut self) {
        for (queue, settings) in self.requests.pending() {
            let result = if self.is_gone {
                Err(io::Error::new(io::ErrorKind::NotFound, "the interface is gone"))
            } else {
                self.set_queue(queue, &settings)
            };
            // The delegate may still set them, and the worker has to learn it then. So the request
            // stays, and is repeated.
            let may_follow = result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
            let is_news = self.unanswered.insert(queue) || !may_follow;
            let result = result.map_err(|error| error.to_string());
            if result.is_ok() {
                self.adapted.insert(queue, settings);
            }
            // First, because the callback may block or panic: the waits have to fit the values.
            if !may_follow {
                self.unanswered.remove(&queue);
                self.requests.answer(queue, &settings, result.clone());
            }
            if is_news {
                (self.on_change)(&match result {
                    Ok(()) => Change::QueueSettings { queue, settings },
                    Err(reason) => Change::AdaptationStopped { queue, reason },
                });
            }
        }
    }

    fn set_queue(&mut self, queue: u32, settings: &QueueSettings) -> io::Result<()> {
        self.guard.set_queue(queue, settings, self.delegate.as_deref_mut())
    }

    /// Sets again what the workers' controllers have chosen. The plan has the start values, and a
    /// worker keeps polling for those in effect, and asks only for others.
    fn set_adapted_again(&mut self) {
        for (queue, settings) in self.adapted.clone() {
            // It may be back with fewer queues.
            if !self.guard.plan().queues.contains(&queue) {
                continue;
            }
            if let Err(error) = self.set_queue(queue, &settings) {
                (self.on_change)(&Change::AdaptationStopped { queue, reason: error.to_string() });
            }
        }
    }

    fn check(&mut self, link_changed: bool) {
        let index = self.guard.plan().ifindex;
        // On an error the next check tries again.
        let Ok(links) = route::links() else { return };
        let found = links.iter().find(|link| link.index == index).cloned();
        if found.is_none() && !std::mem::replace(&mut self.is_gone, true) {
            (self.on_change)(&Change::InterfaceGone);
        }
        let Some(link) = found.filter(|_| !self.is_gone) else {
            return self.take_back(&links);
        };
        self.others = links.iter().map(|link| link.index).filter(|other| *other != index).collect();
        let mut is_reopened = false;
        if (link_changed && link.up || self.identity.is_none())
            && let Ok(interface) = interface_by_index(index)
        {
            let seen = InterfaceIdentity::of(&link, &interface);
            match &mut self.identity {
                Some(known) => known.update(seen),
                None => self.identity = Some(seen),
            }
            self.had_napis |= has_napis(&interface);
            let napis = interface.queues.iter().filter_map(|queue| Some(queue.napi.as_ref()?.id)).collect();
            let before = std::mem::replace(&mut self.napis, napis);
            is_reopened = !before.is_empty() && before != self.napis;
        }
        if link.name != self.guard.plan().interface {
            (self.on_change)(&Change::Renamed(link.name.clone()));
            if let Err(error) = self.guard.rename_interface(&link.name) {
                (self.on_change)(&Change::Reapplied { outcome: error.to_string(), previous: None });
            }
        }
        if link.up != self.is_up || is_reopened {
            self.is_up = link.up;
            (self.on_change)(if link.up { &Change::LinkUp } else { &Change::LinkDown });
        }
        if !link.up {
            return;
        }
        if link_changed {
            self.reapply(|knob| !is_irq_affinity(knob), true);
        }
        match self.affinity {
            Affinity::Pin => self.reapply(is_irq_affinity, false),
            Affinity::Follow => self.report_moved_interrupts(),
            Affinity::None => {}
        }
    }

    /// Applies the policy again if the interface is back. It is another one for the kernel, with
    /// its own index, queues and interrupts, so the plan is made anew.
    fn take_back(&mut self, links: &[Link]) {
        let Some(known) = self.identity.as_ref().filter(|_| self.takes_back) else { return };
        // Who was there beside it is another one of the same card.
        let candidates = links.iter().filter(|link| link.up && !self.others.contains(&link.index));
        let mut back = candidates.filter_map(|link| {
            let interface = interface_by_index(link.index).ok()?;
            let identity = InterfaceIdentity::of(link, &interface);
            identity.is_same(known).then_some((interface, identity))
        });
        let Some((interface, identity)) = back.next() else { return };
        // Some kernels name no NAPIs; then there is nothing to wait for.
        if interface.queues.is_empty() || self.had_napis && !has_napis(&interface) {
            let reason = "its driver has not set up all of its queues yet".to_owned();
            return self.report_not_applied(interface.name, reason);
        }
        let plan = self.guard.plan();
        let plan = Plan::new(plan.policy, &interface, &plan.settings);
        // Its journal would be in the way of the new one where the kernel has given the interface
        // the same index.
        self.guard.restore_now();
        let guard = match apply(&plan, Lifetime::Process, &self.guard.directory().clone()) {
            Ok(guard) => guard,
            Err(error) => return self.report_not_applied(interface.name, error.to_string()),
        };
        if self.delegate.is_some() {
            guard.leave_to_delegate();
        }
        self.guard = guard;
        self.identity = Some(identity);
        self.irq_cores.clear();
        // Their change is said below.
        self.napis.clear();
        self.reported_failures.clear();
        (self.is_gone, self.is_up) = (false, true);
        self.set_adapted_again();
        (self.on_change)(&Change::InterfaceBack(interface.name));
        // Its queues have new NAPIs.
        (self.on_change)(&Change::LinkUp);
    }

    /// Says why the interface that is back has no policy: once, not every second.
    fn report_not_applied(&mut self, interface: String, reason: String) {
        let change = Change::NotAppliedAgain { interface, reason };
        let said = change.to_string();
        if self.reported_failures.insert("back".to_owned(), said.clone()) != Some(said) {
            (self.on_change)(&change);
        }
    }

    fn reapply(&mut self, select: impl Fn(&Knob) -> bool, only_if_reset: bool) {
        for (applied, previous) in self.guard.reapply(select, only_if_reset) {
            let previous = previous.map(|value| value.to_string());
            let (knob, outcome) = (applied.knob.to_string(), applied.to_string());
            if applied.outcome.is_ok() {
                self.reported_failures.remove(&knob);
            } else if self.reported_failures.insert(knob, outcome.clone()).as_ref() == Some(&outcome) {
                continue;
            }
            (self.on_change)(&Change::Reapplied { outcome, previous });
        }
    }

    fn report_moved_interrupts(&mut self) {
        let Ok(interface) = interface_by_index(self.guard.plan().ifindex) else { return };
        for queue in &interface.queues {
            let core = queue.irq_effective.as_ref().and_then(|cpus| cpus.iter().next());
            let Some(core) = core else { continue };
            if self.irq_cores.insert(queue.index, core) != Some(core) {
                (self.on_change)(&Change::InterruptMoved { queue: queue.index, core });
            }
        }
    }
}

/// Whether each queue has a NAPI. A driver may set them up some time after the interface.
fn has_napis(interface: &Interface) -> bool {
    !interface.queues.is_empty() && interface.queues.iter().all(|queue| queue.napi.is_some())
}

fn is_irq_affinity(knob: &Knob) -> bool {
    matches!(knob, Knob::IrqAffinity { .. } | Knob::TxIrqAffinity { .. })
}

/// What an interface has again when it comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InterfaceIdentity {
    name: String,
    driver: Option<String>,
    permanent_address: Option<Vec<u8>>,
    device: Option<String>,
    /// Which of several interfaces of that place it is: the port's number and its name.
    port: (Option<String>, Option<String>),
}

impl InterfaceIdentity {
    pub(super) fn of(link: &Link, interface: &Interface) -> Self {
        let port = fs::read_to_string(sysfs::class_net(&interface.name).join("dev_port")).ok();
        Self {
            name: interface.name.clone(),
            driver: interface.driver.clone(),
            permanent_address: link.permanent_address.clone(),
            device: interface.device.clone(),
            port: (port, link.port_name.clone()),
        }
    }

    /// Takes over a later reading. Not without the driver: the kernel unlinks that from a device
    /// before its interface goes.
    pub(super) fn update(&mut self, later: Self) {
        if later.driver.is_some() || self.driver.is_none() {
            *self = later;
        }
    }

    /// By the permanent address, which a card keeps in another slot, or by the port of a device, as
    /// a VF may get a random address each time (igb). By the name of a virtual device. The driver
    /// as well: a netvsc and its VF have the same address.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_there = match (&self.device, &other.device) {
            (None, None) => self.name == other.name,
            _ => {
                let address = &self.permanent_address;
                let has_address = address.is_some() && *address == other.permanent_address;
                has_address || (self.device == other.device && self.port == other.port)
            }
        };
        self.driver == other.driver && is_there
    }
}

/// A change of an interface under a supervised policy.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    LinkDown,
    LinkUp,
    /// The interface was removed, or moved to another network namespace.
    InterfaceGone,
    /// The interface that was gone is there again, and has the policy.
    InterfaceBack(String),
    /// It is there again, and the policy can't be applied to it. It is tried again each second.
    NotAppliedAgain {
        interface: String,
        reason: String,
    },
    Renamed(String),
    /// A knob had lost its value, and was set again or could not be.
    Reapplied {
        outcome: String,
        /// The value that the knob had in between, if it could be read.
        previous: Option<String>,
    },
    /// A worker's controller has chosen other settings for its queue, and they are set.
    QueueSettings {
        queue: u32,
        settings: QueueSettings,
    },
    /// The settings that a worker's controller has chosen can't be set. The queue keeps the values
    /// that it has.
    AdaptationStopped {
        queue: u32,
        /// Why they can't be set.
        reason: String,
    },
    /// A queue's interrupt was moved to another core.
    InterruptMoved {
        queue: u32,
        core: u32,
    },
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::LinkDown => write!(f, "the link is down"),
            Change::LinkUp => write!(f, "the link is up"),
            Change::InterfaceGone => write!(f, "the interface is gone"),
            Change::InterfaceBack(name) => write!(f, "the interface is back as {name}, and has its policy"),
            Change::NotAppliedAgain { interface, reason } => {
                write!(f, "the interface is back as {interface}, without its policy: {reason}")
            }
            Change::Renamed(name) => write!(f, "the interface is now named {name}"),
            Change::Reapplied { outcome, previous: Some(previous) } => {
                write!(f, "{outcome} (it had been changed to {previous})")
            }
            Change::Reapplied { outcome, previous: None } => write!(f, "{outcome}"),
            Change::QueueSettings { queue, settings } => write!(f, "rx-{queue} is now driven by {settings}"),
            Change::AdaptationStopped { queue, reason } => {
                write!(f, "rx-{queue} keeps its values, which can't be adapted to the load: {reason}")
            }
            Change::InterruptMoved { queue, core } => write!(f, "rx-{queue} interrupt moved to core {core}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str, driver: &str, address: Option<u8>, device: Option<&str>) -> InterfaceIdentity {
        InterfaceIdentity {
            name: name.to_owned(),
            driver: Some(driver.to_owned()),
            permanent_address: address.map(|last| vec![0, 0, 0, 0, 0, last]),
            device: device.map(str::to_owned),
            port: (Some("0".to_owned()), None),
        }
    }

    #[test]
    fn an_interface_is_known_by_its_address_else_its_place_else_its_name() {
        let vf = identity("enP1s1", "mlx5_core", Some(1), Some("0001:00:02.0"));
        assert!(vf.is_same(&identity("enP2s1", "mlx5_core", Some(1), Some("0002:00:02.0"))));
        assert!(
            vf.is_same(&identity("enP1s1", "mlx5_core", Some(2), Some("0001:00:02.0"))),
            "a random address"
        );
        assert!(!vf.is_same(&identity("enP1s1", "mlx5_core", Some(2), Some("0002:00:02.0"))));
        assert!(!vf.is_same(&identity("eth0", "hv_netvsc", Some(1), Some("f8615163"))), "its netvsc");
        let random = identity("eth1", "igbvf", None, Some("0000:01:10.0"));
        assert!(random.is_same(&identity("eth2", "igbvf", None, Some("0000:01:10.0"))));
        assert!(!random.is_same(&identity("eth1", "igbvf", None, Some("0000:01:10.2"))));
        let virtual_one = identity("veth0", "veth", None, None);
        assert!(virtual_one.is_same(&identity("veth0", "veth", None, None)));
        assert!(!virtual_one.is_same(&identity("veth1", "veth", None, None)));
    }

    #[test]
    fn interfaces_of_one_device_are_told_apart_by_their_ports() {
        let first = identity("eth1", "mlx4_en", None, Some("0000:01:00.0"));
        let second = InterfaceIdentity { port: (Some("1".to_owned()), None), ..first.clone() };
        assert!(first.is_same(&first) && !first.is_same(&second));
        let named =
            InterfaceIdentity { port: (Some("0".to_owned()), Some("pf0vf1".to_owned())), ..first.clone() };
        assert!(!first.is_same(&named), "a representor");
    }

    #[test]
    fn a_card_whose_driver_is_being_unlinked_stays_known() {
        let whole = identity("eth1", "mlx5_core", None, Some("0000:01:00.0"));
        let mut known = whole.clone();
        known.update(InterfaceIdentity { driver: None, ..whole.clone() });
        assert_eq!(known, whole);
        let renamed = InterfaceIdentity { name: "eth2".to_owned(), ..whole };
        known.update(renamed.clone());
        assert_eq!(known, renamed);
    }
}
