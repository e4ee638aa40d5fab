//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use policies::controller::{PollInterval, QueueSettings};
use policies::host::Recording;
use policies::{Cpus, GraceTime, Interface, Plan, Policy, Settings, SuppressionValues, host, nearest_cores};

use crate::attach::{AttachArguments, RunArguments, TargetArguments};
use crate::interface_name::interface_name;
use crate::output::CommandError;
use crate::output::Format;
use crate::watch::WatchArguments;

/// Network polling policies: show, plan, apply and restore what they set on the host
#[derive(Parser)]
#[command(
    name = "policies",
    version,
    after_help = "Exit codes: 0 success; 1 the command failed, or a value could not be set or restored, or `status` finds one that has changed since; 2 invalid arguments; 3 `explain` or `plan`: something prevents the policy"
)]
pub struct Cli {
    /// Output format
    #[arg(long, global = true, value_enum, default_value_t)]
    pub format: Format,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// List the interfaces
    List,
    /// Show an interface's queues, NAPIs, interrupts and settings
    Show {
        #[command(flatten)]
        interface: InterfaceOrRecording,
    },
    /// Show what a policy would set, without changing anything
    Plan {
        #[command(flatten)]
        interface: InterfaceOrRecording,
        #[command(flatten)]
        plan: PlanArguments,
    },
    /// Apply a policy until `restore` or a reboot
    Apply {
        /// Interface, for example eth0
        #[arg(value_parser = interface_name)]
        interface: String,
        #[command(flatten)]
        plan: PlanArguments,
        /// Restore after this time, for example 90s or 10m, unless Enter is pressed before. A lost
        /// terminal doesn't end it
        #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
        trial: Option<Duration>,
        /// Apply only if the steps are those of this plan: `policies --format json plan` with the same
        /// arguments
        #[arg(long, value_name = "FILE")]
        as_planned: Option<PathBuf>,
        /// Suppression delays the packets of all programs that block: apply it all the same
        #[arg(long)]
        all_programs: bool,
    },
    /// Restore what `apply`, or a program that was killed, left set
    Restore {
        /// Restore this interface only
        #[arg(value_parser = interface_name)]
        interface: Option<String>,
        /// Restore only what programs that have ended left; what `apply` has set stays
        #[arg(long)]
        ended: bool,
        /// Show what would be restored, without changing anything
        #[arg(long)]
        dry_run: bool,
    },
    /// Show who has set what since when: the journals, their processes, the modes of their queues,
    /// and which values that `apply` has set are others by now
    Status,
    /// Print everything that is read of an interface, without addresses, for `explain --from` and
    /// `plan --from` on another machine
    Record {
        /// Interface, for example eth0
        #[arg(value_parser = interface_name)]
        interface: String,
    },
    /// Explain whether kernel polling can run on an interface, what prevents it, how to fix that
    ///
    /// With --pid, --unit or --cgroup: whether a server can be attached to
    Explain {
        /// Interface, for example eth0
        #[arg(required_unless_present_any = ["pid", "unit", "cgroup", "from"], value_parser = interface_name)]
        interface: Option<String>,
        /// Explain a recorded interface (`policies record`)
        #[arg(long, value_name = "FILE", conflicts_with_all = ["interface", "pid", "unit", "cgroup"])]
        from: Option<PathBuf>,
        #[command(flatten)]
        target: Option<TargetArguments>,
    },
    /// Put a running server under kernel polling, until the command ends
    Attach(AttachArguments),
    /// Run a command under kernel polling, with its children
    Run(RunArguments),
    /// Show rates of interrupts, packets, polling and workers every second
    Watch(WatchArguments),
    /// Print shell completions
    Completions { shell: Shell },
}

#[derive(Args)]
pub struct InterfaceOrRecording {
    /// Interface, for example eth0
    #[arg(required_unless_present = "from", value_parser = interface_name)]
    interface: Option<String>,
    /// A recorded interface instead (`policies record`)
    #[arg(long, value_name = "FILE", conflicts_with = "interface")]
    from: Option<PathBuf>,
}

