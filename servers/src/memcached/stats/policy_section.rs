//! The section `policy` of `stats`: one line per worker with its policy, driver, alignment and
//! time, and the share of busy polls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use policies::counters::{RxPackets, busy_poll_rx_packets};
use policies::host::{self, Interface};
use runtime::policy::QueueStatus;

use super::counters::Counters;

/// How long a snapshot is used.
const MAX_AGE: Duration = Duration::from_secs(1);

pub type Lines = Arc<[(String, String)]>;

/// Reads the share of busy polls, or why there is none, as it is shown.
type ReadShare = Arc<dyn Fn() -> String + Send + Sync>;

/// The section as it was up to a second ago.
///
/// The share comes from files in `/proc` and by netlink, for each queue: some hundred microseconds
/// or more, in which a worker would serve nobody. So a thread for blocking work reads it, once a
/// second at most, however many clients ask.
pub struct PolicySection {
    read_share: ReadShare,
    latest: Mutex<Option<(Instant, Lines)>>,
    /// Held by who makes a snapshot. The others wait for that one.
    making: futures_util::lock::Mutex<()>,
}

impl PolicySection {
    pub fn new(read_share: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self {
            read_share: Arc::new(read_share),
            latest: Mutex::default(),
            making: futures_util::lock::Mutex::default(),
        }
    }

    fn latest(&self) -> MutexGuard<'_, Option<(Instant, Lines)>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a snapshot that is not too old.
    pub fn is_fresh(&self) -> bool {
        let age = |taken| runtime::time::now().saturating_duration_since(taken);
        self.latest().as_ref().is_some_and(|(taken, _)| age(*taken) < MAX_AGE)
    }

    pub fn lines(&self) -> Lines {
        self.latest().as_ref().map(|(_, lines)| Arc::clone(lines)).unwrap_or_default()
    }

    /// Makes a snapshot, unless there is one.
    pub async fn refresh(&self, counters: &Counters) {
        let _making = self.making.lock().await;
        if self.is_fresh() {
            return;
        }
        let read_share = Arc::clone(&self.read_share);
        let share = runtime::spawn_blocking(move || read_share()).await;
        let share = share.unwrap_or_else(|error| format!("none ({error})"));
        let lines = worker_lines(counters).chain([("busy_poll_share".to_owned(), share)]).collect();
        *self.latest() = Some((runtime::time::now(), lines));
    }
}

impl std::fmt::Debug for PolicySection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolicySection").finish_non_exhaustive()
    }
}

fn worker_lines(counters: &Counters) -> impl Iterator<Item = (String, String)> {
    runtime::reports().into_iter().zip(runtime::metrics()).map(|(report, metrics)| {
        let (aligned, misaligned, without_napi) = counters.alignment(report.worker);
        let napi = report.napi.as_ref().map_or(0, |napi| napi.id);
        let mut line = format!(
            "policy={} requested={} driver={} napi={napi} aligned={aligned} misaligned={misaligned} without_napi={without_napi} running_us={} polling_us={} parked_us={}",
            report.running,
            report.asked,
            report.driver,
            metrics.running().as_micros(),
            metrics.polling().as_micros(),
            metrics.parked().as_micros(),
        );
        if let Some(core) = report.core {
            line.push_str(&format!(" core={core}"));
        }
        if let Some(queue) = report.queue_status() {
            line.push_str(&queue_fields(&queue));
        }
        (format!("worker:{}", report.worker), line)
    })
}

/// How a worker's queue is driven, in words without spaces.
fn queue_fields(queue: &QueueStatus) -> String {
    let QueueStatus { mode, latency_budget_us, grace_time_us, poll_interval_us, spin_us, why, .. } = queue;
    let cpu_budget = queue.cpu_budget_percent.filter(|budget| *budget > 0);
    let field =
        |name: &str, value: Option<u64>| value.map_or_else(String::new, |value| format!(" {name}={value}"));
    [
        format!(" mode={mode}"),
        field("latency_budget_us", latency_budget_us.map(u64::from)),
        field("cpu_budget_percent", cpu_budget.map(u64::from)),
        format!(" grace_time_us={grace_time_us}"),
        field("poll_interval_us", Some(*poll_interval_us).filter(|time| *time > 0)),
        format!(" spin_us={spin_us}"),
        field("trials_us", latency_budget_us.map(|_| queue.trials_us)),
        format!(" why={}", why.name()),
        why.comparison().map_or_else(String::new, |it| format!(" cpu={}% delay={}%", it.cpu, it.delay)),
    ]
    .concat()
}

