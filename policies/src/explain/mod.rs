//! Explains whether kernel polling can run on an interface, what prevents it, and how to fix that.
//!
//! ```
//! use policies::explain::{Explanation, Severity};
//! use policies::{JournalDir, host};
//!
//! let explanation = Explanation::of(&host::interface("lo")?, &JournalDir::default())?;
//! println!("{}", explanation.verdict());
//! for finding in &explanation.findings {
//!     if finding.severity != Severity::Ok {
//!         println!("{}\n    {}", finding.summary, finding.remedy.as_deref().unwrap_or("no remedy"));
//!     }
//! }
//! # Ok::<(), policies::Error>(())
//! ```

mod machine;
mod nearness;

use serde::Serialize;

use crate::error::Error;
use crate::host::machine::{has_net_admin, in_initial_user_namespace};
use crate::host::process::network_namespace;
use crate::host::{HostFacts, Interface, Recording, RxQueue};
use crate::journal::{JournalDir, LeftJournal, summaries};
use crate::netlink::netdev::Napi;
use crate::status;

/// How much a finding affects kernel polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Severity {
    Ok,
    /// Kernel polling works, but not as well as it could.
    Degrades,
    /// Kernel polling does not work in full.
    Prevents,
}

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// How much the finding affects kernel polling.
    pub severity: Severity,
    pub summary: String,
    /// A command, or what else fixes it; `None` if there is nothing to fix.
    pub remedy: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    pub interface: String,
    pub findings: Vec<Finding>,
}

impl Explanation {
    /// Inspects an interface. Changes nothing.
    ///
    /// # Errors
    /// [`Error::Journal`] if the directory of journals can't be read.
    pub fn of(interface: &Interface, journals: &JournalDir) -> Result<Self, Error> {
        let host = HostFacts::read();
        let mut findings = FindingList(Vec::new());
        findings.check_kernel(&host);
        findings.check_device(interface);
        findings.check_permission(interface, &host);
        findings.check_queues(interface, &host);
        findings.check_nearness(interface, &host, &status::workers(journals, interface.index));
        findings.check_idle_cores(&host);
        findings.check_steering(interface);
        findings.check_moderation(interface);
        findings.check_link_file(interface);
        findings.check_other_processes(interface, &host, journals)?;
        findings.check_settings(interface, &host);
        Ok(Self { interface: interface.name.clone(), findings: findings.0 })
    }

    /// Explains a recorded interface: without permissions and other processes.
    pub fn of_recording(recording: &Recording) -> Self {
        let (interface, host) = (recording.interface(), &recording.host);
        let mut findings = FindingList(Vec::new());
        findings.check_kernel(host);
        findings.check_device(&interface);
        findings.check_queues(&interface, host);
        findings.check_nearness(&interface, host, &[]);
        findings.check_steering(&interface);
        findings.check_moderation(&interface);
        findings.check_settings(&interface, host);
        let origin = &recording.origin;
        findings.add_ok(format!(
            "This is a recording ({origin}): permissions and other processes are not in it."
        ));
        Self { interface: interface.name, findings: findings.0 }
    }

    /// Whether kernel polling does not work in full.
    pub fn prevents(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Prevents)
    }

    pub fn verdict(&self) -> String {
        let name = &self.interface;
        let count = |severity| self.findings.iter().filter(|finding| finding.severity == severity).count();
        match (count(Severity::Prevents), count(Severity::Degrades)) {
            (0, 0) => format!("{name} can run kernel polling in full."),
            (0, 1) => format!("{name} can run kernel polling in full; 1 finding below degrades it."),
            (0, some) => format!("{name} can run kernel polling in full; {some} findings below degrade it."),
            (some, _) => {
                format!("{name} can't run kernel polling as configured, for {}.", plural(some, "reason"))
            }
        }
    }
}

struct FindingList(Vec<Finding>);

impl FindingList {
    fn add_ok(&mut self, summary: String) {
        self.0.push(Finding { severity: Severity::Ok, summary, remedy: None });
    }

    fn add_problem(&mut self, severity: Severity, summary: String, remedy: impl Into<String>) {
        self.0.push(Finding { severity, summary, remedy: Some(remedy.into()) });
    }

    fn check_kernel(&mut self, host: &HostFacts) {
        let Some((major, minor)) = host.kernel_version() else { return };
        let name = format!("Linux {major}.{minor}");
        if (major, minor) >= (6, 13) {
            self.add_ok(format!("{name} can suspend a queue's interrupts (since 6.13)."));
        } else {
            self.add_problem(
                Severity::Prevents,
                format!("{name} can't suspend a queue's interrupts; that needs 6.13."),
                "install Linux 6.13 or later",
            );
        }
    }

