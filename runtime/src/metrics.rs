//! What workers count and time, and a page of it for Prometheus.
//!
//! [`runtime::metrics()`](fn@crate::metrics) returns the counters of each worker. A [`Snapshot`]
//! also has what is in effect on each worker, the counts of blocking work, and the interface's
//! packets; its [`prometheus`](Snapshot::prometheus) renders all of it as text:
//!
//! ```
//! # #[runtime::main(driver = "epoll", workers = 1)]
//! # async fn main() {
//! let page = runtime::metrics::Snapshot::take().prometheus();
//! assert!(page.contains("# TYPE lull_worker_polls_total counter"));
//! assert!(page.contains(r#"lull_worker_polls_total{worker="0"} 1"#));
//! # }
//! ```
//!
//! # Costs
//! Counters and the histogram of turn times are always kept. They take additions in the worker's
//! own memory, and readings of the clock that the loop makes anyway. The histograms of [poll
//! times](crate::Builder::enable_metrics_poll_time_histogram) and of [schedule
//! latency](crate::Builder::enable_metrics_schedule_latency_histogram) need readings of their own,
//! and are off by default.

use std::time::Duration;

use policies::Policy;
use policies::controller::QueueMode;
use policies::counters::busy_poll_rx_packets;
use policies::netlink::route;
use policies::prometheus_text::{Kind, Page, Seconds};
use policies::status::QueueStatus;

use crate::blocking::BlockingMetrics;
pub use crate::counters::{Histogram, Metrics};
use crate::worker::current;
use crate::worker::report::WorkerReport;
use crate::worker::runtime_state::RuntimeState;

/// All metrics of a runtime at one time. Workers go on counting while it is taken.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// The policy that was asked for.
    pub policy: Policy,
    /// In the order of the workers' numbers.
    pub workers: Vec<WorkerSnapshot>,
    /// Counts of blocking work.
    pub blocking: BlockingMetrics,
    /// The packets of the runtime's interface. `None` without an interface, or where the kernel
    /// does not count busy polls.
    pub packets: Option<PolledPackets>,
}

/// One worker's part of a [`Snapshot`].
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct WorkerSnapshot {
    /// The worker's number, from 0.
    pub worker: usize,
    /// Its counters and histograms.
    pub metrics: Metrics,
    /// What is in effect on it. `None` until it has started: worker 0 starts in the first
    /// `block_on`.
    pub report: Option<WorkerReport>,
}

/// How many packets came, and how many of them busy polls received. Their ratio over a time is the
/// busy-poll share, which the kernel does not count for each worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PolledPackets {
    /// The interface's name.
    pub interface: String,
    /// Packets that the interface has received since it was created.
    pub received: u64,
    /// Packets that busy polls have received since boot, in the network namespace of the calling
    /// thread (`BusyPollRxPackets`). The last poll of each wait is not counted (`net/core/dev.c`,
    /// `busy_poll_stop`).
    pub busy_polled: u64,
}

impl Snapshot {
    /// The metrics of the calling task's runtime, or of the one that the thread has
    /// [entered](crate::Handle::enter). With an interface this asks rtnetlink and reads a file of
    /// `/proc`.
    #[track_caller]
    pub fn take() -> Self {
        Self::of(&current::runtime())
    }

    pub(crate) fn of(runtime: &RuntimeState) -> Self {
        let workers = runtime.workers.iter().map(|worker| WorkerSnapshot {
            worker: worker.index,
            metrics: worker.metrics(),
            report: worker.report(),
        });
        Self {
            policy: runtime.config.policy,
            workers: workers.collect(),
            blocking: runtime.blocking.metrics(),
            packets: runtime.config.interface.as_deref().and_then(PolledPackets::read),
        }
    }
}

impl PolledPackets {
    fn read(interface: &str) -> Option<Self> {
        let link = route::links().ok()?.into_iter().find(|link| link.name == interface)?;
        let busy_polled = busy_poll_rx_packets().ok()?;
        Some(Self { interface: link.name, received: link.rx_packets?, busy_polled })
    }
}

/// The value of `Content-Type` for [`Snapshot::prometheus`].
pub const PROMETHEUS_CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric that each worker counts: its name, its help, and its value.
type WorkerCounter = (&'static str, &'static str, fn(&Metrics) -> u64);

