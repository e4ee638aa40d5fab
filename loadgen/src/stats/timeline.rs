//! The intervals of a run, merged from all workers and agents, and the progress that they show.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::stats::histogram::{SparseHistogram, sum};
use crate::stats::recorder::{IntervalHistograms, RecordedBatch};
use crate::stats::{Counts, IntervalStats, Metric, Slicing};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Timeline {
    intervals: BTreeMap<u32, IntervalStats>,
    /// All requests, warm-up included.
    pub(crate) requests: u64,
    /// All error responses, warm-up included.
    pub(crate) errors: u64,
    /// All wrong values, warm-up included.
    pub(crate) wrong: u64,
    /// All connections that broke, during the warm-up included.
    pub(crate) broken: u64,
}

impl Timeline {
    pub(crate) fn add(&mut self, batch: RecordedBatch) -> Vec<IntervalHistograms> {
        let (stats, emptied) = batch.into_stats();
        for (interval, stats) in stats {
            self.add_interval(interval, stats);
        }
        emptied
    }

    /// Adds the timeline of another generator that ran at the same time.
    pub(crate) fn merge(&mut self, other: Self) {
        for (interval, stats) in other.intervals {
            self.add_interval(interval, stats);
        }
    }

    fn add_interval(&mut self, interval: u32, stats: IntervalStats) {
        self.requests += stats.latencies().iter().map(SparseHistogram::count).sum::<u64>();
        self.errors += stats.counts.errors;
        self.wrong += stats.counts.wrong;
        self.broken += stats.counts.broken;
        self.intervals.entry(interval).or_default().merge(stats);
    }

    pub(crate) fn interval(&self, interval: u32) -> Option<&IntervalStats> {
        self.intervals.get(&interval)
    }

    pub(crate) fn latency(&self, intervals: Range<u32>) -> Histogram<u64> {
        sum(self.intervals.range(intervals).flat_map(|(_, stats)| stats.latencies()))
    }