/// What a plan is made for.
pub enum Subject {
    Host(Interface),
    Recording(Interface, Box<Recording>),
}

impl InterfaceOrRecording {
    pub fn read(&self) -> Result<Subject, CommandError> {
        match (&self.from, &self.interface) {
            (Some(file), _) => {
                let recording = Recording::read(file)?;
                Ok(Subject::Recording(recording.interface(), Box::new(recording)))
            }
            // The command line has one of them.
            (None, interface) => {
                Ok(Subject::Host(host::interface(interface.as_deref().unwrap_or_default())?))
            }
        }
    }
}

impl Subject {
    pub fn interface(&self) -> &Interface {
        match self {
            Self::Host(interface) | Self::Recording(interface, _) => interface,
        }
    }

    /// Refuses cores that the machine doesn't have.
    fn check_cores(&self, cores: &Cpus) -> Result<(), CommandError> {
        let present = match self {
            Self::Host(_) => Cpus::online().map_err(CommandError::Affinity)?,
            Self::Recording(_, recording) => recording.cores().clone(),
        };
        match cores.iter().find(|core| !present.contains(*core)) {
            Some(core) => Err(CommandError::NoSuchCore { core, present }),
            None => Ok(()),
        }
    }

    fn nearest_cores(&self, count: usize) -> Result<Vec<u32>, CommandError> {
        match self {
            Self::Host(interface) => nearest_cores(interface, count).map_err(CommandError::Affinity),
            Self::Recording(_, recording) => Ok(recording.nearest_cores(count)),
        }
    }
}

/// The number of workers.
#[derive(Debug, Clone, Copy)]
enum Workers {
    /// One for each queue, on as many cores as there are.
    All,
    Count(u16),
}

fn parse_workers(text: &str) -> Result<Workers, String> {
    match (text, text.parse()) {
        ("all", _) => Ok(Workers::All),
        (_, Ok(count @ 1..)) => Ok(Workers::Count(count)),
        _ => Err("expected a number from 1 to 65535, or all".to_owned()),
    }
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let invalid = || "expected a time from 1s to 24h, as 90s, 10m or 1h".to_owned();
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(invalid)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err(invalid()),
    };
    let time = number.parse().ok().and_then(|number: u64| number.checked_mul(seconds));
    time.filter(|time| (1..=86_400).contains(time)).map(Duration::from_secs).ok_or_else(invalid)
}

#[derive(Args)]
pub struct PlanArguments {
    #[arg(long, help = Policy::names())]
    pub policy: Policy,
    /// Cores of the application's workers, for example 0-3; queue i belongs to the i-th core
    #[arg(long, default_value = "", hide_default_value = true, conflicts_with = "workers")]
    worker_cores: Cpus,
    /// Number of workers, on the cores nearest to the device (its NUMA node first, second hardware
    /// threads of a core last); all: one for each queue, at most one for each core
    #[arg(long, value_name = "COUNT", value_parser = parse_workers)]
    workers: Option<Workers>,
    /// Cores that run network processing under packing, and the polling threads of kernel-thread
    #[arg(long, default_value = "", hide_default_value = true)]
    packing_cores: Cpus,
    /// Grace time after an empty poll, in microseconds: under kernel polling the longest time for
    /// which a packet waits for a poll [default: 30; suppression: 200]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    gro_flush_timeout: Option<u64>,
    /// Number of empty polls that re-arm the timer instead of the interrupt [default: 100; kernel
    /// polling without --gro-flush-timeout: 5]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(0..=i32::MAX as u64))]
    defer_hard_irqs: Option<u64>,
    /// Kernel polling: packets per second that a queue receives at most, so that its ring does not
    /// overflow before the suspend timeout
    // About what one core serves of small requests.
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    peak_packet_rate: u32,
    /// Number of receive queues to configure (ethtool channels) [default: unchanged]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    channels: Option<u32>,
    /// Size of the receive rings to configure, in descriptors (ethtool rings), for the whole
    /// device; a driver may round it
    #[arg(long, value_name = "DESCRIPTORS", value_parser = clap::value_parser!(u32).range(1..))]
    rx_ring: Option<u32>,
    /// Queues to configure, for example 0-1; per-queue settings of the others stay unchanged
    #[arg(long, value_name = "QUEUES")]
    queues: Option<Cpus>,
    /// Suppression: microseconds from a received packet to its interrupt
    #[arg(long, value_name = "US", default_value_t = SuppressionValues::default().rx_usecs)]
    rx_usecs: u32,
}