    fn check_device(&mut self, interface: &Interface) {
        let (name, driver) = (&interface.name, interface.driver.as_deref().unwrap_or("unknown"));
        if !interface.up {
            self.add_problem(
                Severity::Prevents,
                format!("{name} is down, and has no NAPI while it is down."),
                format!("ip link set {name} up"),
            );
            return;
        }
        let napis = interface.napi_ids().len();
        let below = interface.lower.iter().map(|lower| format!("policies explain {lower}"));
        let below = below.collect::<Vec<_>>().join("; ");
        if let Some(note) = interface.note_on_lower() {
            let severity = if napis == 0 { Severity::Prevents } else { Severity::Degrades };
            self.add_problem(severity, format!("{note}."), below);
        }
        if napis == 0 && !interface.lower.is_empty() {
            return;
        }
        if napis == 0 && driver == "veth" {
            self.add_problem(
                Severity::Prevents,
                format!("{name} is a veth without generic receive offload, and therefore has no NAPI."),
                format!("ethtool -K {name} gro on"),
            );
        } else if napis == 0 {
            self.add_problem(
                Severity::Prevents,
                format!("{name} (driver {driver}) has no NAPI, so there is nothing to poll."),
                "use another interface; `policies list` shows those with NAPIs",
            );
        } else {
            let suspend =
                |queue: &&RxQueue| queue.napi.as_ref().is_some_and(|napi| napi.irq_suspend_timeout.is_some());
            let able = interface.queues.iter().filter(suspend).count();
            self.add_ok(format!(
                "{name} (driver {driver}) has {}; {able} can be configured individually.",
                plural(napis, "NAPI")
            ));
        }
        if interface.hides_napis() {
            self.add_problem(
                Severity::Prevents,
                format!("While {name} joins packets itself (large receive offload), {driver} gives sockets no NAPI to poll."),
                format!("ethtool -K {name} lro off"),
            );
        }
        if interface.ignores_deferral() {
            self.add_problem(
                Severity::Prevents,
                format!(
                    "The driver {driver} enables a queue's interrupt after each poll, also while it is deferred or suspended: \
                     no policy keeps interrupts away by that."
                ),
                "use the device's coalescing (ethtool -C), or the policy kernel-thread or packing",
            );
        }
        let unknown = interface.queues_of_unknown_interrupts();
        if !unknown.is_empty() {
            self.add_problem(
                Severity::Degrades,
                format!("The interrupts of {unknown} were not found, so a policy leaves them where they are."),
                format!("find them in /proc/interrupts while {name} receives, and set /proc/irq/N/smp_affinity_list"),
            );
        }
        if napis > 0 && !interface.has_interrupts() && interface.device.is_none() {
            self.add_ok(format!("{name} has no interrupts, so the sender's core polls its queues."));
        }
        if napis > 0 && !interface.keeps_napi_settings() {
            self.add_problem(
                Severity::Degrades,
                format!(
                    "The driver {driver} creates new NAPIs when the link is reopened, and the settings of the \
                     old ones are lost."
                ),
                "a running Lull process sets them again; otherwise run `policies apply` again",
            );
        }
    }

    fn check_permission(&mut self, interface: &Interface, host: &HostFacts) {
        let name = &interface.name;
        if has_net_admin() && in_initial_user_namespace() {
            self.add_ok("This process may change all settings (CAP_NET_ADMIN).".to_owned());
            return;
        }
        let why = if has_net_admin() {
            "This process has CAP_NET_ADMIN only in its user namespace; NAPI settings need it in the initial \
             one."
        } else {
            "This process may not change NAPI settings: it lacks CAP_NET_ADMIN."
        };
        self.add_problem(
            Severity::Prevents,
            why.to_owned(),
            format!(
                "sudo policies apply {name} --policy kernel-polling --workers {}",
                worker_count(interface, host)
            ),
        );
    }

    fn check_queues(&mut self, interface: &Interface, host: &HostFacts) {
        let (name, count) = (&interface.name, interface.queues.len());
        let cores = host.allowed.len().max(1);
        if interface.napi_ids().is_empty() {
            return;
        }
        let max = interface.channels.map_or(count, |channels| channels.max as usize);
        if count > cores {
            self.add_problem(
                Severity::Degrades,
                format!(
                    "{name} has {count} queues and this process has {cores} cores; a worker polls one queue."
                ),
                format!("policies apply {name} --policy kernel-polling --workers {cores}"),
            );
        } else if count < cores && max > count {
            let wanted = cores.min(max);
            self.add_problem(
                Severity::Degrades,
                format!(
                    "{name} has {count} of {max} queues for {cores} cores; only {count} workers can poll."
                ),
                format!(
                    "policies apply {name} --policy kernel-polling --workers {wanted} --channels {wanted}"
                ),
            );
        } else if count < cores {
            self.add_ok(format!(
                "{name} has {} for {cores} cores, and supports no more.",
                plural(count, "queue")
            ));
        } else {
            self.add_ok(format!("{name} has a queue for each of this process's {cores} cores."));
        }
    }

