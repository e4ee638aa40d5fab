//! What a run showed.

use std::io;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2Serializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use serde::Serialize;

use crate::agents::Part;
use crate::batches::{Estimate, Figure, estimate};
use crate::config::{Config, Loop, WarmUp};
use crate::measures::{Class, Measure};
use crate::run::{Measured, first_that_counts};
use crate::tally::{Cut, Samples, Timeline};

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
        let unless_empty = |value: f64| if empty { 0.0 } else { value / unit };
        Self {
            count: histogram.len(),
            avg: unless_empty(histogram.mean()),
            std: unless_empty(histogram.stdev()),
            min: unless_empty(histogram.min() as f64),
            p5: at(0.05),
            p10: at(0.10),
            p50: at(0.50),
            p90: at(0.90),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: unless_empty(histogram.max() as f64),
        }
    }

    /// In mutilate's order, and what it lacks after that.
    pub(crate) fn figures(&self) -> [f64; 11] {
        let Self { avg, std, min, p5, p10, p50, p90, p95, p99, p999, max, .. } = *self;
        [avg, std, min, p5, p10, p90, p95, p99, p50, p999, max]
    }
}

/// A tenth of a second of a run, or less where it is short.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Moment {
    /// Seconds from the beginning of the time that is measured to the beginning of this.
    pub at: f64,
    /// Requests a second.
    pub qps: f64,
    /// Median latency, µs.
    pub p50: f64,
    /// 99th percentile, µs.
    pub p99: f64,
    /// The longest latency, µs.
    pub max: f64,
    /// Keys that were not found.
    pub misses: u64,
    /// Errors and wrong values.
    pub errors: u64,
    /// Whether it was left out as not steady yet.
    pub left_out: bool,
}

/// What an agent did.
#[derive(Debug, Clone, Serialize)]
pub struct AgentReport {
    /// Which one.
    pub agent: String,
    /// Its threads; 0 where it was lost.
    pub workers: usize,
    /// Requests that were answered.
    pub requests: u64,
    /// Requests a second.
    pub qps: f64,
    /// Its median latency, µs.
    pub p50: f64,
    /// Its 99th percentile, µs.
    pub p99: f64,
    /// Why nothing is known of it.
    pub lost: Option<String>,
}

impl AgentReport {
    fn new(part: &Part, pieces: Range<u32>, seconds: f64) -> Self {
        let agent = part.agent.clone();
        let measured = match &part.outcome {
            Ok(measured) => measured,
            Err(reason) => {
                let lost = Some(reason.clone());
                return Self { agent, workers: 0, requests: 0, qps: 0.0, p50: 0.0, p99: 0.0, lost };
            }
        };
        let latency = measured.timeline.latency(pieces.clone());
        let answered = pieces.filter_map(|piece| measured.timeline.piece(piece)).map(Samples::answered);
        let requests = answered.sum::<u64>();
        Self {
            agent,
            workers: measured.workers,
            requests,
            qps: requests as f64 / seconds.max(f64::MIN_POSITIVE),
            p50: latency.quantile(0.5) as f64 / 1e3,
            p99: latency.quantile(0.99) as f64 / 1e3,
            lost: None,
        }
    }
}