const COUNTERS: [WorkerCounter; 10] = [
    ("lull_worker_turns_total", "Turns of the worker's loop.", |it| it.turns),
    ("lull_worker_polls_total", "Polls of tasks.", |it| it.polls),
    (
        "lull_worker_forced_yields_total",
        "Polls that had used up their budget of operations and were made to yield.",
        |it| it.forced_yields,
    ),
    ("lull_worker_stalls_total", "Polls that took longer than the stall threshold.", |it| it.stalls),
    ("lull_worker_wakes_total", "Times that another thread woke the worker while it was parked.", |it| {
        it.wakes
    }),
    ("lull_worker_waits_total", "System calls that wait, poll or submit.", |it| it.waits),
    (
        "lull_worker_forced_passes_total",
        "Extra passes because a wait had returned without polling the NAPI.",
        |it| it.forced_passes,
    ),
    ("lull_worker_events_total", "Events of descriptors and received buffers.", |it| it.events),
    ("lull_worker_received_bytes_total", "Bytes that the worker's sockets have received.", |it| {
        it.received_bytes
    }),
    ("lull_worker_sent_bytes_total", "Bytes that the worker's streams have sent.", |it| it.sent_bytes),
];

/// A histogram that a worker may record: its name, its help, and its value.
type WorkerHistogram = (&'static str, &'static str, fn(&Metrics) -> Option<&Histogram>);

const HISTOGRAMS: [WorkerHistogram; 3] = [
    ("lull_worker_turn_seconds", "Time that a turn ran tasks, of the turns that ran any.", |it| {
        Some(&it.turn_times)
    }),
    ("lull_worker_poll_seconds", "Time that a poll of a task took.", |it| it.poll_times.as_ref()),
    ("lull_worker_schedule_latency_seconds", "Time from the wake of a task to its poll.", |it| {
        it.schedule_latency.as_ref()
    }),
];

/// A time of a queue's settings: its name, its help, and its value in microseconds.
type QueueTime = (&'static str, &'static str, fn(&QueueStatus) -> Option<u64>);

const QUEUE_TIMES: [QueueTime; 4] = [
    (
        "lull_worker_queue_grace_time_seconds",
        "Time that the timer leaves the worker's queue to it after an empty poll.",
        |it| Some(it.grace_time_us),
    ),
    (
        "lull_worker_queue_poll_interval_seconds",
        "Longest sleep between two polls of the worker's queue in timed mode; 0 in others.",
        |it| Some(it.poll_interval_us),
    ),
    (
        "lull_worker_queue_spin_seconds",
        "Time that a wait polls the worker's queue before it sleeps, beyond the first poll.",
        |it| Some(it.spin_us),
    ),
    ("lull_worker_latency_budget_seconds", "Delay that polling may cost in exchange for CPU time.", |it| {
        it.latency_budget_us
    }),
];

/// A figure of a queue in percent, with its help.
type QueuePercent = (&'static str, &'static str, fn(&QueueStatus) -> Option<u16>);

const QUEUE_PERCENTS: [QueuePercent; 3] = [
    ("lull_worker_cpu_budget_percent", "CPU time that polling may cost in exchange for less delay.", |it| {
        it.cpu_budget_percent
    }),
    (
        "lull_worker_queue_cpu_percent",
        "CPU time of an event under polling beside plain interrupts, as compared last.",
        |it| Some(it.why.comparison()?.cpu),
    ),
    (
        "lull_worker_queue_delay_percent",
        "Delay of an event under polling beside plain interrupts, as compared last.",
        |it| Some(it.why.comparison()?.delay),
    ),
];

impl Snapshot {
    /// The page that a scrape of Prometheus asks for: text exposition format 0.0.4, with
    /// [`PROMETHEUS_CONTENT_TYPE`]. Metrics of workers have the label `worker`, the number from 0.
    /// Times are in seconds.
    ///
    /// Histograms that are not enabled are left out, and so is what concerns a queue where a worker
    /// drives none.
    pub fn prometheus(&self) -> String {
        let mut page = Page::default();
        let workers: Vec<(String, &WorkerSnapshot)> =
            self.workers.iter().map(|worker| (worker.worker.to_string(), worker)).collect();
        self.infos(&mut page, &workers);
        queues(&mut page, &workers);
        for (name, help, value) in COUNTERS {
            let mut family = page.family(name, Kind::Counter, help);
            for (number, worker) in &workers {
                family.sample(&[("worker", number)], value(&worker.metrics));
            }
        }
        times(&mut page, &workers);
        for (name, help, value) in HISTOGRAMS {
            let mut family = page.family(name, Kind::Histogram, help);
            for (number, worker) in &workers {
                if let Some(histogram) = value(&worker.metrics) {
                    family.histogram(&[("worker", number)], histogram.buckets(), histogram.sum());
                }
            }
        }
        self.packets(&mut page);
        self.blocking(&mut page);
        page.into_text()
    }

