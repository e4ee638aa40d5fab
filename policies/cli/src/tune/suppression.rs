//! `policies tune suppression`.

use std::net::IpAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use policies::netlink::ethtool::Coalescing::RxUsecs;
use policies::{
    Applied, Cpus, GraceTime, JournalDir, Knob, Outcome, Plan, Policy, Settings, SuppressionValues, host,
};

use super::icmp_echo::Pinger;
use super::report::Trials;
use super::trial::{measure, worker_cores_flag};
use crate::error::CommandError;
use crate::output::{Format, or_dash};

#[derive(Args)]
pub struct SuppressionArguments {
    /// Interface, for example eth0
    interface: String,
    /// Host behind the interface that answers ICMP echo requests, by which latency is measured
    #[arg(long)]
    peer: IpAddr,
    /// Upper bound for the 99th percentile of the round trips, in microseconds
    #[arg(long, value_name = "US")]
    latency_bound: u64,
    /// Cores of the application's workers
    #[arg(long, default_value = "", hide_default_value = true)]
    worker_cores: Cpus,
    /// Seconds for each delay
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

impl SuppressionArguments {
    /// Sets the device's coalescing delay, and the kernel's deferral to the same time for devices without
    /// coalescing.
    fn settings(&self, delay: u32) -> Settings {
        Settings {
            worker_cores: self.worker_cores.iter().collect(),
            suppression: SuppressionValues { rx_usecs: delay, ..SuppressionValues::default() },
            defer_hard_irqs: if delay == 0 { 0 } else { Settings::DEFER_HARD_IRQS },
            gro_flush_timeout: GraceTime::Fixed(Duration::from_micros(delay.max(1).into())),
            ..Settings::default()
        }
    }
}

/// The delays to try, in microseconds.
const DELAYS: [u32; 12] = [0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 65_534];

/// The round trip of a request without a reply.
const LOST: Duration = Duration::MAX;

fn micros(time: Duration) -> String {
    if time == LOST { "lost".to_owned() } else { time.as_micros().to_string() }
}

/// The result of one delay.
struct DelayTrial {
    delay: u32,
    interrupts_per_second: f64,
    p99: Duration,
}

pub(super) fn tune(
    arguments: &SuppressionArguments,
    journals: &JournalDir,
    format: Format,
) -> Result<ExitCode, CommandError> {
    let interface = host::interface(&arguments.interface)?;
    let bound = Duration::from_micros(arguments.latency_bound);
    let probe_error = |source| CommandError::Probe { peer: arguments.peer, source };
    let mut pinger = Pinger::new(arguments.peer).map_err(probe_error)?;
    if pinger.round_trip().map_err(probe_error)?.is_none()
        && pinger.round_trip().map_err(probe_error)?.is_none()
    {
        return Err(CommandError::SilentPeer(arguments.peer));
    }
    let mut rows = Trials::new(&[
        "delay µs",
        "rx-usecs set",
        "irqs/s",
        "packets/s",
        "packets/irq",
        "softirq cores",
        "p50 µs",
        "p99 µs",
        "within bound",
    ]);
    let mut trials: Vec<DelayTrial> = Vec::new();
    for delay in DELAYS {
        let settings = arguments.settings(delay);
        let (mut round_trips, mut rx_usecs, mut at_limit, mut lost) = (Vec::new(), None, false, 0);
        let ping = |applied: &[Applied]| {
            let step = applied.iter().find(|step| step.knob == Knob::Coalesce { parameter: RxUsecs });
            (rx_usecs, at_limit) = match step.map(|step| (&step.outcome, &step.target)) {
                Some((Outcome::AtLimit { value, .. }, _)) => (Some(value.clone()), true),
                Some((outcome, target)) if outcome.is_ok() => (Some(target.to_string()), false),
                // Only the kernel's deferral delays interrupts.
                _ => (None, false),
            };
            let end = Instant::now() + Duration::from_secs(arguments.seconds);
            while Instant::now() < end {
                match pinger.round_trip().map_err(probe_error)? {
                    Some(time) => round_trips.push(time),
                    None => lost += 1,
                }
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        let delta = measure(&interface, Policy::Suppression, &settings, journals, 0, ping)?;
        round_trips.sort_unstable();
        // A lost reply counts as longer than any bound.
        round_trips.extend(std::iter::repeat_n(LOST, lost));
        let quantile = |share: f64| round_trips[((round_trips.len() - 1) as f64 * share) as usize];
        let (p50, p99) = (quantile(0.5), quantile(0.99));
        let seconds = delta.elapsed.as_secs_f64();
        let softirq: f64 = delta.cpus.iter().map(|cpu| cpu.softirq.as_secs_f64()).sum::<f64>() / seconds;
        let packets_per = delta.packets_per_interrupt();
        let interrupts_per_second = delta.rx_packets.total() as f64 / packets_per.value / seconds;
        rows.add([
            delay.to_string(),
            or_dash(rx_usecs),
            format!("{interrupts_per_second:.0}"),
            format!("{:.0}", delta.rx_packets.total() as f64 / seconds),
            format!("{:.1}", packets_per.value),
            format!("{softirq:.2}"),
            micros(p50),
            micros(p99),
            if p99 <= bound { "yes" } else { "no" }.to_owned(),
        ]);
        trials.push(DelayTrial { delay, interrupts_per_second, p99 });
        // Longer delays have no further effect, or only more latency.
        if at_limit || p99 > bound.saturating_mul(8) {
            break;
        }
    }
    let within_bound = trials.iter().filter(|trial| trial.p99 <= bound);
    let Some(best) = within_bound.min_by(|a, b| a.interrupts_per_second.total_cmp(&b.interrupts_per_second))
    else {
        rows.print(format);
        let lowest = trials.iter().map(|trial| trial.p99).min().unwrap_or_default();
        return Err(CommandError::BoundNotMet { bound: bound.as_micros(), lowest: micros(lowest) });
    };
    let found =
        format!("the fewest interrupts within {} µs: a delay of {} µs", bound.as_micros(), best.delay);
    let settings = arguments.settings(best.delay);
    let plan = Plan::new(Policy::Suppression, &interface, &settings);
    let command = format!(
        "policies apply {} --policy suppression --rx-usecs {} --gro-flush-timeout {} \
         --defer-hard-irqs {}{}",
        interface.name,
        best.delay,
        best.delay.max(1),
        settings.defer_hard_irqs,
        worker_cores_flag(&arguments.worker_cores)
    );
    rows.print_with_result(format, &found, &plan, &command);
    Ok(ExitCode::SUCCESS)
}
