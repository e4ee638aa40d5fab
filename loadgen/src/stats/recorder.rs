//! Records a worker's metrics by interval.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::stats::histogram::{LARGEST_VALUE, SparseHistogram, growing_histogram, new_histogram};
use crate::stats::{BEFORE, Counts, IntervalStats, Metric, Slicing};

/// Intervals for which a recorder has histograms: those being filled and those at the collector.
const SPARE: usize = 6;
/// Intervals that are filled at the same time. Values for others are kept as late values.
const LIVE_INTERVALS: usize = 3;

/// Records a worker's metrics by interval.
#[derive(Debug)]
pub(crate) struct Recorder {
    origin: Instant,
    interval_nanos: u64,
    /// Intervals being filled. Usually that is the current one, but requests of the open loop
    /// belong to the interval in which they were due, which may be several intervals ago.
    live: Vec<IntervalHistograms>,
    /// Histograms of ended intervals, emptied to be used again.
    pub(crate) spare: Vec<IntervalHistograms>,
    /// Time range and index in `live` of the interval that was used last.
    recent: Option<(Range<Instant>, usize)>,
    /// Values of other intervals. After a stall these may be many intervals with few values each.
    late: BTreeMap<u32, LateValues>,
    /// Individual latencies, if a sample file is written.
    pub(crate) samples: Option<Vec<Sample>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The time to which the request is attributed, since the start of the measurement.
    pub(crate) time: Duration,
    pub(crate) latency: Duration,
}

/// Late values of one interval, as a list instead of histograms.
#[derive(Debug, Default)]
struct LateValues {
    counts: Counts,
    values: Vec<(usize, u64)>,
}

#[derive(Debug, Default)]
pub(crate) struct RecordedBatch {
    live: Vec<IntervalHistograms>,
    late: BTreeMap<u32, LateValues>,
    pub(crate) samples: Vec<Sample>,
}

/// An interval that is being filled: fast to record into, but large.
#[derive(Debug)]
pub(crate) struct IntervalHistograms {
    interval: u32,
    counts: Counts,
    histograms: [Histogram<u64>; Metric::COUNT],
}

impl Recorder {
    /// Allocates the histograms of a recorder. Done before the run, because page faults on a
    /// megabyte of new memory would delay requests.
    pub(crate) fn preallocate() -> Vec<IntervalHistograms> {
        (0..SPARE).map(|_| IntervalHistograms::new()).collect()
    }

    pub(crate) fn new(origin: Instant, slicing: Slicing, spare: Vec<IntervalHistograms>) -> Self {
        let interval_nanos = u64::try_from(slicing.interval.as_nanos()).unwrap_or(u64::MAX);
        Self {
            origin,
            interval_nanos,
            live: Vec::new(),
            spare,
            recent: None,
            late: BTreeMap::new(),
            samples: None,
        }
    }

    /// The index in `live` of the interval that contains `time`. `Err` is the number of a late
    /// interval.
    fn locate(&mut self, time: Instant) -> Result<usize, u32> {
        // Runs several times per request, usually for the same interval as the last time.
        match &self.recent {
            Some((range, index)) if range.contains(&time) => Ok(*index),
            _ => self.locate_slow(time),
        }
    }

    fn locate_slow(&mut self, time: Instant) -> Result<usize, u32> {
        let interval = match time.checked_duration_since(self.origin) {
            Some(since) => u32::try_from(since.as_nanos() as u64 / self.interval_nanos).unwrap_or(BEFORE),
            None => BEFORE,
        };
        // The newest interval is the last one, and usually the right one.
        let found = self.live.iter().rposition(|live| live.interval == interval);
        if found.is_none() && self.live.len() >= LIVE_INTERVALS {
            return Err(interval);
        }
        let index = found.unwrap_or_else(|| {
            let mut fresh = self.spare.pop().unwrap_or_else(IntervalHistograms::new);
            fresh.interval = interval;
            self.live.push(fresh);
            self.live.len() - 1
        });
        if interval != BEFORE {
            let start = self.origin + Duration::from_nanos(self.interval_nanos * u64::from(interval));
            self.recent = Some((start..start + Duration::from_nanos(self.interval_nanos), index));
        }
        Ok(index)
    }

    /// The counts of the interval that contains `time`.
    pub(crate) fn counts(&mut self, time: Instant) -> &mut Counts {
        match self.locate(time) {
            Ok(index) => &mut self.live[index].counts,
            Err(interval) => &mut self.late.entry(interval).or_default().counts,
        }
    }

    fn record_value(&mut self, time: Instant, metric: usize, value: u64) {
        match self.locate(time) {
            Ok(index) => self.live[index].histograms[metric].saturating_record(value),
            Err(interval) => {
                let late = self.late.entry(interval).or_default();
                late.values.push((metric, value.min(LARGEST_VALUE)));
            }
        }
    }

    pub(crate) fn record(&mut self, time: Instant, metric: Metric, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX).max(1);
        if let Some(samples) = self.samples.as_mut().filter(|_| (metric as usize) < Metric::LATENCIES)
            && let Some(since) = time.checked_duration_since(self.origin)
        {
            samples.push(Sample { time: since, latency: value });
        }
        self.record_value(time, metric as usize, nanos);
    }

    pub(crate) fn record_queue(&mut self, time: Instant, length: usize) {
        self.record_value(time, Metric::Queue as usize, length as u64);
    }

    /// Takes what was recorded since the last call. The collector processes it, because time spent
    /// on this thread would delay requests.
    pub(crate) fn take(&mut self) -> RecordedBatch {
        self.recent = None;
        RecordedBatch {
            live: std::mem::take(&mut self.live),
            late: std::mem::take(&mut self.late),
            samples: self.samples.as_mut().map(std::mem::take).unwrap_or_default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn has_bounded_memory(&self) -> bool {
        self.live.len() <= LIVE_INTERVALS
    }
}

impl RecordedBatch {
    /// Converts the batch to statistics by interval, and returns the emptied histograms with them.
    pub(crate) fn into_stats(self) -> (Vec<(u32, IntervalStats)>, Vec<IntervalHistograms>) {
        let Self { mut live, late, .. } = self;
        let mut stats: Vec<_> = live.iter_mut().map(|live| (live.interval, live.drain())).collect();
        stats.extend(late.into_iter().map(|(interval, late)| (interval, late.into_stats())));
        (stats, live)
    }
}

impl LateValues {
    fn into_stats(self) -> IntervalStats {
        let mut histograms: [_; Metric::COUNT] = std::array::from_fn(|_| growing_histogram());
        for (metric, value) in self.values {
            histograms[metric].record(value).expect("a histogram that grows");
        }
        IntervalStats { counts: self.counts, histograms: histograms.each_ref().map(SparseHistogram::new) }
    }
}

impl IntervalHistograms {
    fn new() -> Self {
        Self { interval: 0, counts: Counts::default(), histograms: std::array::from_fn(|_| new_histogram()) }
    }

    fn drain(&mut self) -> IntervalStats {
        let histograms = self.histograms.each_ref().map(SparseHistogram::new);
        for histogram in self.histograms.iter_mut().filter(|histogram| !histogram.is_empty()) {
            histogram.reset();
        }
        IntervalStats { counts: std::mem::take(&mut self.counts), histograms }
    }
}