    fn infos(&self, page: &mut Page, workers: &[(String, &WorkerSnapshot)]) {
        let started =
            || workers.iter().filter_map(|(number, worker)| Some((number, worker.report.as_ref()?)));
        let help = "1, with what was asked for and what runs as labels.";
        let mut family = page.family("lull_worker_info", Kind::Gauge, help);
        let policy = self.policy.name();
        for (number, report) in started() {
            let WorkerReport { running, driver, .. } = report;
            let (running, driver) = (running.to_string(), driver.to_string());
            let napi = report.napi.as_ref().map(|napi| napi.id.to_string()).unwrap_or_default();
            let core = report.core.map(|core| core.to_string()).unwrap_or_default();
            let labels: [(&str, &str); 6] = [
                ("worker", number),
                ("policy", policy),
                ("running", &running),
                ("driver", &driver),
                ("napi", &napi),
                ("core", &core),
            ];
            family.sample(&labels, 1);
        }
        let help = "Reasons why less than the requested policy runs.";
        let mut family = page.family("lull_worker_steps_down", Kind::Gauge, help);
        for (number, report) in started() {
            family.sample(&[("worker", number)], report.steps_down.len());
        }
    }

    fn packets(&self, page: &mut Page) {
        let Some(packets) = &self.packets else { return };
        let help = "Packets received by the interface.";
        page.family("lull_received_packets_total", Kind::Counter, help)
            .sample(&[("interface", &packets.interface)], packets.received);
        let help = "Packets received by busy polls in the network namespace.";
        page.family("lull_busy_poll_packets_total", Kind::Counter, help).sample(&[], packets.busy_polled);
    }

    fn blocking(&self, page: &mut Page) {
        let blocking = &self.blocking;
        let help = "Threads for blocking work, idle ones included.";
        page.family("lull_blocking_threads", Kind::Gauge, help).sample(&[], blocking.threads);
        let help = "Threads for blocking work that wait for some.";
        page.family("lull_blocking_idle_threads", Kind::Gauge, help).sample(&[], blocking.idle);
        let help = "Closures that wait for a thread.";
        page.family("lull_blocking_queued", Kind::Gauge, help).sample(&[], blocking.queued);
        let help = "Closures of blocking work that have returned or panicked.";
        page.family("lull_blocking_finished_total", Kind::Counter, help).sample(&[], blocking.finished);
    }
}

/// How workers drive their queues under kernel polling.
fn queues(page: &mut Page, workers: &[(String, &WorkerSnapshot)]) {
    let driven: Vec<(&str, QueueStatus)> = workers
        .iter()
        .filter_map(|(number, worker)| Some((number.as_str(), worker.report.as_ref()?.queue_status()?)))
        .collect();
    let help = "1 for the mode in which the worker's queue is driven, 0 for the others.";
    let mut family = page.family("lull_worker_queue_mode", Kind::Gauge, help);
    for (number, status) in &driven {
        for mode in QueueMode::ALL {
            family.sample(&[("worker", number), ("mode", &mode.to_string())], u8::from(status.mode == mode));
        }
    }
    for (name, help, micros) in QUEUE_TIMES {
        let mut family = page.family(name, Kind::Gauge, help);
        for (number, status) in &driven {
            if let Some(micros) = micros(status) {
                family.sample(&[("worker", number)], Seconds(Duration::from_micros(micros)));
            }
        }
    }
    let help = "Time in which polling was tried, or given up for a moment to measure interrupts.";
    let mut family = page.family("lull_worker_queue_trials_seconds_total", Kind::Counter, help);
    for (number, status) in driven.iter().filter(|(_, status)| status.latency_budget_us.is_some()) {
        family.sample(&[("worker", number)], Seconds(Duration::from_micros(status.trials_us)));
    }
    for (name, help, percent) in QUEUE_PERCENTS {
        let mut family = page.family(name, Kind::Gauge, help);
        for (number, status) in &driven {
            if let Some(percent) = percent(status) {
                family.sample(&[("worker", number)], percent);
            }
        }
    }
}