/// What a run showed.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Seconds that count.
    pub seconds: f64,
    /// Seconds at the beginning that were left out as not steady yet.
    pub left_out: f64,
    /// Requests that were answered (open loop: those due in the time).
    pub requests: u64,
    /// Requests a second.
    pub qps: f64,
    /// Requests a second, with an interval; `None` for a short run.
    pub qps_estimate: Option<Estimate>,
    /// The rate that was asked for; `None` in a closed loop.
    pub asked_qps: Option<f64>,
    /// Latency of all requests, µs. In an open loop from the time at which each was due.
    pub latency: Summary,
    /// The median latency, µs, with an interval.
    pub p50_estimate: Option<Estimate>,
    /// The 99th percentile of the latency, µs, with an interval.
    pub p99_estimate: Option<Estimate>,
    /// Latency of gets, µs.
    pub read: Summary,
    /// Latency of what stores, µs.
    pub update: Summary,
    /// Latency of all else, µs.
    pub other: Summary,
    /// Time from when a request was sent, µs; open loop only.
    pub service: Option<Summary>,
    /// How late the generator itself was, µs; open loop only.
    pub slip: Option<Summary>,
    /// Time from when the kernel sent a request to when it received the answer, µs, as a packet capture would
    /// have it; with the kernel's timestamps only.
    pub wire: Option<Summary>,
    /// What else there is between writing a request and reading its answer, µs: the generator's own share of
    /// the latency, with its kernel's; likewise.
    pub own: Option<Summary>,
    /// Time of making a connection anew, µs; where there were some.
    pub connect: Option<Summary>,
    /// Requests under way on a connection, at each request.
    pub op_q: Summary,
    /// Keys that were found.
    pub hits: u64,
    /// Keys that were not.
    pub misses: u64,
    /// `cas` that came too late.
    pub conflicts: u64,
    /// Requests that were answered with an error, in all of the run: also in what is left out.
    pub errors: u64,
    /// Values that were not what had been stored, in all of the run.
    pub wrong: u64,
    /// Requests that were never answered.
    pub unanswered: u64,
    /// Requests that were left out for being late (`skip`).
    pub skipped: u64,
    /// Records that were stored because they were not found.
    pub fills: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// How busy the generator's own threads were, 0 to 1 a thread, on average.
    pub client_busy: f64,
    /// CPU time of the generator's threads for a request, µs.
    pub client_cpu_us_per_request: f64,
    /// What each agent did.
    pub agents: Vec<AgentReport>,
    /// Why the figures must not be believed; `None` where they may.
    pub invalid: Option<String>,
    /// What to know before believing the figures.
    pub warnings: Vec<String>,
    /// The run in pieces.
    pub series: Vec<Moment>,
    /// What latencies are from.
    #[serde(skip)]
    timeline: Timeline,
    #[serde(skip)]
    piece_seconds: f64,
    #[serde(skip)]
    pieces: Range<u32>,
}

/// By how much a rate may be missed by chance: three standard deviations of a Poisson process.
pub(crate) fn by_chance(rate: f64, seconds: f64) -> f64 {
    3.0 * (rate / seconds.max(f64::MIN_POSITIVE)).sqrt()
}

/// A generator that is busier than this is what limits an open loop.
const FULL: f64 = 0.97;
/// A generator that is busier than this may be what limits the run.
const BUSY: f64 = 0.9;
/// A rate that is missed by more is not the asked one.
const RATE_TOLERANCE: f64 = 0.01;