    pub(crate) fn total(&self, intervals: Range<u32>) -> TotalStats {
        let all = || self.intervals.range(intervals.clone()).map(|(_, stats)| stats);
        let mut counts = Counts::default();
        all().for_each(|stats| counts.add(&stats.counts));
        let histograms = std::array::from_fn(|metric| sum(all().map(|stats| &stats.histograms[metric])));
        TotalStats { counts, histograms }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct TotalStats {
    pub(crate) counts: Counts,
    histograms: [Histogram<u64>; Metric::COUNT],
}

impl TotalStats {
    pub(crate) fn histogram(&self, metric: Metric) -> &Histogram<u64> {
        &self.histograms[metric as usize]
    }

    pub(crate) fn latency(&self) -> Histogram<u64> {
        let mut all = self.histograms[0].clone();
        for other in &self.histograms[1..Metric::LATENCIES] {
            all.add(other).expect("a histogram that grows");
        }
        all
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// Time since the start, warm-up included.
    pub elapsed: Duration,
    pub requests: u64,
    /// Requests per second, over the last second.
    pub qps: f64,
    /// Median latency of the last second, µs.
    pub p50_us: f64,
    /// 99th percentile of the last second, µs.
    pub p99_us: f64,
    /// Error responses and wrong values so far.
    pub errors: u64,
}

impl Progress {
    pub(crate) fn new(timeline: &Timeline, elapsed: Duration, warm_up: Duration, slicing: Slicing) -> Self {
        // Up to the newest interval that is complete and that all workers have handed over.
        let now = elapsed.saturating_sub(warm_up).as_nanos() / slicing.interval.as_nanos();
        let end = u32::try_from(now).unwrap_or(u32::MAX).saturating_sub(1).min(slicing.count);
        let first = end.saturating_sub(10);
        let latency = timeline.latency(first..end);
        let seconds = slicing.interval.as_secs_f64() * f64::from(end - first);
        Self {
            elapsed,
            requests: timeline.requests,
            qps: if seconds > 0.0 { latency.len() as f64 / seconds } else { 0.0 },
            p50_us: latency.value_at_quantile(0.5) as f64 / 1e3,
            p99_us: latency.value_at_quantile(0.99) as f64 / 1e3,
            errors: timeline.errors + timeline.wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::stats::histogram::new_histogram;
    use crate::stats::recorder::Recorder;
    use crate::stats::{BEFORE, Slicing};

    const READ: Metric = Metric::Read;

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn what_three_agents_record_and_send_is_what_one_worker_records() {
        let origin = Instant::now();
        let recorder = || Recorder::new(origin, Slicing::new(Duration::from_secs(2)), Vec::new());
        let (mut one, mut agents) = (recorder(), [0; 3].map(|_| (recorder(), Timeline::default())));
        let mut direct = new_histogram();
        for step in 0..30_000_u64 {
            let time = origin + micros(step * 90);
            let value = Duration::from_nanos(1 + step * step * 104_729 % 5_000_000_011);
            let (recorder, timeline) = &mut agents[(step % 7 % 3) as usize];
            one.record(time, READ, value);
            recorder.record(time, READ, value);
            direct.record(value.as_nanos() as u64).unwrap();
            if step % 900 == 0 {
                let emptied = timeline.add(recorder.take());
                recorder.spare.extend(emptied);
            }
        }
        let (mut whole, mut merged) = (Timeline::default(), Timeline::default());
        whole.add(one.take());
        for (mut recorder, mut timeline) in agents {
            timeline.add(recorder.take());
            let sent = serde_json::to_string(&timeline).unwrap();
            merged.merge(serde_json::from_str(&sent).unwrap());
        }
        assert_eq!(merged.total(0..u32::MAX).histogram(READ), &direct);
        assert_eq!((&merged.intervals, merged.requests), (&whole.intervals, 30_000));
    }

    #[test]
    fn a_value_is_attributed_to_its_own_interval_even_if_it_is_recorded_late() {
        let origin = Instant::now();
        let mut recorder = Recorder::new(origin, Slicing::new(Duration::from_secs(2)), Vec::new());
        let mut timeline = Timeline::default();
        recorder.record(origin + micros(50), READ, micros(10));
        recorder.counts(origin + micros(150_000)).hits += 1;
        timeline.add(recorder.take());
        recorder.record(origin + micros(60), READ, micros(900_000));
        timeline.add(recorder.take());
        assert_eq!(timeline.interval(0).unwrap().latency().len(), 2);
        assert_eq!(timeline.interval(1).unwrap().counts.hits, 1);
        assert_eq!(timeline.total(1..2).latency().len(), 0);
    }

    #[test]
    fn a_stall_of_minutes_loses_no_value_and_needs_little_memory() {
        let origin = Instant::now();
        let mut recorder = Recorder::new(origin, Slicing::new(Duration::from_secs(600)), Vec::new());
        let mut direct = new_histogram();
        for step in 0..6000 {
            let waited = micros(600_000_000 - step * 100_000);
            recorder.counts(origin + micros(step * 100_000)).unanswered += 1;
            recorder.record(origin + micros(step * 100_000), READ, waited);
            direct.record(waited.as_nanos() as u64).unwrap();
        }
        assert!(recorder.has_bounded_memory());
        let mut timeline = Timeline::default();
        timeline.add(recorder.take());
        let total = timeline.total(0..6000);
        assert_eq!((total.histogram(READ), total.counts.unanswered), (&direct, 6000));
    }

    #[test]
    fn values_before_the_measurement_are_excluded() {
        let origin = Instant::now() + micros(1000);
        let mut recorder = Recorder::new(origin, Slicing::new(micros(1000)), Vec::new());
        recorder.record(origin - micros(500), READ, Duration::ZERO);
        let mut timeline = Timeline::default();
        timeline.add(recorder.take());
        assert_eq!((timeline.requests, timeline.total(0..BEFORE).latency().len()), (1, 0));
    }
}
