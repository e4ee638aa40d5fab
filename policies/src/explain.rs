//! What a machine can do for kernel polling on an interface, what is missing, and what would mend it.

use std::thread;
use std::time::Duration;

use serde::Serialize;

use crate::counters::Snapshot;
use crate::neighbours::{Irqbalance, holders};
use crate::permission::{has_net_admin, in_initial_user_namespace};
use crate::{Cpus, Error, Interface, JournalDir};

/// How much a finding matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Weight {
    /// As it should be.
    Good,
    /// Kernel polling runs, but not as well as it could.
    Hinders,
    /// Kernel polling can't run in full.
    Prevents,
}

/// One thing that was found, and the command that would mend it.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub weight: Weight,
    /// A sentence.
    pub what: String,
    /// A command, or where there is none what else would help.
    pub mend: Option<String>,
}

/// All that was found about an interface.
#[derive(Debug, Clone, Serialize)]
pub struct Explanation {
    /// The interface.
    pub interface: String,
    /// What was found, in the order in which it would be mended.
    pub findings: Vec<Finding>,
}

/// For how long traffic is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Drivers whose NAPIs keep their settings when the link is reopened (`netif_napi_add_config`).
const PERSISTENT: [&str; 12] = [
    "ena",
    "bnxt_en",
    "iavf",
    "ice",
    "idpf",
    "igb",
    "mlx4_en",
    "mlx5_core",
    "fbnic",
    "virtio_net",
    "netdevsim",
    "mlx4_core",
];

impl Explanation {
    /// Looks at the interface, and for a second at its traffic. Changes nothing.
    pub fn of(interface: &Interface, journals: &JournalDir) -> Result<Self, Error> {
        let mut findings = Findings(Vec::new());
        findings.kernel();
        findings.device(interface);
        findings.rights(interface);
        findings.queues(interface);
        findings.steering(interface);
        findings.neighbours(interface, journals)?;
        findings.settings(interface);
        if interface.up {
            findings.traffic(interface)?;
        }
        Ok(Self { interface: interface.name.clone(), findings: findings.0 })
    }

    /// The conclusion, in a sentence.
    pub fn verdict(&self) -> String {
        let name = &self.interface;
        let count = |weight| self.findings.iter().filter(|finding| finding.weight == weight).count();
        match (count(Weight::Prevents), count(Weight::Hinders)) {
            (0, 0) => format!("{name} can run kernel polling in full."),
            (0, 1) => format!("{name} can run kernel polling in full; one thing below stands in its way."),
            (0, some) => {
                format!("{name} can run kernel polling in full; {some} things below stand in its way.")
            }
            (1, _) => format!("{name} can't run kernel polling as it is, for one reason."),
            (some, _) => format!("{name} can't run kernel polling as it is, for {some} reasons."),
        }
    }
}

struct Findings(Vec<Finding>);

impl Findings {
    fn good(&mut self, what: String) {
        self.0.push(Finding { weight: Weight::Good, what, mend: None });
    }

    fn bad(&mut self, weight: Weight, what: String, mend: impl Into<String>) {
        self.0.push(Finding { weight, what, mend: Some(mend.into()) });
    }

    fn kernel(&mut self) {
        let release = procfs::sys::kernel::Version::current();
        let Ok(version) = release else { return };
        let name = format!("Linux {}.{}", version.major, version.minor);
        if (version.major, version.minor) >= (6, 13) {
            self.good(format!("{name} can suspend a queue's interrupts (it came with 6.13)."));
        } else {
            self.bad(
                Weight::Prevents,
                format!("{name} can't suspend a queue's interrupts; that came with 6.13."),
                "install a kernel of 6.13 or later",
            );
        }
    }