fn times(page: &mut Page, workers: &[(String, &WorkerSnapshot)]) {
    let help = "Time that the worker ran tasks, polled without blocking, or was in waits that may block.";
    let mut family = page.family("lull_worker_time_seconds_total", Kind::Counter, help);
    for (number, worker) in workers {
        let metrics = &worker.metrics;
        let activities =
            [("running", metrics.running()), ("polling", metrics.polling()), ("parked", metrics.parked())];
        for (activity, time) in activities {
            family.sample(&[("worker", number), ("activity", activity)], Seconds(time));
        }
    }
}

#[cfg(test)]
mod snapshot_tests {
    use super::*;

    #[test]
    fn packets_of_an_interface_are_read_and_of_none_are_not() {
        assert_eq!(PolledPackets::read("lo").unwrap().interface, "lo");
        assert_eq!(PolledPackets::read("nonesuch0"), None);
    }
}

#[cfg(test)]
mod prometheus_tests {
    use policies::Policy;
    use policies::controller::{Budgets, LatencyBudget, QueueSettings, Reason};

    use super::*;
    use crate::blocking::BlockingMetrics;
    use crate::driver::DriverKind;
    use crate::metrics::PolledPackets;
    use crate::worker::report::Running;

    fn snapshot(queue: Option<QueueSettings>, budgets: Option<Budgets>) -> Snapshot {
        let report = WorkerReport {
            worker: 0,
            thread: 1,
            core: Some(3),
            asked: Policy::KernelPolling,
            running: Running::KernelPolling,
            steps_down: vec!["a reason".to_owned()],
            notes: vec!["no step down".to_owned()],
            napi: None,
            epoll: None,
            queue,
            budgets,
            trials: Duration::from_millis(1_250),
            driver: DriverKind::Uring,
            features: Vec::new(),
            driver_note: None,
        };
        Snapshot {
            policy: Policy::KernelPolling,
            workers: vec![WorkerSnapshot { worker: 0, metrics: Metrics::default(), report: Some(report) }],
            blocking: BlockingMetrics::default(),
            packets: Some(PolledPackets { interface: "a\"b".to_owned(), received: 10, busy_polled: 4 }),
        }
    }

    #[test]
    fn a_worker_under_kernel_polling_has_one_mode_and_its_times_in_seconds() {
        let page = snapshot(Some(QueueSettings::fixed(LatencyBudget::ZERO)), None).prometheus();
        for line in [
            "lull_worker_info{worker=\"0\",policy=\"kernel-polling\",running=\"kernel-polling\",driver=\"uring\",napi=\"\",core=\"3\"} 1",
            "lull_worker_steps_down{worker=\"0\"} 1",
            "lull_worker_queue_mode{worker=\"0\",mode=\"plain\"} 0",
            "lull_worker_queue_mode{worker=\"0\",mode=\"interrupt-first\"} 1",
            "lull_worker_queue_mode{worker=\"0\",mode=\"grace\"} 0",
            "lull_worker_queue_spin_seconds{worker=\"0\"} 0.000000000",
            "lull_received_packets_total{interface=\"a\\\"b\"} 10",
            "lull_busy_poll_packets_total 4",
        ] {
            assert!(page.lines().any(|other| other == line), "{line} is missing:\n{page}");
        }
        for metric in ["lull_worker_latency_budget_seconds", "lull_worker_queue_trials_seconds_total"] {
            assert!(!page.contains(&format!("{metric}{{")), "{page}");
        }
        let page = snapshot(Some(QueueSettings::plain(Reason::Idle)), Some(Budgets::default())).prometheus();
        assert!(
            page.contains("lull_worker_queue_trials_seconds_total{worker=\"0\"} 1.250000000\n"),
            "{page}"
        );
    }

    #[test]
    fn a_worker_without_a_queue_has_no_mode() {
        let page = snapshot(None, None).prometheus();
        assert!(page.contains("lull_worker_info") && !page.contains("lull_worker_queue"), "{page}");
    }
}
