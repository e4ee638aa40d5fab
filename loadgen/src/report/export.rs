//! Report files: an HdrHistogram log and a time series.

use std::io;
use std::time::{Duration, SystemTime};

use hdrhistogram::serialization::V2Serializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;

use crate::report::run_report::Report;
use crate::report::series::SeriesPoint;

impl Report {
    /// Writes the latencies, in nanoseconds, as an HdrHistogram interval log.
    ///
    /// # Errors
    /// Returns the writer's errors.
    pub fn write_histogram(&self, mut writer: impl io::Write) -> io::Result<()> {
        let mut serializer = V2Serializer::new();
        let mut log = IntervalLogWriterBuilder::new()
            .with_start_time(SystemTime::now())
            .with_max_value_divisor(1e6)
            .begin_log_with(&mut writer, &mut serializer)?;
        let duration = Duration::from_secs_f64(self.seconds);
        let histogram = self.timeline.total(self.intervals.clone()).latency();
        log.write_histogram(&histogram, Duration::ZERO, duration, None)
            .map_err(|error| io::Error::other(format!("{error:?}")))
    }

    /// Writes the intervals of the run as CSV.
    ///
    /// # Errors
    /// Returns the writer's errors.
    pub fn write_series(&self, mut writer: impl io::Write) -> io::Result<()> {
        writeln!(writer, "seconds,qps,p50_us,p99_us,max_us,misses,errors,left_out")?;
        for SeriesPoint { at, qps, p50, p99, max, misses, errors, left_out } in &self.series {
            writeln!(
                writer,
                "{at:.3},{qps:.1},{p50:.1},{p99:.1},{max:.1},{misses},{errors},{}",
                u8::from(*left_out)
            )?;
        }
        Ok(())
    }
}