    fn check_steering(&mut self, interface: &Interface) {
        let name = &interface.name;
        for queue in &interface.queues {
            let index = queue.index;
            if queue.rps_cpus.as_ref().is_some_and(|cpus| !cpus.is_empty()) {
                self.add_problem(
                    Severity::Degrades,
                    format!("rx-{index} steers packets to other cores (RPS) after they were polled."),
                    format!("echo 0 > /sys/class/net/{name}/queues/rx-{index}/rps_cpus"),
                );
            }
            let napi = queue.napi.as_ref();
            let is_threaded = napi.is_some_and(|napi| napi.threaded.is_some_and(|on| on > 0));
            if napi.is_some_and(Napi::has_polling_thread) {
                self.add_problem(
                    Severity::Prevents,
                    format!(
                        "A kernel thread polls rx-{index} all the time (kernel-thread), so no worker's wait can."
                    ),
                    format!("stop the program that set it, or: policies restore {name}"),
                );
            } else if is_threaded && queue.irq.is_some() {
                self.add_problem(
                    Severity::Degrades,
                    format!(
                        "A kernel thread polls rx-{index}: each interrupt has to wake it, and the scheduler \
                         chooses its core."
                    ),
                    format!("echo 0 > /sys/class/net/{name}/threaded"),
                );
            }
            if let (true, Some(irq)) = (queue.irq_managed, queue.irq) {
                let cpus = queue.irq_affinity.clone().unwrap_or_default();
                self.add_problem(
                    Severity::Degrades,
                    format!(
                        "The kernel manages the affinity of interrupt {irq} of rx-{index} (cores {cpus})."
                    ),
                    format!("pin the worker of rx-{index} to one of these cores (--cores)"),
                );
            }
        }
    }

    fn check_moderation(&mut self, interface: &Interface) {
        if let Some((what, remedy)) = interface.moderation().filter(|_| !interface.napi_ids().is_empty()) {
            let summary = format!("{} {what}, which adds to the latency at low load.", interface.name);
            self.add_problem(Severity::Degrades, summary, remedy);
        }
    }

    fn check_other_processes(
        &mut self,
        interface: &Interface,
        host: &HostFacts,
        journals: &JournalDir,
    ) -> Result<(), Error> {
        if let Some(irqbalance) = host.irqbalance.filter(|_| interface.has_interrupts()) {
            self.add_problem(
                Severity::Degrades,
                format!("irqbalance runs (process {irqbalance}) and moves interrupts every ten seconds."),
                format!("stop it, or start it with --banirq=NUMBER for each interrupt of {}", interface.name),
            );
        }
        for left in unreadable_journals(interface.index, journals)? {
            self.add_problem(
                Severity::Degrades,
                format!("The journal {} can't be read: {}.", left.path.display(), left.reason),
                left.remedy,
            );
        }
        let (held, _) = summaries(journals)?;
        for holder in held.iter().filter(|holder| holder.is_held() && holder.interface == interface.name) {
            let (name, queues) = (&interface.name, &holder.queues);
            let all = interface.queues.iter().all(|queue| queues.contains(queue.index));
            self.add_problem(
                if all { Severity::Prevents } else { Severity::Degrades },
                format!("Process {} runs {} on queues {queues} of {name}.", holder.pid, holder.policy),
                if all {
                    format!("stop process {}", holder.pid)
                } else {
                    "start this program: a second process takes the free queues".to_owned()
                },
            );
        }
        Ok(())
    }

    fn check_settings(&mut self, interface: &Interface, host: &HostFacts) {
        let is_configured = |queue: &&RxQueue| {
            queue.napi.as_ref().is_some_and(|napi| {
                let set = |value: Option<u64>| value.is_some_and(|value| value > 0);
                set(napi.defer_hard_irqs) && set(napi.gro_flush_timeout) && set(napi.irq_suspend_timeout)
            })
        };
        if interface.napi_ids().is_empty() {
            return;
        }
        let (ready, all) = (interface.queues.iter().filter(is_configured).count(), interface.queues.len());
        if ready == all {
            self.add_ok("Deferral and suspension are set on every queue.".to_owned());
        } else {
            self.add_ok(format!(
                "Deferral and suspension are set on {ready} of {}. A Lull process with permission sets them \
                 while it runs; `policies apply {} --policy kernel-polling --workers {}` sets them until \
                 `policies restore`.",
                plural(all, "queue"),
                interface.name,
                worker_count(interface, host)
            ));
        }
    }
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

fn worker_count(interface: &Interface, host: &HostFacts) -> usize {
    interface.queues.len().clamp(1, host.allowed.len().max(1))
}

/// The journals that can't be read, and may be of the interface with an index.
fn unreadable_journals(ifindex: u32, journals: &JournalDir) -> Result<Vec<LeftJournal>, Error> {
    let namespace = network_namespace();
    let unreadable = journals.read()?.unreadable.into_iter();
    let concerned = unreadable.filter(|unreadable| unreadable.may_concern(namespace, Some(ifindex)));
    Ok(concerned.map(|unreadable| unreadable.left).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_nothing_to_poll() {
        let loopback = crate::host::interface("lo").unwrap();
        let explanation = Explanation::of(&loopback, &JournalDir::at("/nonexistent")).unwrap();
        let found = explanation.findings.iter().find(|finding| finding.summary.contains("no NAPI")).unwrap();
        assert_eq!(found.severity, Severity::Prevents);
        assert!(found.remedy.as_ref().unwrap().contains("policies list"));
        assert!(explanation.verdict().contains("can't"), "{}", explanation.verdict());
    }
}