/// The share of an interface's packets that busy polling received.
#[derive(Debug)]
pub struct BusyPollShare(Option<Result<(Interface, Packets), String>>);

/// Packets received so far.
#[derive(Debug, Clone, Copy)]
struct Packets {
    all: u64,
    by_busy_polls: u64,
}

impl Packets {
    fn read(interface: &Interface) -> Result<Self, String> {
        let all = RxPackets::read(interface).map_err(|error| error.to_string())?.total();
        let by_busy_polls = busy_poll_rx_packets().map_err(|error| error.to_string())?;
        Ok(Self { all, by_busy_polls })
    }
}

impl BusyPollShare {
    /// Begins to count on an interface.
    pub fn start(interface: Option<&str>) -> Self {
        Self(interface.map(|name| {
            let interface = host::interface(name).map_err(|error| error.to_string())?;
            let packets = Packets::read(&interface)?;
            Ok((interface, packets))
        }))
    }

    /// The value for `stats policy`: the share since the start, 0 to 1, or why there is none.
    pub fn display(&self) -> String {
        let share = match &self.0 {
            None => Err("no interface".to_owned()),
            Some(Err(error)) => Err(error.clone()),
            Some(Ok((interface, start))) => Packets::read(interface).map(|now| {
                let all = now.all.saturating_sub(start.all);
                let by_busy_polls = now.by_busy_polls.saturating_sub(start.by_busy_polls);
                // At most 1, although packets come between the two readings.
                if all == 0 { 0.0 } else { (by_busy_polls as f64 / all as f64).min(1.0) }
            }),
        };
        share.map_or_else(|reason| format!("none ({reason})"), |share| format!("{share:.3}"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use policies::controller::{Budgets, Comparison, QueueSettings, Reason};

    use super::*;

    #[test]
    fn the_fields_of_a_queue_are_words_without_spaces() {
        let budgets = Budgets { latency: "20".parse().unwrap(), cpu: "50".parse().unwrap() };
        let beside = Comparison { cpu: 52, delay: 81 };
        let settings = QueueSettings::grace(budgets.latency.delay(), Reason::Pays(beside));
        assert_eq!(
            queue_fields(
                &QueueStatus::new(&settings, Some(budgets)).with_trials(Duration::from_micros(1_500))
            ),
            " mode=grace latency_budget_us=20 cpu_budget_percent=50 grace_time_us=20 spin_us=0 trials_us=1500 why=pays cpu=52% delay=81%"
        );
        let watchdog = std::time::Duration::from_millis(5);
        let timed = QueueSettings::timed(budgets.latency.delay(), watchdog, Reason::Tries);
        assert_eq!(
            queue_fields(&QueueStatus::new(&timed, Some(Budgets::default()))),
            " mode=timed latency_budget_us=0 grace_time_us=5000 poll_interval_us=20 spin_us=0 trials_us=0 why=tries"
        );
        let fixed = QueueSettings::fixed(policies::controller::LatencyBudget::ZERO);
        assert_eq!(
            queue_fields(&QueueStatus::new(&fixed, None)),
            " mode=interrupt-first grace_time_us=20 spin_us=0 why=fixed"
        );
    }

    #[runtime::test]
    async fn many_who_ask_share_one_snapshot_a_second_which_no_worker_makes() {
        runtime::time::pause();
        let made = Arc::new(AtomicU32::new(0));
        let (counted, worker) = (Arc::clone(&made), std::thread::current().id());
        let section = PolicySection::new(move || {
            assert_ne!(std::thread::current().id(), worker);
            (counted.fetch_add(1, Ordering::Relaxed) + 1).to_string()
        });
        let counters = Counters::new(1);
        for round in 1..=3 {
            assert!(!section.is_fresh());
            futures_util::future::join_all((0..100).map(|_| section.refresh(&counters))).await;
            assert_eq!(made.load(Ordering::Relaxed), round);
            let lines = section.lines();
            assert_eq!(lines.last(), Some(&("busy_poll_share".to_owned(), round.to_string())));
            runtime::time::advance(MAX_AGE).await;
        }
        runtime::time::resume();
    }
}
