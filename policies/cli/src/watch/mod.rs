//! `policies watch`: rates of an interface, a table or a line of JSON at a time.

mod sample;

use std::io::{self, IsTerminal, Write};
use std::thread;
use std::time::Duration;

use clap::Args;
use policies::JournalDir;

use crate::output::{CommandError, Format, or_dash, table, with_schema, write_error};
use sample::{InterfaceSample, Sampler, WorkerShares};

#[derive(Args)]
pub struct WatchArguments {
    /// Interface, for example eth0
    #[arg(value_parser = crate::interface_name::interface_name)]
    interface: String,
    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_interval)]
    interval: f64,
    /// Number of samples; without it `watch` runs until it is interrupted
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
}

fn parse_interval(text: &str) -> Result<f64, &'static str> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or("expected a number of seconds from 0.1 to 3600")
}

/// Prints a table, or a line of JSON, for each sample. A table replaces the one before on a
/// terminal.
pub fn run(arguments: &WatchArguments, journals: &JournalDir, format: Format) -> Result<(), CommandError> {
    /// Moves the cursor to the top left, and clears the screen from there (ECMA-48).
    const CLEAR: &str = "\x1b[H\x1b[J";
    let before = if format == Format::Table && io::stdout().is_terminal() { CLEAR } else { "" };
    let mut sampler = Sampler::new(&arguments.interface, journals)?;
    let mut taken = 0;
    while arguments.count.is_none_or(|count| taken < count) {
        thread::sleep(Duration::from_secs_f64(arguments.interval));
        taken += 1;
        let sample = match sampler.next_sample() {
            Ok(sample) => sample,
            // On a terminal somebody sees it, and the link may be reopened or renamed at this
            // moment.
            Err(error) if !before.is_empty() => {
                write_error(error);
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let text = match format {
            Format::Json => with_schema(serde_json::json!(sample)).to_string(),
            Format::Table => render(&sample),
        };
        // The reader of a pipe may have closed it.
        if writeln!(io::stdout(), "{before}{text}").is_err() {
            break;
        }
    }
    Ok(())
}

fn render(sample: &InterfaceSample) -> String {
    let mut rows = table(&[
        "queue",
        "NAPI",
        "irq",
        "core",
        "irqs/s",
        "packets/s",
        "packets/irq",
        "kernel thread",
        "its core",
        "its CPU",
        "worker (tid)",
        "policy",
        "mode",
        "useful",
        "polling",
        "idle",
    ]);
    let number = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.0}")));
    for queue in &sample.queues {
        let (thread, worker) = (queue.kernel_thread.as_ref(), queue.worker.as_ref());
        let percent = |share: fn(&WorkerShares) -> f64| {
            or_dash(worker.map(|worker| format!("{:.0} %", share(worker) * 100.0)))
        };
        rows.add_row([
            format!("rx-{}", queue.queue),
            or_dash(queue.napi),
            or_dash(queue.irq),
            or_dash(queue.core),
            number(queue.interrupts_per_second),
            number(queue.packets_per_second),
            or_dash(queue.packets_per_interrupt.map(|value| format!("{value:.1}"))),
            or_dash(thread.map(|thread| thread.thread)),
            or_dash(thread.and_then(|thread| thread.core)),
            or_dash(thread.map(|thread| format!("{:.0} %", thread.cpu * 100.0))),
            or_dash(worker.map(|worker| format!("{} ({})", worker.worker, worker.thread))),
            or_dash(worker.map(|worker| worker.running.clone())),
            or_dash(worker.and_then(|worker| Some(worker.queue?.mode_text()))),
            percent(|worker| worker.useful),
            percent(|worker| worker.polling),
            percent(|worker| worker.idle),
        ]);
    }
    let mut text = format!(
        "{} ({}): {:.0} packets/s, {:.1} % received by busy polling, {:.0} NET_RX softirqs/s\n{rows}",
        sample.interface,
        if sample.up { "up" } else { "down" },
        sample.packets_per_second,
        sample.busy_poll_share * 100.0,
        sample.net_rx_softirqs_per_second
    );
    for queue in &sample.queues {
        if let Some(status) = queue.worker.as_ref().and_then(|worker| worker.queue.as_ref()) {
            text.push_str(&format!("\nrx-{}: {}: {}", queue.queue, status.mode_text(), status.why));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use policies::controller::{PollInterval, QueueSettings, Reason};
    use policies::status::QueueStatus;

    use super::*;
    use crate::watch::sample::{KernelThreadSample, QueueSample};

    fn row(queue: u32) -> QueueSample {
        QueueSample {
            queue,
            napi: None,
            irq: None,
            core: None,
            interrupts_per_second: None,
            packets_per_second: None,
            packets_per_interrupt: None,
            kernel_thread: (queue == 2).then_some(KernelThreadSample {
                thread: 258,
                core: Some(3),
                cpu: 0.98,
            }),
            worker: None,
        }
    }

    fn sample(queues: Vec<QueueSample>) -> InterfaceSample {
        InterfaceSample {
            interface: "eth0".to_owned(),
            up: true,
            seconds: 1.0,
            packets_per_second: 3.0,
            busy_poll_share: 0.5,
            net_rx_softirqs_per_second: 1.0,
            queues,
        }
    }

    #[test]
    fn a_worker_is_shown_with_its_queues_mode_and_the_reason() {
        let settings = QueueSettings::grace(Duration::from_micros(30), Reason::ManyPackets);
        let shares = |queue| WorkerShares {
            worker: 0,
            thread: 7,
            running: "kernel-polling".to_owned(),
            queue,
            useful: 0.5,
            polling: 0.25,
            idle: 0.25,
        };
        let adapted = Some(QueueStatus::new(&settings));
        let fixed = Some(QueueStatus::new(&QueueSettings::fixed(PollInterval::default())));
        let mut queues = vec![row(0), row(1), row(2)];
        for (queue, status) in queues.iter_mut().zip([adapted, fixed, None]) {
            queue.worker = Some(shares(status));
        }
        let sample = sample(queues);
        let text = render(&sample);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(text.matches("kernel-polling  grace 30 µs  50 %").count(), 2, "{text}");
        let reasons = ["rx-0: grace 30 µs: many packets come", "rx-1: grace 30 µs: fixed"];
        assert_eq!(lines[lines.len() - 2..], reasons, "{text}");
        let json = serde_json::json!(sample);
        let queue = &json["queues"][0]["worker"]["queue"];
        assert_eq!((&queue["mode"], &queue["reason"]), (&"grace".into(), &"many-packets".into()), "{queue}");
    }

    #[test]
    fn a_queue_is_shown_with_its_kernel_thread() {
        let text = render(&sample(vec![row(0), row(2)]));
        assert!(text.contains("50.0 % received by busy polling"), "{text}");
        let threaded = text.lines().find(|line| line.trim().starts_with("rx-2")).unwrap();
        let words: Vec<&str> = threaded.split_whitespace().collect();
        assert!(words.windows(4).any(|words| words == ["258", "3", "98", "%"]), "{text}");
    }
}
