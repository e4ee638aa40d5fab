//! The kernel's counters before and after a run, and the ratios that the paper reports. With the
//! feature `tools`; without it only received packets.

#[cfg(feature = "tools")]
mod napi_threads;
#[cfg(feature = "tools")]
mod perf;
mod received;
#[cfg(feature = "tools")]
mod snapshot;

#[cfg(feature = "tools")]
pub use self::{
    napi_threads::NapiThread,
    perf::{PerfCounters, PerfReading},
    snapshot::{CpuTime, Delta, Snapshot},
};
pub use received::{RxPackets, busy_poll_rx_packets};