impl Report {
    /// With what agents measured at the same time. Where the measuring client is apart, latencies are its
    /// alone, and all else is everybody's.
    pub(crate) fn new(config: &Config, own: Measured, parts: Vec<Part>) -> Self {
        let apart = config.apart.is_any() && !parts.is_empty();
        let measured = || known(&parts);
        let (end, over) = span(&known(&parts).chain([&own]).collect::<Vec<_>>());
        let Measured { workers, timeline: mine, cut: Cut { piece, .. }, .. } = own;
        let together = (!parts.is_empty()).then(|| {
            let mut all = mine.clone();
            measured().for_each(|measured| all.merge(measured.timeline.clone()));
            all
        });
        let everyone = together.as_ref().unwrap_or(&mine);
        let workers = if apart { workers } else { workers + measured().map(|it| it.workers).sum::<usize>() };
        let timeline = if apart { &mine } else { everyone };
        let pieces = first_that_counts(config, timeline, end)..end;
        let piece_seconds = piece.as_secs_f64();
        let until = over.map_or(piece_seconds * f64::from(end), |over| over.as_secs_f64());
        let seconds = (until - piece_seconds * f64::from(pieces.start)).max(0.0);
        let total = timeline.total(pieces.clone());
        let histogram = total.latency();
        let cpu = total.counts.cpu as f64 / 1e9;
        let cpu_requests = histogram.len().saturating_sub(total.counts.unanswered);
        let others = apart.then(|| everyone.total(pieces.clone()));
        let counts = others.as_ref().unwrap_or(&total).counts;
        let noted = others.as_ref().map_or(histogram.len(), |others| others.latency().len());
        let requests = noted.saturating_sub(counts.unanswered);
        let per_second = |amount: f64| if seconds > 0.0 { amount / seconds } else { 0.0 };
        let seen = |measure| {
            let histogram = total.measure(measure);
            (!histogram.is_empty()).then(|| Summary::new(histogram, 1e3))
        };
        let open = |measure| {
            let any = seen(measure);
            any.or_else(|| (!config.pacing.is_closed()).then(|| Summary::new(total.measure(measure), 1e3)))
        };
        let of_class = |class| Summary::new(total.measure(Measure::Latency(class)), 1e3);
        let rate = estimate(everyone, pieces.clone(), piece_seconds, Figure::Rate);
        let estimate = |figure| estimate(timeline, pieces.clone(), piece_seconds, figure);
        let agents = parts.iter().map(|part| AgentReport::new(part, pieces.clone(), seconds)).collect();
        let mut report = Self {
            seconds,
            left_out: piece_seconds * f64::from(pieces.start),
            requests,
            qps: per_second(requests as f64),
            qps_estimate: rate,
            asked_qps: match config.pacing {
                // A master in a closed loop adds what it can.
                Loop::Open { .. } if apart && config.apart.rate == Some(0.0) => None,
                Loop::Open { rate, .. } => Some(rate + config.apart.rate.filter(|_| apart).unwrap_or(0.0)),
                _ => None,
            },
            latency: Summary::new(&histogram, 1e3),
            p50_estimate: estimate(Figure::Quantile(0.5)),
            p99_estimate: estimate(Figure::Quantile(0.99)),
            read: of_class(Class::Read),
            update: of_class(Class::Update),
            other: of_class(Class::Other),
            service: open(Measure::Service),
            slip: open(Measure::Slip),
            wire: seen(Measure::Wire),
            own: seen(Measure::Own),
            connect: seen(Measure::Connect),
            op_q: Summary::new(total.measure(Measure::Queue), 1.0),
            hits: counts.hits,
            misses: counts.misses,
            conflicts: counts.conflicts,
            errors: everyone.errors(),
            wrong: everyone.wrong(),
            unanswered: counts.unanswered,
            skipped: counts.skipped,
            fills: counts.fills,
            rx_bytes: counts.received,
            tx_bytes: counts.sent,
            client_busy: per_second(cpu) / workers as f64,
            client_cpu_us_per_request: if cpu_requests == 0 { 0.0 } else { cpu * 1e6 / cpu_requests as f64 },
            agents,
            invalid: None,
            warnings: Vec::new(),
            series: (0..pieces.end)
                .map(|index| {
                    let of_all = everyone.piece(index).map_or(0, Samples::answered);
                    let left_out = index < pieces.start;
                    Moment {
                        qps: of_all as f64 / piece_seconds,
                        ..moment(timeline.piece(index), index, piece_seconds, left_out)
                    }
                })
                .collect(),
            piece_seconds,
            pieces,
            timeline: if apart { mine } else { together.unwrap_or(mine) },
        };
        report.invalid = report.why_invalid(config);
        report.warnings = report.why_careful(config);
        report
    }

    /// A generator that is later than the server is slow has measured itself.
    fn why_invalid(&self, config: &Config) -> Option<String> {
        if self.requests == 0 {
            return Some("no request was answered in the time that counts".to_owned());
        }
        if let Some((agent, reason)) = self.agents.iter().find_map(|it| Some((&it.agent, it.lost.as_ref()?)))
        {
            return Some(format!(
                "agent {agent} was lost ({reason}): the load was not what was asked for, and what it measured is not here"
            ));
        }
        if self.asked_qps.is_some() && !config.spins && self.client_busy > FULL {
            return Some(format!(
                "the generator's own threads were {:.0} % busy: requests waited for it, and it can't be told how \
                 long; give it more threads, or a lower rate",
                self.client_busy * 100.0
            ));
        }
        let (slip, service) = (self.slip?, self.service?);
        let compared =
            [("median", slip.p50, service.p50), ("99th percentile", slip.p99, service.p99)].into_iter();
        let mut late = compared.filter(|(_, slip, service)| slip > service);
        let (which, slip, service) = late.next()?;
        Some(format!(
            "the generator itself was late by {slip:.0} µs ({which}), which is more than the server took \
             ({service:.0} µs): give it more threads, a core of its own, or a lower rate"
        ))
    }

