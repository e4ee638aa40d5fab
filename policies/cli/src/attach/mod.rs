//! `policies attach`, `policies run` and `policies explain --pid`: kernel polling for servers that
//! were not written for it.

mod run;
mod text;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use policies::attach::{AttachConfig, AttachStatus, Attachment, Observation, QueueName, Target, observe};
use policies::controller::PollInterval;
use policies::{JournalDir, signals};

use crate::interface_name::interface_name;
use crate::output::CommandError;
use crate::output::{Format, PREVENTED, print_left_journals, print_line, write_error};

pub use run::{RunArguments, run};

/// How often a command that waits looks whether it has to end.
const TICK: Duration = Duration::from_millis(50);
/// How often a unit or control group without an epoll instance is looked at before it is refused,
/// and the time between: its service may have been started at the same moment.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);
/// For how long a server is measured before it is attached to.
const MEASURED: Duration = Duration::from_secs(1);
/// How often the measurements of an attachment are taken in.
const STATUS: Duration = Duration::from_secs(1);

#[derive(Args)]
#[group(multiple = false)]
pub struct TargetArguments {
    /// A process, with its children
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// A systemd unit, for example nginx; it may be restarted meanwhile
    #[arg(long, value_name = "NAME")]
    unit: Option<String>,
    /// A control group, for example /system.slice/nginx.service
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
}

impl TargetArguments {
    pub fn target(&self) -> Target {
        match (self.pid, &self.unit, &self.cgroup) {
            (Some(pid), ..) => Target::Process(pid),
            (_, Some(unit), _) => Target::Unit(unit.clone()),
            // The command line has one of them.
            (_, _, cgroup) => Target::Cgroup(cgroup.clone().unwrap_or_default()),
        }
    }
}

#[derive(Args)]
pub struct PollingArguments {
    /// Only the queues of this interface, for example eth0 [default: all]
    #[arg(long, value_name = "INTERFACE", value_parser = interface_name)]
    interface: Option<String>,
    /// The longest time for which a packet waits while the queue is polled, in microseconds, 10 to
    /// 1000: a longer one takes less CPU time
    #[arg(long, value_name = "US", default_value_t, value_parser = parse_poll_interval)]
    poll_interval: PollInterval,
    /// Make waits poll from 2,000 packets a second on, for tests of what that does
    #[arg(long, hide = true)]
    polls_always: bool,
    /// If the server has a listener for each queue (SO_REUSEPORT), give each listener the new
    /// connections of one queue, until the command ends. A program that the server has attached to
    /// its listeners is replaced
    #[arg(long)]
    steer: bool,
}

impl PollingArguments {
    fn config(&self, target: Target, journals: &JournalDir) -> AttachConfig {
        AttachConfig {
            interface: self.interface.clone(),
            poll_interval: self.poll_interval,
            polls_always: self.polls_always,
            steer: self.steer,
            journals: journals.clone(),
            ..AttachConfig::new(target)
        }
    }
}

fn parse_poll_interval(text: &str) -> Result<PollInterval, String> {
    match text.parse() {
        Ok(PollInterval::NEVER_SLEEPS) => {
            Err("a server's waits can't be kept from sleeping from outside; use 10 to 1000".to_owned())
        }
        Ok(interval) => Ok(interval),
        Err(_) => Err("a poll interval is a whole number of microseconds from 10 to 1000".to_owned()),
    }
}

#[derive(Args)]
#[command(group = ArgGroup::new("which").args(["pid", "unit", "cgroup"]).required(true))]
pub struct AttachArguments {
    #[command(flatten)]
    target: TargetArguments,
    #[command(flatten)]
    polling: PollingArguments,
    /// Seconds between two lines of rates; 0 prints changes only
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    interval: u64,
    /// Detach after this number of seconds; without it `attach` runs until it is interrupted or the
    /// server ends
    #[arg(long, value_name = "SECONDS")]
    duration: Option<u64>,
    /// Change nothing: measure the server for this number of seconds, 1 to 3600, and print what
    /// attaching would change
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600), conflicts_with = "duration")]
    dry_run: Option<u64>,
}

/// Explains whether a server can be attached to. Changes nothing.
pub fn explain(
    target: Target,
    interface: Option<&str>,
    journals: &JournalDir,
    format: Format,
) -> Result<ExitCode, CommandError> {
    let observation = observe(&target, interface, journals)?;
    text::print_observation(&observation, format);
    Ok(if observation.is_prevented() { PREVENTED.into() } else { ExitCode::SUCCESS })
}