    fn device(&mut self, interface: &Interface) {
        let (name, driver) = (&interface.name, interface.driver.as_deref().unwrap_or("unknown"));
        if !interface.up {
            self.bad(
                Weight::Prevents,
                format!("{name} is down, and has no NAPI while it is."),
                format!("ip link set {name} up"),
            );
            return;
        }
        let napis = interface.napi_ids().len();
        if napis == 0 && driver == "veth" {
            self.bad(
                Weight::Prevents,
                format!("{name} is a veth without generic receive offload, and so without NAPIs."),
                format!("ethtool -K {name} gro on"),
            );
        } else if napis == 0 {
            self.bad(
                Weight::Prevents,
                format!("{name} (driver {driver}) has no NAPI: there is nothing to poll."),
                "serve another interface; `policies list` shows those with NAPIs",
            );
        } else {
            let suspend = |queue: &&crate::RxQueue| {
                queue.napi.as_ref().is_some_and(|napi| napi.irq_suspend_timeout.is_some())
            };
            let able = interface.queues.iter().filter(suspend).count();
            self.good(format!(
                "{name} (driver {driver}) has {}; {able} can be set one by one.",
                plural(napis, "NAPI")
            ));
        }
        if napis > 0 && !interface.has_interrupts() {
            self.good(format!(
                "{name} has no interrupts of its own: its packets come by the sender's core. Kernel polling \
                 keeps that core's softirqs away instead."
            ));
        }
        if napis > 0 && !PERSISTENT.contains(&driver) {
            self.bad(
                Weight::Hinders,
                format!(
                    "The driver {driver} gives its queues new NAPIs when the link is reopened, and what was \
                     set on the old ones is lost."
                ),
                "a running Lull process sets it again; after `policies apply` say it again",
            );
        }
    }

    fn rights(&mut self, interface: &Interface) {
        let name = &interface.name;
        if has_net_admin() && in_initial_user_namespace() {
            self.good("This process may set all of it (CAP_NET_ADMIN).".to_owned());
            return;
        }
        let why = if has_net_admin() {
            "This process has CAP_NET_ADMIN only in a user namespace of its own, and a NAPI's values are set \
             with the one of the machine."
        } else {
            "This process may not set a NAPI's values: it lacks CAP_NET_ADMIN."
        };
        self.bad(
            Weight::Prevents,
            why.to_owned(),
            format!("sudo policies apply {name} --policy kernel-polling --workers {}", workers(interface)),
        );
    }

    fn queues(&mut self, interface: &Interface) {
        let (name, count) = (&interface.name, interface.queues.len());
        let cores = Cpus::allowed().map_or(1, |cpus| cpus.len());
        if interface.napi_ids().is_empty() {
            return;
        }
        let max = interface.channels.map_or(count, |channels| channels.max as usize);
        if count > cores {
            self.bad(
                Weight::Hinders,
                format!(
                    "{name} has {count} queues and this process {cores} cores: a worker polls one queue."
                ),
                format!("policies apply {name} --policy kernel-polling --workers {cores} --channels {cores}"),
            );
        } else if count < cores && max > count {
            let wanted = cores.min(max);
            self.bad(
                Weight::Hinders,
                format!(
                    "{name} has {count} queues of {max}, for {cores} cores: only {count} workers can poll."
                ),
                format!(
                    "policies apply {name} --policy kernel-polling --workers {wanted} --channels {wanted}"
                ),
            );
        } else if count < cores {
            self.good(format!(
                "{name} has {} for {cores} cores, and can't have more.",
                plural(count, "queue")
            ));
        } else {
            self.good(format!("{name} has a queue for each of this process's cores ({cores})."));
        }
    }