    fn why_careful(&self, config: &Config) -> Vec<String> {
        let mut warnings = Vec::new();
        let per_second = |count: u64| count as f64 / self.seconds.max(f64::MIN_POSITIVE);
        // What is filled in was not due.
        let offered = self.qps + per_second(self.skipped) - per_second(self.fills);
        let kept = |asked: f64| offered >= asked * (1.0 - RATE_TOLERANCE) - by_chance(asked, self.seconds);
        if let Some(asked) = self.asked_qps.filter(|asked| !kept(*asked)) {
            warnings.push(format!("the asked rate of {asked:.0}/s was not kept: {:.0}/s", self.qps));
        }
        if self.client_busy > BUSY && !config.spins {
            warnings.push(format!(
                "the generator's own threads were {:.0} % busy: the limit may be the client's, not the server's",
                self.client_busy * 100.0
            ));
        }
        if config.warm_up == WarmUp::UntilSteady && self.left_out >= self.seconds * 0.9 && self.left_out > 0.0
        {
            warnings.push("the run was not steady for half of its time: measure longer".to_owned());
        }
        let mut count = |number: u64, what: &str| {
            if number > 0 {
                warnings.push(format!("{number} {what}"));
            }
        };
        count(self.errors, "requests were answered with an error");
        count(self.wrong, "values were not what had been stored");
        count(self.unanswered, "requests were never answered");
        warnings
    }

    /// A quantile of the latency (0.99 is the 99th percentile), µs, with its interval; `None` for a short
    /// run.
    pub fn quantile(&self, share: f64) -> Option<Estimate> {
        estimate(&self.timeline, self.pieces.clone(), self.piece_seconds, Figure::Quantile(share))
    }

    /// Whether something went wrong with requests.
    pub fn has_failures(&self) -> bool {
        self.errors + self.wrong + self.unanswered > 0
    }

    /// Writes the latencies, in nanoseconds, as an HdrHistogram interval log.
    pub fn write_histogram(&self, mut writer: impl io::Write) -> io::Result<()> {
        let mut serializer = V2Serializer::new();
        let mut log = IntervalLogWriterBuilder::new()
            .with_start_time(SystemTime::now())
            .with_max_value_divisor(1e6)
            .begin_log_with(&mut writer, &mut serializer)?;
        let duration = Duration::from_secs_f64(self.seconds);
        let histogram = self.timeline.total(self.pieces.clone()).latency();
        log.write_histogram(&histogram, Duration::ZERO, duration, None)
            .map_err(|error| io::Error::other(format!("{error:?}")))
    }

    /// Writes the run in pieces of a tenth of a second, as CSV.
    pub fn write_series(&self, mut writer: impl io::Write) -> io::Result<()> {
        writeln!(writer, "seconds,qps,p50_us,p99_us,max_us,misses,errors,left_out")?;
        for Moment { at, qps, p50, p99, max, misses, errors, left_out } in &self.series {
            writeln!(
                writer,
                "{at:.3},{qps:.1},{p50:.1},{p99:.1},{max:.1},{misses},{errors},{}",
                u8::from(*left_out)
            )?;
        }
        Ok(())
    }
}

/// What is known of agents.
fn known(parts: &[Part]) -> impl Iterator<Item = &Measured> {
    parts.iter().filter_map(|part| part.outcome.as_ref().ok())
}

/// How many pieces count, and how long that was where recordings were over before their time. What was stopped
/// is as long as the shortest of it; recordings are as long as the longest.
fn span(all: &[&Measured]) -> (u32, Option<Duration>) {
    let stopped = all.iter().filter(|measured| measured.stopped).map(|measured| measured.whole).min();
    let longest = all.iter().map(|measured| measured.whole).max();
    let over: Option<Vec<Duration>> = all.iter().map(|measured| measured.over).collect();
    let over = over.filter(|_| stopped.is_none()).and_then(|all| all.into_iter().max());
    (stopped.or(longest).unwrap_or(0), over)
}

fn moment(samples: Option<&Samples>, index: u32, seconds: f64, left_out: bool) -> Moment {
    let none = Samples::default();
    let samples = samples.unwrap_or(&none);
    let latency = samples.latency();
    let at = |share| latency.quantile(share) as f64 / 1e3;
    Moment {
        at: f64::from(index) * seconds,
        qps: samples.answered() as f64 / seconds,
        p50: at(0.5),
        p99: at(0.99),
        max: at(1.0),
        misses: samples.counts.misses,
        errors: samples.counts.errors + samples.counts.wrong,
        left_out,
    }
}
