//! Values for a policy, found under the load that is running. Everything is put back in the end.

use std::net::IpAddr;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use policies::counters::{Delta, Snapshot};
use policies::netlink::ethtool::Coalescing::RxUsecs;
use policies::{
    Cpus, Error, GraceTime, Interface, JournalDir, Knob, Lifetime, Outcome, Plan, Policy, Settings,
    SuppressionValues, apply, host,
};

use super::echo::Peer;
use super::tables::{or_dash, show_plan, table};

#[derive(Subcommand)]
pub enum Tune {
    /// Find the least number of packing cores that the load's network work does not fill
    Packing(Packing),
    /// Find how long interrupts may be put off within a bound on latency
    Suppression(Suppression),
}

#[derive(Args)]
pub struct Packing {
    /// The interface, for example eth0
    interface: String,
    /// Cores of the application's workers, which pack nothing while others are free
    #[arg(long, default_value = "")]
    worker_cores: Cpus,
    /// Cores to pack on, the lowest first; unless set all that no worker has, the highest first
    #[arg(long, default_value = "")]
    packing_cores: Cpus,
    /// Seconds of each step
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

#[derive(Args)]
pub struct Suppression {
    /// The interface, for example eth0
    interface: String,
    /// A host behind that interface that answers ICMP echoes: what they take shows the latency
    #[arg(long)]
    peer: IpAddr,
    /// The most that the 99th percentile of its answers may take, in microseconds
    #[arg(long, value_name = "US")]
    latency_bound: u64,
    /// Cores of the application's workers
    #[arg(long, default_value = "")]
    worker_cores: Cpus,
    /// Seconds of each step
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

pub fn run(tune: &Tune, journals: &JournalDir) -> Result<ExitCode, Error> {
    match tune {
        Tune::Packing(arguments) => packing(arguments, journals),
        Tune::Suppression(arguments) => suppression(arguments, journals),
    }
}

/// A core whose softirqs take more of it than this has no room left: the ticks that this is counted in
/// miss what is short.
const FULL: f64 = 0.9;
/// Less is a difference that another second of the same load shows by itself.
const GAIN: f64 = 1.03;

fn packing(arguments: &Packing, journals: &JournalDir) -> Result<ExitCode, Error> {
    let interface = host::interface(&arguments.interface)?;
    let candidates = candidates(arguments)?;
    let most = candidates.len().min(interface.queues.len().max(1));
    let mut rows = table(&["packing cores", "packets/s", "softirq share of each", "full"]);
    let mut winner: Option<(Vec<u32>, f64)> = None;
    let mut verdict = "the load fills them all";
    for count in 1..=most {
        let cores = &candidates[..count];
        let settings = packing_settings(arguments, cores.iter().copied().collect());
        let delta = measure(&interface, Policy::Packing, &settings, journals, arguments.seconds, |_| Ok(()))?;
        let seconds = delta.elapsed.as_secs_f64();
        let rate = delta.rx_packets.total() as f64 / seconds;
        let share = |core: &u32| {
            delta.cpus.get(*core as usize).map_or(0.0, |cpu| cpu.softirq.as_secs_f64() / seconds)
        };
        let shares: Vec<f64> = cores.iter().map(share).collect();
        let full = shares.iter().all(|share| *share > FULL);
        rows.add_row([
            settings.packing_cores.to_string(),
            format!("{rate:.0}"),
            shares.iter().map(|share| format!("{:.0} %", share * 100.0)).collect::<Vec<_>>().join(", "),
            if full { "yes" } else { "no" }.to_owned(),
        ]);
        if rate == 0.0 {
            println!("{rows}");
            eprintln!("policies: nothing came in on {}: tune under the load that matters", interface.name);
            return Ok(ExitCode::FAILURE);
        }
        match &winner {
            Some((_, before)) if rate < before * GAIN => {
                verdict = "one more brought no more packets";
                break;
            }
            _ => winner = Some((cores.to_vec(), rate)),
        }
        if !full {
            verdict = "they have room left";
            break;
        }
    }
    println!("{rows}");
    let Some((cores, _)) = winner else { return Ok(ExitCode::FAILURE) };
    let cores: Cpus = cores.into_iter().collect();
    println!("the smallest sufficient set: packing cores {cores} ({verdict})");
    let settings = packing_settings(arguments, cores.clone());
    show_plan(&Plan::new(Policy::Packing, &interface, &settings));
    println!(
        "to apply it: policies apply {} --policy packing --packing-cores {cores}{}",
        interface.name,
        worker_cores_flag(&arguments.worker_cores)
    );
    Ok(ExitCode::SUCCESS)
}

fn packing_settings(arguments: &Packing, packing_cores: Cpus) -> Settings {
    Settings { worker_cores: arguments.worker_cores.iter().collect(), packing_cores, ..Settings::default() }
}

fn worker_cores_flag(cores: &Cpus) -> String {
    if cores.is_empty() { String::new() } else { format!(" --worker-cores {cores}") }
}

fn candidates(arguments: &Packing) -> Result<Vec<u32>, Error> {
    if !arguments.packing_cores.is_empty() {
        return Ok(arguments.packing_cores.iter().collect());
    }
    let allowed = Cpus::allowed()
        .map_err(|source| Error::Kernel { operation: "read this process's affinity".to_owned(), source })?;
    let mut free: Vec<u32> = allowed.iter().filter(|&cpu| !arguments.worker_cores.contains(cpu)).collect();
    free.reverse();
    if free.is_empty() {
        free = allowed.iter().collect();
    }
    Ok(free)
}

/// Microseconds by which interrupts are put off, one after the other.
const DELAYS: [u32; 12] = [0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 65_534];

/// What an echo takes that is never answered.
const LOST: Duration = Duration::MAX;

fn micros(time: Duration) -> String {
    if time == LOST { "lost".to_owned() } else { time.as_micros().to_string() }
}

struct Tried {
    delay: u32,
    interrupts: f64,
    p99: Duration,
}

fn suppression(arguments: &Suppression, journals: &JournalDir) -> Result<ExitCode, Error> {
    let interface = host::interface(&arguments.interface)?;
    let bound = Duration::from_micros(arguments.latency_bound);
    let probe = |source| Error::Kernel { operation: format!("send echoes to {}", arguments.peer), source };
    let mut peer = Peer::new(arguments.peer).map_err(probe)?;
    if peer.round_trip().map_err(probe)?.is_none() && peer.round_trip().map_err(probe)?.is_none() {
        eprintln!("policies: {} does not answer echoes; name a --peer that does", arguments.peer);
        return Ok(ExitCode::FAILURE);
    }
    let mut rows = table(&[
        "delay µs",
        "rx-usecs set",
        "irqs/s",
        "packets/s",
        "pkts/irq",
        "softirq cores",
        "p50 µs",
        "p99 µs",
        "within bound",
    ]);
    let mut tried: Vec<Tried> = Vec::new();
    for delay in DELAYS {
        let settings = settings(arguments, delay);
        let (mut times, mut set, mut limit, mut lost) = (Vec::new(), None, false, 0);
        let measured = |applied: &[policies::Applied]| {
            let usecs = applied.iter().find(|step| step.knob == Knob::Coalesce { parameter: RxUsecs });
            (set, limit) = match usecs.map(|step| (&step.outcome, &step.target)) {
                Some((Outcome::AtLimit { value }, _)) => (Some(value.clone()), true),
                Some((outcome, target)) if outcome.is_ok() => (Some(target.to_string()), false),
                // Only the kernel's deferral puts off.
                _ => (None, false),
            };
            let end = Instant::now() + Duration::from_secs(arguments.seconds);
            while Instant::now() < end {
                match peer.round_trip().map_err(probe)? {
                    Some(time) => times.push(time),
                    None => lost += 1,
                }
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        let delta = measure(&interface, Policy::Suppression, &settings, journals, 0, measured)?;
        times.sort_unstable();
        // An answer that never came took longer than any bound.
        times.extend(std::iter::repeat_n(LOST, lost));
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let (p50, p99) = (at(0.5), at(0.99));
        let seconds = delta.elapsed.as_secs_f64();
        let softirq: f64 = delta.cpus.iter().map(|cpu| cpu.softirq.as_secs_f64()).sum::<f64>() / seconds;
        let events = delta.packets_per_interrupt();
        let interrupts = delta.rx_packets.total() as f64 / events.value / seconds;
        rows.add_row([
            delay.to_string(),
            or_dash(set),
            format!("{interrupts:.0}"),
            format!("{:.0}", delta.rx_packets.total() as f64 / seconds),
            format!("{:.1}", events.value),
            format!("{softirq:.2}"),
            micros(p50),
            micros(p99),
            if p99 <= bound { "yes" } else { "no" }.to_owned(),
        ]);
        tried.push(Tried { delay, interrupts, p99 });
        // Longer is only later.
        if limit || p99 > bound.saturating_mul(8) {
            break;
        }
    }
    println!("{rows}");
    let within = tried.iter().filter(|step| step.p99 <= bound);
    let Some(winner) = within.min_by(|a, b| a.interrupts.total_cmp(&b.interrupts)) else {
        let least = tried.iter().map(|step| step.p99).min().unwrap_or_default();
        eprintln!(
            "policies: no delay keeps p99 within {} µs here; the least seen, in µs: {}",
            bound.as_micros(),
            micros(least)
        );
        return Ok(ExitCode::FAILURE);
    };
    println!("the fewest interrupts within {} µs: a delay of {} µs", bound.as_micros(), winner.delay);
    let settings = settings(arguments, winner.delay);
    show_plan(&Plan::new(Policy::Suppression, &interface, &settings));
    println!(
        "to apply it: policies apply {} --policy suppression --rx-usecs {} --gro-flush-timeout {} \
         --defer-hard-irqs {}{}",
        interface.name,
        winner.delay,
        winner.delay.max(1),
        settings.defer_hard_irqs,
        worker_cores_flag(&arguments.worker_cores)
    );
    Ok(ExitCode::SUCCESS)
}

/// The device's own coalescing, and where it has none the kernel's deferral, put off by the same time.
fn settings(arguments: &Suppression, delay: u32) -> Settings {
    Settings {
        worker_cores: arguments.worker_cores.iter().collect(),
        suppression: SuppressionValues { rx_usecs: delay, ..SuppressionValues::default() },
        defer_hard_irqs: if delay == 0 { 0 } else { Settings::DEFER_HARD_IRQS },
        gro_flush_timeout: GraceTime::Fixed(Duration::from_micros(delay.max(1).into())),
        ..Settings::default()
    }
}

/// What happens under a policy; the host is as before when this returns.
fn measure(
    interface: &Interface,
    policy: Policy,
    settings: &Settings,
    journals: &JournalDir,
    seconds: u64,
    meanwhile: impl FnOnce(&[policies::Applied]) -> Result<(), Error>,
) -> Result<Delta, Error> {
    // Looked up anew: what the step before has put back is not what the list says.
    let interface = host::interface(&interface.name)?;
    let guard = apply(&Plan::new(policy, &interface, settings), Lifetime::Process, journals)?;
    // Batches that are under way belong to the step before.
    thread::sleep(Duration::from_millis(200));
    let before = Snapshot::take(&interface)?;
    meanwhile(guard.applied())?;
    thread::sleep(Duration::from_secs(seconds));
    let delta = Snapshot::take(&interface)?.since(&before);
    if let Some(report) = guard.restore() {
        let report = report?;
        if report.failed() {
            super::tables::show_reports(&[report]);
        }
    }
    Ok(delta)
}
