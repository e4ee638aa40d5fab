//! The figures that a turn may have.

use serde::{Deserialize, Serialize};

/// Each with the digits behind its point, and its title in tables.
macro_rules! figures {
    ($($(#[$doc:meta])* $name:ident $digits:literal $title:literal,)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Figure {
            $($(#[$doc])* $name,)*
        }

        impl Figure {
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            pub fn digits(self) -> usize {
                match self { $(Self::$name => $digits,)* }
            }
        }
    };
}

figures! {
    Throughput 0 "requests/s",
    /// Replies over the requests that were due meanwhile, %. The rate says less: how many are due
    /// is random.
    Answered 0 "answered %",
    P50 1 "p50 µs",
    /// 99th percentile of the latency, µs: of the latencies of all rounds together.
    P99 0 "p99 µs",
    /// CPU time of the server and of the kernel thread that receives for it, µs per request.
    CpuPerRequest 2 "CPU µs/req",
    /// The kernel thread's part of it.
    KernelThreadCpu 2 "kernel thread µs/req",
    /// Wake-ups of that thread, which stand in for interrupts, per request.
    Wakes 2 "wake-ups/req",
    /// Packets per interrupt, or per wake-up of the kernel thread that stands in for it.
    PacketsPerInterrupt 1 "pkts/irq",
    /// Packets that busy polling received, % of all.
    BusyPollShare 1 "busy-poll %",
    CoreBusy 0 "server busy %",
    /// Time in which the load's thread sent or received, % of the time.
    LoadBusy 0 "load busy %",
    /// Pauses of the load's core, % of the time. Requests that were in flight then are not counted.
    Paused 2 "load paused %",
    /// Packets that the server's own core received, % of all.
    ReceivedShare 0 "received on its core %",
    /// CPU time of the process that attached to the server, % of a core. It is not part of the
    /// server's.
    AttachCpu 1 "attaching, CPU %",
    Instructions 0 "instructions/req (IPQ)",
    InstructionsPerCycle 2 "IPC",
    CacheMisses 2 "LLC misses/req",
    /// The server's code, % of the CPU time of the server and of the kernel thread that receives
    /// for it.
    App 1 "App %",
    /// The kernel on behalf of both, % of the same.
    System 1 "system %",
    /// Softirqs beside those of system calls, % of the same.
    Softirq 1 "softirq %",
}

impl Figure {
    /// Whether it says what others consist of.
    pub fn is_part(self) -> bool {
        use Figure::{CpuPerRequest, P50, P99, Throughput};
        !matches!(self, Throughput | P50 | P99 | CpuPerRequest)
    }

    /// Whether more of it is better; of the others less.
    pub fn is_better_when_higher(self) -> bool {
        matches!(self, Self::Throughput | Self::Answered | Self::InstructionsPerCycle)
    }
}
