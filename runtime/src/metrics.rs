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

/// Writes metrics that a worker has at most once: each with its kind, its name, its help, and the
/// worker's value, if it has one.
macro_rules! of_workers {
    ($page:ident, $workers:expr, |$it:ident| $($kind:ident $name:literal, $help:literal: $value:expr;)*) => {$(
        let mut family = $page.family($name, Kind::$kind, $help);
        for (number, $it) in $workers {
            if let Some(value) = $value {
                family.sample(&[("worker", number)], value);
            }
        }
    )*};
}

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
        let help = "1, with what was asked for and what runs as labels.";
        let mut family = page.family("lull_worker_info", Kind::Gauge, help);
        for (number, worker) in &workers {
            let Some(report) = &worker.report else { continue };
            let napi = report.napi.as_ref().map(|napi| napi.id.to_string()).unwrap_or_default();
            let core = report.core.map(|core| core.to_string()).unwrap_or_default();
            let labels: [(&str, &str); 6] = [
                ("worker", number),
                ("policy", self.policy.name()),
                ("running", report.running.name()),
                ("driver", report.driver.name()),
                ("napi", &napi),
                ("core", &core),
            ];
            family.sample(&labels, 1);
        }
        queues(&mut page, &workers);
        of_workers! { page, &workers, |it|
            Gauge "lull_worker_steps_down", "Reasons why less than the requested policy runs.":
                it.report.as_ref().map(|report| report.steps_down.len());
            Gauge "lull_worker_alive_tasks", "Tasks that the worker has taken in and that have not ended.":
                Some(it.metrics.alive_tasks);
            Counter "lull_worker_turns_total", "Turns of the worker's loop.": Some(it.metrics.turns);
            Counter "lull_worker_polls_total", "Polls of tasks.": Some(it.metrics.polls);
            Counter "lull_worker_forced_yields_total",
                "Polls that had used up their budget of operations and were made to yield.":
                Some(it.metrics.forced_yields);
            Counter "lull_worker_stalls_total", "Polls that took longer than the stall threshold.":
                Some(it.metrics.stalls);
            Counter "lull_worker_wakes_total", "Times that another thread woke the worker while it was parked.":
                Some(it.metrics.wakes);
            Counter "lull_worker_waits_total", "System calls that wait, poll or submit.": Some(it.metrics.waits);
            Counter "lull_worker_forced_passes_total",
                "Extra passes because a wait had returned without polling the NAPI.":
                Some(it.metrics.forced_passes);
            Counter "lull_worker_events_total", "Events of descriptors and received buffers.":
                Some(it.metrics.events);
            Counter "lull_worker_received_bytes_total", "Bytes that the worker's sockets have received.":
                Some(it.metrics.received_bytes);
            Counter "lull_worker_sent_bytes_total", "Bytes that the worker's streams have sent.":
                Some(it.metrics.sent_bytes);
        }
        let help = "Time that the worker ran tasks, polled without blocking, or was in waits that may block.";
        let mut family = page.family("lull_worker_time_seconds_total", Kind::Counter, help);
        for (number, WorkerSnapshot { metrics, .. }) in &workers {
            let times = [metrics.running(), metrics.polling(), metrics.parked()];
            for (activity, time) in ["running", "polling", "parked"].into_iter().zip(times) {
                family.sample(&[("worker", number), ("activity", activity)], Seconds(time));
            }
        }
        for (name, help, value) in HISTOGRAMS {
            let mut family = page.family(name, Kind::Histogram, help);
            for (number, worker) in &workers {
                if let Some(histogram) = value(&worker.metrics) {
                    family.histogram(&[("worker", number)], histogram.buckets(), histogram.sum());
                }
            }
        }
        self.of_all_workers(&mut page);
        page.into_text()
    }

    fn of_all_workers(&self, page: &mut Page) {
        if let Some(PolledPackets { interface, received, busy_polled }) = &self.packets {
            let help = "Packets received by the interface.";
            page.family("lull_received_packets_total", Kind::Counter, help)
                .sample(&[("interface", interface)], received);
            let help = "Packets received by busy polls in the network namespace.";
            page.family("lull_busy_poll_packets_total", Kind::Counter, help).sample(&[], busy_polled);
        }
        let BlockingMetrics { threads, idle, queued, finished } = self.blocking;
        let mut gauge = |name, help, value: usize| page.family(name, Kind::Gauge, help).sample(&[], value);
        gauge("lull_blocking_threads", "Threads for blocking work, idle ones included.", threads);
        gauge("lull_blocking_idle_threads", "Threads for blocking work that wait for some.", idle);
        gauge("lull_blocking_queued", "Closures that wait for a thread.", queued);
        let help = "Closures of blocking work that have returned or panicked.";
        page.family("lull_blocking_finished_total", Kind::Counter, help).sample(&[], finished);
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
    let seconds = |micros| Seconds(Duration::from_micros(micros));
    of_workers! { page, &driven, |it|
        Gauge "lull_worker_queue_grace_time_seconds",
            "Time that the timer leaves the worker's queue to it after an empty poll.":
            Some(seconds(it.grace_time_us));
        Gauge "lull_worker_queue_poll_interval_seconds",
            "Longest sleep between two polls of the worker's queue in timed mode; 0 in others.":
            Some(seconds(it.poll_interval_us));
        Gauge "lull_worker_queue_spin_seconds",
            "Time that a wait polls the worker's queue before it sleeps, beyond the first poll.":
            Some(seconds(it.spin_us));
    }
}

#[cfg(test)]
mod tests {
    use policies::controller::{PollInterval, QueueSettings};

    use super::*;
    use crate::driver::DriverKind;
    use crate::worker::report::Running;

    #[test]
    fn packets_of_an_interface_are_read_and_of_none_are_not() {
        assert_eq!(PolledPackets::read("lo").unwrap().interface, "lo");
        assert_eq!(PolledPackets::read("nonesuch0"), None);
    }

    fn snapshot(queue: Option<QueueSettings>) -> Snapshot {
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
        let page = snapshot(Some(QueueSettings::fixed(PollInterval::default()))).prometheus();
        for line in [
            "lull_worker_info{worker=\"0\",policy=\"kernel-polling\",running=\"kernel-polling\",driver=\"uring\",napi=\"\",core=\"3\"} 1",
            "lull_worker_steps_down{worker=\"0\"} 1",
            "lull_worker_queue_mode{worker=\"0\",mode=\"interrupts\"} 0",
            "lull_worker_queue_mode{worker=\"0\",mode=\"grace\"} 1",
            "lull_worker_queue_grace_time_seconds{worker=\"0\"} 0.000030000",
            "lull_worker_queue_spin_seconds{worker=\"0\"} 0.000000000",
            "lull_received_packets_total{interface=\"a\\\"b\"} 10",
            "lull_busy_poll_packets_total 4",
        ] {
            assert!(page.lines().any(|other| other == line), "{line} is missing:\n{page}");
        }
    }

    #[test]
    fn a_worker_without_a_queue_has_no_mode() {
        let page = snapshot(None).prometheus();
        assert!(page.contains("lull_worker_info") && !page.contains("lull_worker_queue"), "{page}");
    }
}
