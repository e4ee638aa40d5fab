//! The figures that a turn may have.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// The highest rate that keeps the 99th percentile within a bound, requests per second.
    Capacity,
    Throughput,
    /// Replies over the requests that were due meanwhile, %. The rate says less: how many are due is random.
    Answered,
    P50,
    /// 99th percentile of the latency, µs: of the latencies of all rounds together.
    P99,
    /// CPU time of the server and of the kernel thread that receives for it, µs per request.
    CpuPerRequest,
    /// The kernel thread's part of it.
    KernelThreadCpu,
    /// Wake-ups of that thread, which stand in for interrupts, per request.
    Wakes,
    /// Packets per interrupt, or per wake-up of the kernel thread that stands in for it.
    PacketsPerInterrupt,
    /// Packets that busy polling received, % of all.
    BusyPollShare,
    /// Busy time of the server's core, % of the time.
    CoreBusy,
    /// Time in which the load's thread sent or received, % of the time.
    LoadBusy,
    /// CPU time of the load's sending and receiving, µs per request.
    LoadCpu,
    /// Pauses of the load's core, % of the time. Requests that were in flight then are not counted.
    Paused,
    /// Packets that the server's own core received, % of all.
    ReceivedShare,
    /// CPU time of the process that attached to the server, % of a core. It is not part of the server's.
    AttachCpu,
    /// Instructions of the server's core per request.
    Instructions,
    InstructionsPerCycle,
    /// Misses of the last-level cache per request.
    CacheMisses,
    /// The server's code, % of the CPU time of the server and of the kernel thread that receives for it.
    App,
    /// The kernel on behalf of both, % of the same.
    System,
    /// Softirqs beside those of system calls, % of the same.
    Softirq,
    /// Resident memory of the server per connection, bytes.
    ConnectionBytes,
    /// Memory of the kernel per connection, bytes.
    KernelConnectionBytes,
    /// System calls that wait, poll or submit, per request.
    Waits,
    /// System calls per request.
    Calls,
    /// What they cost by themselves, µs per request.
    Crossings,
    /// CPU time without them, µs per request.
    Rest,
    /// Their share of CPU time, %.
    Potential,
    /// From sending a message until its answer is there, µs: the mean without the slowest 2 %.
    RoundTrip,
    /// CPU time of a thread over elapsed time, %.
    CpuShare,
}

impl Figure {
    pub fn title(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Throughput => "requests/s",
            Self::Answered => "answered %",
            Self::P50 => "p50 µs",
            Self::P99 => "p99 µs",
            Self::CpuPerRequest => "CPU µs/req",
            Self::KernelThreadCpu => "kernel thread µs/req",
            Self::Wakes => "wake-ups/req",
            Self::PacketsPerInterrupt => "pkts/irq",
            Self::BusyPollShare => "busy-poll %",
            Self::CoreBusy => "server busy %",
            Self::LoadBusy => "load busy %",
            Self::LoadCpu => "load's CPU µs/req",
            Self::Paused => "load paused %",
            Self::ReceivedShare => "received on its core %",
            Self::AttachCpu => "attaching, CPU %",
            Self::Instructions => "instructions/req (IPQ)",
            Self::InstructionsPerCycle => "IPC",
            Self::CacheMisses => "LLC misses/req",
            Self::App => "App %",
            Self::System => "system %",
            Self::Softirq => "softirq %",
            Self::ConnectionBytes => "bytes/connection",
            Self::KernelConnectionBytes => "kernel bytes/connection",
            Self::Waits => "waits/req",
            Self::Calls => "calls/req",
            Self::Crossings => "n·δ µs",
            Self::Rest => "a + o(b) µs",
            Self::Potential => "PD %",
            Self::RoundTrip => "round trip µs",
            Self::CpuShare => "CPU %",
        }
    }

    pub fn digits(self) -> usize {
        match self {
            Self::Capacity
            | Self::Throughput
            | Self::P99
            | Self::Answered
            | Self::CoreBusy
            | Self::LoadBusy
            | Self::ReceivedShare
            | Self::Instructions
            | Self::ConnectionBytes
            | Self::KernelConnectionBytes => 0,
            Self::P50
            | Self::App
            | Self::System
            | Self::Softirq
            | Self::PacketsPerInterrupt
            | Self::BusyPollShare
            | Self::AttachCpu
            | Self::RoundTrip
            | Self::CpuShare
            | Self::Potential => 1,
            _ => 2,
        }
    }

    /// Whether more of it is better; of the others less.
    pub fn is_better_when_higher(self) -> bool {
        matches!(self, Self::Capacity | Self::Throughput | Self::Answered | Self::InstructionsPerCycle)
    }
}
