//! The kernel's counters before and after a run, and the ratios that the paper reports.

mod cpu_time;
mod delta;
mod model;
mod perf;
mod rx_packets;
mod snapshot;

pub use cpu_time::{CpuTime, this_thread_cpu_time, thread_cpu_time};
pub use delta::{Delta, PacketsPer};
pub use model::PerformanceModel;
pub use perf::{PerfCounters, PerfReading, PerfTarget};
pub use rx_packets::RxPackets;
pub use snapshot::{Snapshot, Totals};