impl PlanArguments {
    pub fn plan(&self, subject: &Subject) -> Result<Plan, CommandError> {
        let interface = subject.interface();
        subject.check_cores(&self.worker_cores)?;
        subject.check_cores(&self.packing_cores)?;
        let worker_cores = match self.workers {
            Some(Workers::All) => subject.nearest_cores(self.planned_queues(interface))?,
            Some(Workers::Count(count)) => subject.nearest_cores(count.into())?,
            None => self.worker_cores.iter().collect(),
        };
        let values = self.deferral();
        let mut settings = Settings {
            channels: self.channels,
            rx_ring: self.rx_ring,
            queues: self.queues.as_ref().map(|queues| queues.iter().collect()),
            worker_cores,
            packing_cores: self.packing_cores.clone(),
            defer_hard_irqs: values.defer_hard_irqs,
            gro_flush_timeout: GraceTime::Fixed(values.grace_time),
            peak_packet_rate: self.policy.suspends_interrupts().then_some(self.peak_packet_rate),
            suppression: SuppressionValues { rx_usecs: self.rx_usecs, ..SuppressionValues::default() },
            ..Settings::default()
        };
        settings.limit_queues(self.policy, interface, settings.worker_cores.len());
        Ok(match subject {
            Subject::Host(interface) => Plan::new(self.policy, interface, &settings),
            Subject::Recording(_, recording) => Plan::for_recording(self.policy, recording, &settings),
        })
    }

    /// The number of receive queues that the plan is for.
    fn planned_queues(&self, interface: &Interface) -> usize {
        let all = self.channels.map_or(interface.queues.len(), |count| count as usize);
        self.queues.as_ref().map_or(all, Cpus::len).max(1)
    }

    /// The values of deferral. A grace time given by hand has the deferrals that it has in a
    /// program on the runtime.
    fn deferral(&self) -> QueueSettings {
        let mut values = match self.gro_flush_timeout.map(Duration::from_micros) {
            None if self.policy.suspends_interrupts() => QueueSettings::fixed(PollInterval::default()),
            by_hand => {
                let time = by_hand.unwrap_or(Settings::SUPPRESSION_GRACE_TIME);
                QueueSettings::preset(Settings::DEFER_HARD_IRQS, time, Settings::IRQ_SUSPEND_TIMEOUT)
            }
        };
        values.defer_hard_irqs = self.defer_hard_irqs.unwrap_or(values.defer_hard_irqs);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deferral(flags: &str) -> (u64, u128) {
        let line = ["policies", "plan", "lo"].into_iter().chain(flags.split_whitespace());
        let Command::Plan { plan: arguments, .. } =
            Cli::try_parse_from(line).map_err(|error| error.to_string()).unwrap().command
        else {
            unreachable!("`plan` was given")
        };
        let values = arguments.deferral();
        (values.defer_hard_irqs, values.grace_time.as_micros())
    }

    #[test]
    fn a_grace_time_by_hand_has_the_deferrals_of_the_kernel_series() {
        assert_eq!(deferral("--policy kernel-polling"), (QueueSettings::GRACE_DEFERRALS, 30));
        assert_eq!(deferral("--policy kernel-polling --gro-flush-timeout 200"), (100, 200));
        assert_eq!(deferral("--policy kernel-polling --defer-hard-irqs 2"), (2, 30));
        let both = "--policy kernel-polling --gro-flush-timeout 30 --defer-hard-irqs 1";
        assert_eq!(deferral(both), (1, 30));
        assert_eq!(deferral("--policy suppression"), (100, 200));
        assert_eq!(deferral("--policy suppression --gro-flush-timeout 30"), (100, 30));
    }
}
