//! What a run showed.

use std::io;
use std::time::{Duration, SystemTime};

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2Serializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use serde::Serialize;

use crate::client::Tally;
use crate::run::{Config, Loop};

/// A distribution in figures. Latencies are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[allow(missing_docs)]
pub struct Summary {
    pub count: u64,
    pub avg: f64,
    pub std: f64,
    pub min: f64,
    pub p5: f64,
    pub p10: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl Summary {
    fn new(histogram: &Histogram<u64>, unit: f64) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / unit;
        let empty = histogram.is_empty();
        Self {
            count: histogram.len(),
            avg: if empty { 0.0 } else { histogram.mean() / unit },
            std: if empty { 0.0 } else { histogram.stdev() / unit },
            min: if empty { 0.0 } else { histogram.min() as f64 / unit },
            p5: at(0.05),
            p10: at(0.10),
            p50: at(0.50),
            p90: at(0.90),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: if empty { 0.0 } else { histogram.max() as f64 / unit },
        }
    }

    fn figures(&self) -> [f64; 11] {
        let Self { avg, std, min, p5, p10, p50, p90, p95, p99, p999, max, .. } = *self;
        [avg, std, min, p5, p10, p50, p90, p95, p99, p999, max]
    }
}

/// What a run showed.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Seconds that were measured.
    pub seconds: f64,
    /// Requests that were answered (open loop: those due in the time).
    pub requests: u64,
    /// Requests a second.
    pub qps: f64,
    /// The rate that was asked for; `None` in a closed loop.
    pub asked_qps: Option<f64>,
    /// Latency of all requests, µs. In an open loop from the time at which each was due.
    pub latency: Summary,
    /// Latency of gets, µs.
    pub read: Summary,
    /// Latency of sets, µs.
    pub update: Summary,
    /// Requests under way on a connection, at each request.
    pub op_q: Summary,
    /// How late requests went out, µs; open loop only.
    pub slip: Option<Summary>,
    /// Gets that found their record.
    pub hits: u64,
    /// Gets that did not.
    pub misses: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Requests that were never answered.
    pub unanswered: u64,
    /// Bytes received a second.
    pub rx_bytes_per_second: f64,
    /// Bytes sent a second.
    pub tx_bytes_per_second: f64,
    /// How busy the generator's own threads were, 0 to 1 a thread, on average.
    pub client_busy: f64,
    /// CPU time of the generator's threads for a request, µs.
    pub client_cpu_us_per_request: f64,
    /// What to know before believing the figures.
    pub warnings: Vec<String>,
    #[serde(skip)]
    histogram: Histogram<u64>,
}

/// A generator that is busier than this may be what limits the run.
const BUSY: f64 = 0.9;
/// A rate that is missed by more is not the asked one.
const RATE_TOLERANCE: f64 = 0.01;

impl Report {
    pub(crate) fn new(config: &Config, workers: usize, tally: &Tally) -> Self {
        let seconds = config.duration.as_secs_f64();
        let mut histogram = tally.reads.clone();
        histogram.add(&tally.updates).expect("histograms of the same bounds");
        let requests =
            if config.pacing == Loop::Closed { histogram.len() } else { histogram.len() - tally.unanswered };
        let qps = requests as f64 / seconds;
        let latency = Summary::new(&histogram, 1e3);
        let slip = (config.pacing != Loop::Closed).then(|| Summary::new(&tally.slip, 1e3));
        let client_busy = tally.cpu.as_secs_f64() / seconds / workers as f64;
        let mut warnings = Vec::new();
        let asked_qps = match config.pacing {
            Loop::Open { rate, .. } => Some(rate),
            Loop::Closed => None,
        };
        if let Some(asked) = asked_qps.filter(|asked| qps < asked * (1.0 - RATE_TOLERANCE)) {
            warnings.push(format!("the asked rate of {asked:.0}/s was not kept: {qps:.0}/s"));
        }
        if let Some(slip) = slip.filter(|slip| slip.p99 > latency.p99 / 2.0 && slip.count > 0) {
            warnings.push(format!(
                "requests went out late (99th percentile {:.0} µs): much of the latency is waiting for a free connection or for the generator",
                slip.p99
            ));
        }
        if client_busy > BUSY {
            warnings.push(format!(
                "the generator's own threads were {:.0} % busy: the limit may be the client's, not the server's",
                client_busy * 100.0
            ));
        }
        if tally.errors > 0 {
            warnings.push(format!("{} requests were answered with an error", tally.errors));
        }
        if tally.unanswered > 0 {
            warnings.push(format!("{} requests were never answered", tally.unanswered));
        }
        Self {
            seconds,
            requests,
            qps,
            asked_qps,
            latency,
            read: Summary::new(&tally.reads, 1e3),
            update: Summary::new(&tally.updates, 1e3),
            op_q: Summary::new(&tally.outstanding, 1.0),
            slip,
            hits: tally.hits,
            misses: tally.misses,
            errors: tally.errors,
            unanswered: tally.unanswered,
            rx_bytes_per_second: tally.received as f64 / seconds,
            tx_bytes_per_second: tally.sent as f64 / seconds,
            client_busy,
            client_cpu_us_per_request: if requests == 0 {
                0.0
            } else {
                tally.cpu.as_secs_f64() * 1e6 / requests as f64
            },
            warnings,
            histogram,
        }
    }

    /// The report for people, in mutilate's form.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header([
            "#type", "avg", "std", "min", "5th", "10th", "50th", "90th", "95th", "99th", "99.9th", "max",
        ]);
        let mut row = |name: &str, summary: &Summary| {
            let mut cells = vec![name.to_owned()];
            cells.extend(summary.figures().map(|figure| format!("{figure:.1}")));
            table.add_row(cells);
        };
        row("read", &self.read);
        row("update", &self.update);
        row("op_q", &self.op_q);
        if let Some(slip) = &self.slip {
            row("slip", slip);
        }
        for index in 1..12 {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = table.trim_fmt();
        let share = |part: u64| part as f64 * 100.0 / (self.hits + self.misses).max(1) as f64;
        text.push_str(&format!(
            "\n\nTotal QPS = {:.1} ({} / {:.1} s)\nMisses = {} ({:.1} %)\nErrors = {}\nRX {:.1} MB/s\nTX {:.1} MB/s\nClient {:.0} % busy, {:.2} µs CPU a request\n",
            self.qps,
            self.requests,
            self.seconds,
            self.misses,
            share(self.misses),
            self.errors,
            self.rx_bytes_per_second / 1e6,
            self.tx_bytes_per_second / 1e6,
            self.client_busy * 100.0,
            self.client_cpu_us_per_request,
        ));
        for warning in &self.warnings {
            text.push_str(&format!("warning: {warning}\n"));
        }
        text
    }

    /// Writes the latencies, in nanoseconds, as an HdrHistogram interval log.
    pub fn write_histogram(&self, mut writer: impl io::Write) -> io::Result<()> {
        let mut serializer = V2Serializer::new();
        let mut log = IntervalLogWriterBuilder::new()
            .with_start_time(SystemTime::now())
            .with_max_value_divisor(1e6)
            .begin_log_with(&mut writer, &mut serializer)?;
        let duration = Duration::from_secs_f64(self.seconds);
        log.write_histogram(&self.histogram, Duration::ZERO, duration, None)
            .map_err(|error| io::Error::other(format!("{error:?}")))
    }
}
