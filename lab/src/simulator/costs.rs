//! What the simulated machine's operations cost.

use std::time::Duration;

use policies::law::MachineCosts;
use serde::Serialize;

/// The costs of a machine and of its server, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// CPU time of an interrupt and its softirq, without the packets.
    pub irq: u64,
    /// CPU time of going to sleep and waking up. One half is taken before the sleep, the other after it.
    pub block: u64,
    /// Time from the event that ends a sleep to the moment when the thread runs, without the interrupt or
    /// the tick. It contains the second half of `block`; the core is idle for the rest.
    pub wake_latency: u64,
    /// CPU time of one poll of the queue by a wait, without the packets.
    pub pass: u64,
    /// CPU time of one poll of the queue by the timer, without the packets.
    pub tick: u64,
    /// CPU time of receiving one packet, in whichever loop.
    pub receive: u64,
    /// CPU time of the application for one request.
    pub service: u64,
}

impl Costs {
    /// A server without a hypervisor.
    pub const BARE: Self = Self {
        irq: 1_000,
        block: 3_000,
        wake_latency: 3_000,
        pass: 500,
        tick: 1_000,
        receive: 300,
        service: 2_000,
    };
    /// A virtual machine, whose interrupts and timers leave the guest.
    pub const VIRTUAL: Self = Self {
        irq: 3_000,
        block: 6_000,
        wake_latency: 6_000,
        pass: 800,
        tick: 2_000,
        receive: 700,
        service: 2_000,
    };

    /// The CPU time of going to sleep.
    pub(super) fn falling_asleep(&self) -> u64 {
        self.block / 2
    }

    /// The CPU time of waking up.
    pub(super) fn waking(&self) -> u64 {
        self.block - self.falling_asleep()
    }

    /// How long the core takes to leave its idle state. It does nothing else meanwhile.
    pub(super) fn idle_exit(&self) -> u64 {
        self.wake_latency.saturating_sub(self.waking())
    }

    /// Requests per second that a core serves at most in plain mode, if each of them interrupts.
    pub fn plain_capacity(&self) -> f64 {
        1e9 / (self.irq + self.receive + self.service) as f64
    }

    /// What the law measures of this machine.
    pub fn machine(&self) -> MachineCosts {
        MachineCosts {
            block: Duration::from_nanos(self.block),
            wake_latency: Duration::from_nanos(self.wake_latency),
        }
    }
}