/// Looks at a server, and at that of a unit or control group until it has an epoll instance, for
/// some seconds.
fn observe_started(
    target: &Target,
    interface: Option<&str>,
    journals: &JournalDir,
) -> Result<Observation, policies::Error> {
    let mut observation = observe(target, interface, journals)?;
    for _ in 1..LOOKS {
        let may_have_just_started = matches!(target, Target::Unit(_) | Target::Cgroup(_));
        if !may_have_just_started || observation.instances().next().is_some() {
            break;
        }
        thread::sleep(BETWEEN_LOOKS);
        observation = observe(target, interface, journals)?;
    }
    Ok(observation)
}

/// Attaches until SIGINT or SIGTERM, until the server ends, or for a given time.
pub fn attach(
    arguments: &AttachArguments,
    journals: &JournalDir,
    format: Format,
) -> Result<ExitCode, CommandError> {
    let target = arguments.target.target();
    let mut forecasts = Vec::new();
    // What a killed attachment has left would be taken for the server's own settings.
    print_left_journals(&policies::recover(journals)?);
    match observe_started(&target, arguments.polling.interface.as_deref(), journals) {
        Ok(observation) if observation.is_prevented() => {
            text::print_observation(&observation, format);
            write_error("nothing was changed");
            return Ok(ExitCode::FAILURE);
        }
        Ok(observation) => {
            if format == Format::Table {
                text::print_observation(&observation, format);
            }
            let time = arguments.dry_run.map_or(MEASURED, Duration::from_secs);
            forecasts = observation.forecast(arguments.polling.poll_interval, time)?;
            text::print_forecasts(&forecasts, format);
        }
        // A unit whose service is not started yet.
        Err(policies::Error::NoTarget { .. })
            if arguments.dry_run.is_none() && !matches!(target, Target::Process(_)) => {}
        Err(error) => return Err(error.into()),
    }
    if arguments.dry_run.is_some() {
        return Ok(ExitCode::SUCCESS);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let _interrupt =
        signals::intercept(move || stopped.store(true, Ordering::Release)).map_err(CommandError::Signals)?;
    let config = arguments.polling.config(target, journals);
    let attachment = Attachment::start(config, move |event| text::print_event(event, format))?;
    let end = arguments.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let interval = (arguments.interval > 0).then(|| Duration::from_secs(arguments.interval));
    let mut next_status = interval.map(|interval| Instant::now() + interval);
    let (mut came, mut next_taken) = (Came::default(), Instant::now() + STATUS);
    while !stop.load(Ordering::Acquire)
        && !attachment.has_ended()
        && end.is_none_or(|end| Instant::now() < end)
    {
        thread::sleep(TICK);
        if Instant::now() >= next_taken {
            next_taken += STATUS;
            came.take(&attachment.status());
        }
        if let (Some(interval), Some(next)) = (interval, next_status)
            && Instant::now() >= next
        {
            next_status = Some(next + interval);
            text::print_status(&attachment.status(), format);
        }
    }
    attachment.detach();
    text::print_outcome(&forecasts, &came, format);
    if has_own_journal(journals) {
        write_error("detached, but not everything could be put back; run `policies restore`");
        return Ok(ExitCode::FAILURE);
    }
    if format == Format::Table {
        print_line!("detached; everything is as it was before");
    }
    Ok(ExitCode::SUCCESS)
}

/// What was measured of each queue while it was attached.
#[derive(Default)]
struct Came(BTreeMap<QueueName, Rates>);

/// Sums over the seconds that were measured.
#[derive(Debug, Clone, Copy, Default)]
struct Rates {
    seconds: f64,
    packets: f64,
    wakeups: f64,
    cores: f64,
}

impl Came {
    fn take(&mut self, status: &AttachStatus) {
        // One that was published when a queue was attached has no packets of it yet.
        if status.seconds < STATUS.as_secs_f64() {
            return;
        }
        for queue in &status.queues {
            let sums = self.0.entry(queue.queue.clone()).or_default();
            sums.seconds += status.seconds;
            sums.packets += queue.packets_per_second * status.seconds;
            sums.wakeups += queue.wakeups_per_second * status.seconds;
            sums.cores += queue.cores * status.seconds;
        }
    }
}

/// Whether a journal of this process is left: it is removed once everything in it is restored.
fn has_own_journal(journals: &JournalDir) -> bool {
    // NAMESPACE-INTERFACE-PID-NUMBER.json
    let own = format!("-{}-", std::process::id());
    let names = fs::read_dir(journals.path()).into_iter().flatten().flatten().map(|entry| entry.file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .any(|name| name.contains(&own) && name.ends_with(".json"))
}