    fn steering(&mut self, interface: &Interface) {
        let name = &interface.name;
        for queue in &interface.queues {
            let index = queue.index;
            if queue.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty()) {
                self.bad(
                    Weight::Hinders,
                    format!("rx-{index} hands its packets to other cores (RPS) after they were polled."),
                    format!("echo 0 > /sys/class/net/{name}/queues/rx-{index}/rps_cpus"),
                );
            }
            if queue.napi.as_ref().is_some_and(|napi| napi.threaded.is_some_and(|threaded| threaded > 0)) {
                self.bad(
                    Weight::Hinders,
                    format!("rx-{index} is polled by a kernel thread, which the worker has to win it from."),
                    format!("echo 0 > /sys/class/net/{name}/threaded"),
                );
            }
            if let (true, Some(irq)) = (queue.irq_managed, queue.irq) {
                let cpus = queue.irq_affinity.clone().unwrap_or_default();
                self.bad(
                    Weight::Hinders,
                    format!(
                        "The kernel manages the affinity of rx-{index}'s interrupt {irq} (cores {cpus})."
                    ),
                    format!("pin the worker of rx-{index} there: --cores"),
                );
            }
        }
    }

    fn neighbours(&mut self, interface: &Interface, journals: &JournalDir) -> Result<(), Error> {
        if interface.has_interrupts()
            && let Some(irqbalance) = Irqbalance::find()
        {
            self.bad(
                Weight::Hinders,
                format!(
                    "irqbalance runs (process {}) and moves interrupts every ten seconds.",
                    irqbalance.pid
                ),
                format!("policies apply {} … --ban-irqbalance", interface.name),
            );
        }
        for holder in holders(&interface.name, journals)? {
            let (name, queues) = (&interface.name, &holder.queues);
            let all = interface.queues.iter().all(|queue| queues.contains(queue.index));
            self.bad(
                if all { Weight::Prevents } else { Weight::Hinders },
                format!("Process {} runs {} on queues {queues} of {name}.", holder.pid, holder.policy),
                if all { format!("stop process {}", holder.pid) } else { "take the other queues".to_owned() },
            );
        }
        Ok(())
    }

    fn settings(&mut self, interface: &Interface) {
        let polled = |queue: &&crate::RxQueue| {
            queue.napi.as_ref().is_some_and(|napi| {
                let set = |value: Option<u64>| value.is_some_and(|value| value > 0);
                set(napi.defer_hard_irqs) && set(napi.gro_flush_timeout) && set(napi.irq_suspend_timeout)
            })
        };
        if interface.napi_ids().is_empty() {
            return;
        }
        let (ready, all) = (interface.queues.iter().filter(polled).count(), interface.queues.len());
        if ready == all {
            self.good("Deferral and suspension are set on every queue.".to_owned());
        } else {
            self.good(format!(
                "Deferral and suspension are set on {ready} of {} now; a Lull process that may sets \
                 them while it runs, and `policies apply {} --policy kernel-polling --workers {}` until \
                 `policies restore`.",
                plural(all, "queue"),
                interface.name,
                workers(interface)
            ));
        }
    }

    /// Who takes the packets that come now.
    fn traffic(&mut self, interface: &Interface) -> Result<(), Error> {
        let before = Snapshot::take(interface)?;
        thread::sleep(LOOK);
        let delta = Snapshot::take(interface)?.since(&before);
        let (packets, polled) = (delta.rx_packets.total(), delta.busy_poll_rx_packets);
        if packets == 0 {
            self.good(format!("Nothing came in on {} within a second.", interface.name));
            return Ok(());
        }
        let rest = packets.saturating_sub(polled);
        let what = format!(
            "Within a second {packets} packets came in on {}; {polled} were got by busy polling, {rest} by \
             softirqs.",
            interface.name
        );
        if polled > 0 && rest > polled {
            self.bad(
                Weight::Hinders,
                format!("{what} Other traffic shares the queues with what polls them."),
                "move it to another interface or queue (ethtool -N)",
            );
        } else {
            self.good(what);
        }
        Ok(())
    }
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

fn workers(interface: &Interface) -> usize {
    let cores = Cpus::allowed().map_or(1, |cpus| cpus.len());
    interface.queues.len().clamp(1, cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_told_to_have_nothing_to_poll() {
        let loopback = crate::host::interface("lo").unwrap();
        let explanation = Explanation::of(&loopback, &JournalDir::at("/nonexistent")).unwrap();
        let found = explanation.findings.iter().find(|finding| finding.what.contains("no NAPI")).unwrap();
        assert_eq!(found.weight, Weight::Prevents);
        assert!(found.mend.as_ref().unwrap().contains("policies list"));
        assert!(explanation.verdict().contains("can't"), "{}", explanation.verdict());
    }
}
