//! An interface's counters and settings in the Prometheus text format.

use policies::controller::QueueMode;
use policies::counters::{RxPackets, Snapshot};
use policies::netlink::netdev::Napi;
use policies::prometheus_text::Kind::{Counter, Gauge};
use policies::prometheus_text::{Kind, Page};
use policies::status::QueueStatus;
use policies::{Error, JournalDir, host, status};

/// A metric's labels; their values are made for the page.
type Labels = Vec<(&'static str, String)>;

/// A setting of a queue's NAPI: its name, its help, and its value.
type Setting = (&'static str, &'static str, fn(&Napi) -> Option<u64>);

const SETTINGS: [Setting; 3] = [
    ("lull_napi_defer_hard_irqs", "Empty polls that re-arm the timer instead of the interrupt.", |napi| {
        napi.defer_hard_irqs
    }),
    ("lull_napi_gro_flush_timeout_nanoseconds", "Grace time after an empty poll.", |napi| {
        napi.gro_flush_timeout
    }),
    (
        "lull_napi_irq_suspend_timeout_nanoseconds",
        "Longest time that interrupts stay suspended without a poll.",
        |napi| napi.irq_suspend_timeout,
    ),
];

/// A time of a queue under kernel polling: its name, its help, and its value in microseconds.
type QueueTime = (&'static str, &'static str, fn(&QueueStatus) -> Option<u64>);

const QUEUE_TIMES: [QueueTime; 4] = [
    (
        "lull_queue_grace_time_nanoseconds",
        "Time that the timer leaves a queue to its worker in the present mode.",
        |status| Some(status.grace_time_us),
    ),
    (
        "lull_queue_poll_interval_nanoseconds",
        "Longest sleep of a worker between two polls in timed mode; 0 in others.",
        |status| Some(status.poll_interval_us),
    ),
    (
        "lull_queue_spin_nanoseconds",
        "Time that a worker polls before it sleeps, beyond the first poll.",
        |status| Some(status.spin_us),
    ),
    ("lull_latency_budget_nanoseconds", "Delay that polling may cost in exchange for CPU time.", |status| {
        status.latency_budget_us
    }),
];

pub fn metrics(name: &str, journals: &JournalDir) -> Result<String, Error> {
    let interface = host::interface(name)?;
    let snapshot = Snapshot::take(&interface)?;
    let mut page = Page::default();
    let of_interface = |rest: &[(&'static str, String)]| -> Labels {
        [("interface", name.to_owned())].into_iter().chain(rest.iter().cloned()).collect()
    };
    let of_queue = |kind: &str, number: u32| of_interface(&[("queue", format!("{kind}-{number}"))]);
    let rx_irqs = snapshot.irqs.iter().map(|&(queue, count)| (of_queue("rx", queue), count));
    let tx_irqs = snapshot.tx_irqs.iter().map(|&(queue, count)| (of_queue("tx", queue), count));
    let help = "Interrupts of a queue.";
    add(&mut page, "lull_queue_interrupts_total", Counter, help, rx_irqs.chain(tx_irqs));
    match &snapshot.rx_packets {
        RxPackets::PerQueue(queues) => {
            let packets = queues.iter().map(|&(queue, count)| (of_queue("rx", queue), count));
            let help = "Packets received by a queue.";
            add(&mut page, "lull_queue_received_packets_total", Counter, help, packets);
        }
        RxPackets::Interface(sum) => {
            let help = "Packets received by the interface, whose driver does not count by queue.";
            add(&mut page, "lull_received_packets_total", Counter, help, [(of_interface(&[]), *sum)]);
        }
    }
    let help = "Packets received by busy polls in the network namespace.";
    let polled = [(Vec::new(), snapshot.busy_poll_rx_packets)];
    add(&mut page, "lull_busy_poll_packets_total", Counter, help, polled);
    let softirqs = snapshot.net_rx.iter().enumerate();
    let softirqs = softirqs.map(|(cpu, &count)| (vec![("cpu", cpu.to_string())], count));
    add(&mut page, "lull_net_rx_softirqs_total", Counter, "NET_RX softirqs of a CPU.", softirqs);
    let threads = snapshot.napi_threads.iter().map(|it| {
        let labels = with(&of_queue("rx", it.queue), ("thread", it.thread.to_string()));
        (labels, u64::try_from(it.cpu_time.as_nanos()).unwrap_or(u64::MAX))
    });
    let help = "CPU time of the kernel thread that polls a queue, since it was started.";
    add(&mut page, "lull_napi_thread_cpu_nanoseconds_total", Counter, help, threads);
    let napis = || interface.queues.iter().filter_map(|queue| Some((queue.index, queue.napi.as_ref()?)));
    for (metric, help, value) in SETTINGS {
        let values = napis().filter_map(|(queue, napi)| Some((of_queue("rx", queue), value(napi)?)));
        add(&mut page, metric, Gauge, help, values);
    }
    let workers = status::workers(journals, interface.index);
    let times = workers.iter().flat_map(|worker| {
        let worker_labels =
            of_interface(&[("worker", worker.worker.to_string()), ("thread", worker.thread.to_string())]);
        [("useful", worker.running_ns), ("polling", worker.polling_ns), ("idle", worker.parked_ns)]
            .map(|(activity, time)| (with(&worker_labels, ("activity", activity.to_owned())), time))
    });
    let help = "Time that a worker spent running tasks (useful), polling or idle.";
    add(&mut page, "lull_worker_nanoseconds_total", Counter, help, times);
    let driven = napis().filter_map(|(queue, napi)| {
        let worker = workers.iter().find(|worker| worker.napi == napi.id)?;
        Some((of_queue("rx", queue), worker.queue?))
    });
    queues(&mut page, &driven.collect::<Vec<_>>());
    Ok(page.into_text())
}

/// Adds how queues under kernel polling are driven, by their labels.
fn queues(page: &mut Page, queues: &[(Labels, QueueStatus)]) {
    let modes = queues.iter().flat_map(|(labels, status)| {
        QueueMode::ALL.map(|mode| (with(labels, ("mode", mode.to_string())), u64::from(status.mode == mode)))
    });
    let help = "1 for the mode in which a queue is driven, 0 for others.";
    add(page, "lull_queue_mode", Gauge, help, modes);
    let adapted = queues.iter().filter(|(_, status)| status.latency_budget_us.is_some());
    let trials = adapted.map(|(labels, status)| (labels.clone(), status.trials_us * 1_000));
    let help = "Time in which polling was tried, or given up for a moment to measure interrupts.";
    add(page, "lull_queue_trials_nanoseconds_total", Counter, help, trials);
    for (metric, help, micros) in QUEUE_TIMES {
        let nanos = |status: &QueueStatus| Some(micros(status)?.saturating_mul(1_000));
        let values = queues.iter().filter_map(|(labels, status)| Some((labels.clone(), nanos(status)?)));
        add(page, metric, Gauge, help, values);
    }
}

fn with(labels: &Labels, label: (&'static str, String)) -> Labels {
    labels.iter().cloned().chain([label]).collect()
}

/// Adds a metric with its samples, or nothing if there are no samples.
fn add(
    page: &mut Page,
    name: &'static str,
    kind: Kind,
    help: &'static str,
    samples: impl IntoIterator<Item = (Labels, u64)>,
) {
    let mut family = page.family(name, kind, help);
    for (labels, value) in samples {
        let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        family.sample(&labels, value);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use policies::controller::{Budgets, LatencyBudget, QueueSettings, Reason};

    use super::*;

    #[test]
    fn a_queue_has_one_mode_of_value_1_and_times_in_nanoseconds() {
        let budgets = Budgets { latency: "50".parse().unwrap(), ..Budgets::default() };
        let settings = QueueSettings::grace(budgets.latency.delay(), Reason::Start);
        let labels = |queue: &str| vec![("queue", queue.to_owned())];
        let fixed = QueueStatus::new(&QueueSettings::fixed(LatencyBudget::ZERO), None);
        let adapted = QueueStatus::new(&settings, Some(budgets)).with_trials(Duration::from_micros(2));
        let mut page = Page::default();
        queues(&mut page, &[(labels("rx-0"), adapted), (labels("rx-1"), fixed)]);
        let page = page.into_text();
        for sample in [
            "lull_queue_mode{queue=\"rx-0\",mode=\"plain\"} 0",
            "lull_queue_mode{queue=\"rx-0\",mode=\"interrupt-first\"} 0",
            "lull_queue_mode{queue=\"rx-0\",mode=\"grace\"} 1",
            "lull_queue_mode{queue=\"rx-1\",mode=\"interrupt-first\"} 1",
            "lull_queue_grace_time_nanoseconds{queue=\"rx-0\"} 50000",
            "lull_queue_spin_nanoseconds{queue=\"rx-0\"} 0",
            "lull_latency_budget_nanoseconds{queue=\"rx-0\"} 50000",
            "lull_queue_trials_nanoseconds_total{queue=\"rx-0\"} 2000",
        ] {
            assert!(page.lines().any(|line| line == sample), "{sample}: {page}");
        }
        // The configuration fixes the other queue's values, so it has no budget.
        assert!(!page.contains("lull_latency_budget_nanoseconds{queue=\"rx-1\"}"), "{page}");
    }

    #[test]
    fn loopback_has_metrics_with_help_type_and_a_sample_each() {
        let page = metrics("lo", &JournalDir::at("/nonexistent")).unwrap();
        let names: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert!(names.contains(&"lull_busy_poll_packets_total counter"), "{page}");
        for name in names {
            let name = name.split(' ').next().unwrap();
            assert!(page.lines().any(|line| line.starts_with(name)), "no sample of {name}");
        }
        let valid =
            |line: &str| line.starts_with('#') || line.rsplit_once(' ').unwrap().1.parse::<u64>().is_ok();
        assert!(page.lines().all(valid), "{page}");
    }
}
