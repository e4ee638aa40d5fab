//! The kernel's counters before and after a run, and the ratios that the paper reports.

mod cpu_time;
mod delta;
mod napi_threads;
mod perf;
mod received;
mod snapshot;

pub use crate::thread_time::{AwakeTime, this_thread_cpu_time, thread_cpu_time};
pub use cpu_time::CpuTime;
pub use delta::{Delta, PacketsPer};
pub use napi_threads::NapiThread;
pub use perf::{PerfCounters, PerfReading, PerfTarget, PerformanceModel};
pub use received::RxPackets;
pub use snapshot::{Snapshot, Totals, busy_poll_rx_packets};
