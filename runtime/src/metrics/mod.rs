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

mod prometheus;
pub(crate) mod snapshot;

pub use self::prometheus::PROMETHEUS_CONTENT_TYPE;
pub use self::snapshot::{PolledPackets, Snapshot, WorkerSnapshot};
pub use crate::counters::histogram::Histogram;
pub use crate::counters::worker_counters::Metrics;
