//! Reports as a table.

use std::fmt::Write as _;

use crate::report::{AgentReport, Report, Summary};
use crate::stats::batch_means::Estimate;

impl Report {
    /// The report as a table. Lines that mutilate prints, too, have its names and order, with
    /// further columns at the end.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let names = ["avg", "std", "min", "5th", "10th", "90th", "95th", "99th", "50th", "99.9th", "max"];
        let header: String = names.iter().map(|name| format!(" {name:>8}")).collect();
        // Writing to a String can't fail.
        let _ = writeln!(text, "{:<8}{header}", "#type");
        let mut row = |name: &str, summary: &Summary| {
            let Summary { avg, std, min, p5, p10, p50, p90, p95, p99, p999, max, .. } = *summary;
            let figures = [avg, std, min, p5, p10, p90, p95, p99, p50, p999, max];
            let figures: String = figures.iter().map(|figure| format!(" {figure:>8.1}")).collect();
            let _ = writeln!(text, "{name:<8}{figures}");
        };
        row("read", &self.read);
        row("update", &self.update);
        row("op_q", &self.op_q);
        if self.other.count > 0 {
            row("other", &self.other);
        }
        if let (Some(service), Some(send_lag)) = (&self.service, &self.send_lag) {
            row("service", service);
            row("send_lag", send_lag);
        }
        if let Some(connect) = &self.connect {
            row("connect", connect);
        }
        let share = |part: u64, all: u64| part as f64 * 100.0 / all.max(1) as f64;
        let rate = |bytes: u64| bytes as f64 / self.seconds.max(f64::MIN_POSITIVE) / (1024.0 * 1024.0);
        let _ = writeln!(
            text,
            "\nTotal QPS = {:.1} ({} / {:.1}s)\n\nMisses = {} ({:.1}%)\nSkipped TXs = {} ({:.1}%)\n\nRX {:>10} bytes : {:>6.1} MB/s\nTX {:>10} bytes : {:>6.1} MB/s\n",
            self.qps,
            self.requests,
            self.seconds,
            self.misses,
            share(self.misses, self.hits + self.misses),
            self.skipped,
            share(self.skipped, self.requests + self.skipped),
            self.rx_bytes,
            rate(self.rx_bytes),
            self.tx_bytes,
            rate(self.tx_bytes),
        );
        let mut interval = |name: &str, estimate: Option<Estimate>, unit: &str| {
            if let Some(Estimate { mean, low, high, batches }) = estimate {
                let _ = writeln!(
                    text,
                    "{name:<6} {mean:>10.1} [{low:.1}, {high:.1}] {unit}, 95 % of {batches} batches"
                );
            }
        };
        interval("QPS", self.qps_estimate, "requests/s");
        interval("p50", self.p50_estimate, "µs");
        interval("p99", self.p99_estimate, "µs");
        if self.left_out > 0.0 {
            let _ = writeln!(text, "Warm-up excluded: {:.1} s", self.left_out);
        }
        let _ = writeln!(
            text,
            "Client {:.0} % busy, {:.2} µs CPU per request; errors {}, wrong values {}",
            self.client_busy * 100.0,
            self.client_cpu_us_per_request,
            self.errors,
            self.wrong
        );
        if self.hits + self.misses > 0 && self.misses > 0 {
            let _ = writeln!(
                text,
                "Hit ratio {:.2} % of {} keys; {} filled",
                share(self.hits, self.hits + self.misses),
                self.hits + self.misses,
                self.fills
            );
        }
        for AgentReport { agent, workers, qps, p50, p99, lost, .. } in &self.agents {
            let _ = match lost {
                None => writeln!(
                    text,
                    "Agent {agent}: {workers} threads, {qps:.1} requests/s, p50 {p50:.1} µs, p99 {p99:.1} µs"
                ),
                Some(reason) => writeln!(text, "Agent {agent}: lost: {reason}"),
            };
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        if let Some(invalid) = &self.invalid {
            let _ = writeln!(text, "INVALID: {invalid}");
        }
        text
    }
}
