//! An interface's counters and settings in the Prometheus text format.

use std::fmt::Write;

use policies::counters::{RxPackets, Snapshot};
use policies::law::QueueMode;
use policies::netlink::netdev::Napi;
use policies::status::QueueStatus;
use policies::{Error, JournalDir, host, status};

type Setting = fn(&Napi) -> Option<u64>;
type Micros = fn(&QueueStatus) -> Option<u64>;

/// The present metrics of an interface.
pub fn metrics(name: &str, journals: &JournalDir) -> Result<String, Error> {
    let interface = host::interface(name)?;
    let snapshot = Snapshot::take(&interface)?;
    let totals = snapshot.totals();
    let mut page = Page(String::new());
    let queue_labels = |queue: &str, number: u32| format!("interface=\"{name}\",queue=\"{queue}-{number}\"");
    let rx_irqs = totals.irqs.iter().map(|&(queue, count)| (queue_labels("rx", queue), count));
    let tx_irqs = totals.tx_irqs.iter().map(|&(queue, count)| (queue_labels("tx", queue), count));
    page.family("lull_queue_interrupts_total", "counter", "Interrupts of a queue.", rx_irqs.chain(tx_irqs));
    match totals.rx_packets {
        RxPackets::PerQueue(queues) => {
            let packets = queues.iter().map(|&(queue, count)| (queue_labels("rx", queue), count));
            page.family(
                "lull_queue_received_packets_total",
                "counter",
                "Packets received by a queue.",
                packets,
            );
        }
        RxPackets::Interface(sum) => {
            let labels = format!("interface=\"{name}\"");
            page.family(
                "lull_received_packets_total",
                "counter",
                "Packets received by the interface, whose driver does not count by queue.",
                [(labels, *sum)],
            );
        }
    }
    page.family(
        "lull_busy_poll_packets_total",
        "counter",
        "Packets received by busy polls in the network namespace.",
        [(String::new(), totals.busy_poll_rx_packets)],
    );
    let softirqs = totals.net_rx.iter().enumerate();
    page.family(
        "lull_net_rx_softirqs_total",
        "counter",
        "NET_RX softirqs of a CPU.",
        softirqs.map(|(cpu, &count)| (format!("cpu=\"{cpu}\""), count)),
    );
    let threads = totals.napi_threads.iter().map(|it| {
        let labels = format!("{},thread=\"{}\"", queue_labels("rx", it.queue), it.thread);
        (labels, u64::try_from(it.cpu_time.as_nanos()).unwrap_or(u64::MAX))
    });
    page.family(
        "lull_napi_thread_cpu_nanoseconds_total",
        "counter",
        "CPU time of the kernel thread that polls a queue, since it was started.",
        threads,
    );
    let napis = || interface.queues.iter().filter_map(|queue| Some((queue.index, queue.napi.as_ref()?)));
    let settings: [(&str, &str, Setting); 3] = [
        (
            "lull_napi_defer_hard_irqs",
            "Empty polls that re-arm the timer instead of the interrupt.",
            |napi| napi.defer_hard_irqs,
        ),
        ("lull_napi_gro_flush_timeout_nanoseconds", "Grace time after an empty poll.", |napi| {
            napi.gro_flush_timeout
        }),
        (
            "lull_napi_irq_suspend_timeout_nanoseconds",
            "Longest time that interrupts stay suspended without a poll.",
            |napi| napi.irq_suspend_timeout,
        ),
    ];
    for (metric, help, value) in settings {
        let values = napis().filter_map(|(queue, napi)| Some((queue_labels("rx", queue), value(napi)?)));
        page.family(metric, "gauge", help, values);
    }
    let workers = status::workers(journals, interface.index);
    let times = workers.iter().flat_map(|worker| {
        let labels = |activity| {
            format!(
                "interface=\"{name}\",worker=\"{}\",thread=\"{}\",activity=\"{activity}\"",
                worker.worker, worker.thread
            )
        };
        [
            (labels("useful"), worker.running_ns),
            (labels("polling"), worker.polling_ns),
            (labels("idle"), worker.parked_ns),
        ]
    });
    page.family(
        "lull_worker_nanoseconds_total",
        "counter",
        "Time that a worker spent running tasks (useful), polling or idle.",
        times,
    );
    let driven = napis().filter_map(|(queue, napi)| {
        let worker = workers.iter().find(|worker| worker.napi == napi.id)?;
        Some((queue_labels("rx", queue), worker.queue?))
    });
    page.queues(&driven.collect::<Vec<_>>());
    Ok(page.0)
}

struct Page(String);

impl Page {
    /// Adds how queues under kernel polling are driven, by their labels.
    fn queues(&mut self, queues: &[(String, QueueStatus)]) {
        let modes = queues.iter().flat_map(|(labels, status)| {
            [QueueMode::Plain, QueueMode::InterruptFirst, QueueMode::Grace]
                .map(|mode| (format!("{labels},mode=\"{mode}\""), u64::from(status.mode == mode)))
        });
        self.family(
            "lull_queue_mode",
            "gauge",
            "1 for the mode in which a queue is driven, 0 for others.",
            modes,
        );
        let times: [(&str, &str, Micros); 3] = [
            (
                "lull_queue_grace_time_nanoseconds",
                "Time that the timer leaves a queue to its worker in the present mode.",
                |status| Some(status.grace_time_us),
            ),
            (
                "lull_queue_spin_nanoseconds",
                "Time that a worker polls before it sleeps, beyond the first poll.",
                |status| Some(status.spin_us),
            ),
            (
                "lull_latency_budget_nanoseconds",
                "Median delay that a worker may cost in exchange for CPU time.",
                |status| status.latency_budget_us,
            ),
        ];
        for (metric, help, micros) in times {
            let values = queues
                .iter()
                .filter_map(|(labels, status)| Some((labels.clone(), micros(status)?.saturating_mul(1_000))));
            self.family(metric, "gauge", help, values);
        }
    }

    /// Adds a metric with its samples, or nothing if there are no samples.
    fn family(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, u64)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        // Writing to a string can't fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for (labels, value) in samples {
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let _ = writeln!(self.0, "{name}{labels} {value}");
        }
    }
}

#[cfg(test)]
mod tests {
    use policies::law::{LatencyBudget, QueueSettings, Reason};

    use super::*;

    #[test]
    fn a_queue_has_one_mode_of_value_1_and_times_in_nanoseconds() {
        let budget: LatencyBudget = "50".parse().unwrap();
        let settings = QueueSettings::grace(budget.delay(), Reason::Start);
        let labels = "queue=\"rx-0\"".to_owned();
        let fixed = QueueStatus::new(&QueueSettings::fixed(LatencyBudget::ZERO), None);
        let mut page = Page(String::new());
        page.queues(&[
            (labels, QueueStatus::new(&settings, Some(budget))),
            ("queue=\"rx-1\"".to_owned(), fixed),
        ]);
        for sample in [
            "lull_queue_mode{queue=\"rx-0\",mode=\"plain\"} 0",
            "lull_queue_mode{queue=\"rx-0\",mode=\"interrupt-first\"} 0",
            "lull_queue_mode{queue=\"rx-0\",mode=\"grace\"} 1",
            "lull_queue_mode{queue=\"rx-1\",mode=\"interrupt-first\"} 1",
            "lull_queue_grace_time_nanoseconds{queue=\"rx-0\"} 50000",
            "lull_queue_spin_nanoseconds{queue=\"rx-0\"} 0",
            "lull_latency_budget_nanoseconds{queue=\"rx-0\"} 50000",
        ] {
            assert!(page.0.lines().any(|line| line == sample), "{sample}: {}", page.0);
        }
        // The configuration fixes the other queue's values, so it has no budget.
        assert!(!page.0.contains("lull_latency_budget_nanoseconds{queue=\"rx-1\"}"), "{}", page.0);
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
