//! The parameters of a plan.

use std::time::Duration;

use crate::controller::{PollInterval, QueueSettings};
use crate::grace_time::GraceTime;
use crate::host::{Cpus, Interface};
use crate::netlink::ethtool::Coalescing;
use crate::policy::Policy;

/// The device's interrupt coalescing under suppression. Defaults are those of Cai and Karsten
/// (2023), section 4.2.1; of a value that the device refuses, half is tried, a quarter and so on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SuppressionValues {
    /// Microseconds from a received packet to its interrupt; 65534 by default.
    pub rx_usecs: u32,
    /// Received packets after which the interrupt is raised at once; 65534 by default, and at most
    /// half of the receive ring.
    pub rx_frames: u32,
    /// Microseconds from a sent packet to its completion interrupt; 1024 by default.
    pub tx_usecs: u32,
    /// Sent packets after which the completion interrupt is raised at once; 256 by default.
    pub tx_frames: u32,
}

impl Default for SuppressionValues {
    fn default() -> Self {
        Self { rx_usecs: 65534, rx_frames: 65534, tx_usecs: 1024, tx_frames: 256 }
    }
}

impl SuppressionValues {
    pub(super) fn target(self, parameter: Coalescing) -> u32 {
        match parameter {
            Coalescing::AdaptiveRx | Coalescing::AdaptiveTx => 0,
            Coalescing::RxUsecs => self.rx_usecs,
            Coalescing::RxFrames => self.rx_frames,
            Coalescing::TxUsecs => self.tx_usecs,
            Coalescing::TxFrames => self.tx_frames,
        }
    }
}

/// The parameters of a plan besides the policy and the interface.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Settings {
    /// The number of receive queues to configure; `None` leaves it unchanged.
    pub channels: Option<u32>,
    /// The size of the receive rings to configure, in descriptors; `None` leaves it unchanged. It
    /// applies to the whole device.
    pub rx_ring: Option<u32>,
    /// The queues that the plan is for; `None` is all. Per-queue knobs of other queues stay
    /// unchanged.
    pub queues: Option<Vec<u32>>,
    /// Interrupt coalescing, set under suppression only. It applies to the whole device, so a plan
    /// for some of its queues leaves it alone.
    pub suppression: SuppressionValues,
    /// The core of each worker if workers are pinned; queue `i` belongs to worker `i` modulo their
    /// number. Empty if workers are not pinned: interrupts then stay where they are.
    pub worker_cores: Vec<u32>,
    /// The cores that run network processing under packing, and the polling threads of
    /// kernel-thread. Empty: the highest core of the process's affinity mask without a worker,
    /// preferably of the device's NUMA node, and under kernel-thread as many of them as there are
    /// queues; else the highest core.
    pub packing_cores: Cpus,
    /// `napi_defer_hard_irqs` under suppression and under kernel polling with a fixed grace time:
    /// after so many polls of the timer that found nothing the interrupt is unmasked.
    pub defer_hard_irqs: u64,
    /// `gro_flush_timeout` under suppression and kernel polling: the grace time between an empty
    /// poll and the timer's poll. If it is adaptive, which only kernel polling knows, the plan
    /// starts with interrupts, and the process that applies it adapts the queue's values with
    /// a [`Supervisor`](crate::Supervisor).
    pub gro_flush_timeout: GraceTime,
    /// How long a packet may wait for a poll while the grace time is adaptive.
    pub poll_interval: PollInterval,
    /// `irq_suspend_timeout` under kernel polling with a fixed grace time: after this time without
    /// a poll by the application, the kernel polls again itself. Where the peak packet rate is
    /// given, at most the time in which half of the receive ring fills.
    pub irq_suspend_timeout: Duration,
    /// The packets per second that one queue is expected to receive at most while nobody adapts its
    /// suspend timeout. That is then halved from 20 ms until half of the receive ring does not fill
    /// within it, but not below 250 µs; a ring whose size is not known counts as one of 256
    /// descriptors. `None`, the default: the timeout is as given. The controller measures the rate
    /// instead.
    pub peak_packet_rate: Option<u32>,
}

impl Settings {
    /// The grace time of suppression unless one is given: 200 µs.
    pub const SUPPRESSION_GRACE_TIME: Duration = Duration::from_micros(200);
    /// The default suspend timeout: 20 ms, the value of the kernel series' authors. A safety net of
    /// about the grace time times the largest batch.
    pub const IRQ_SUSPEND_TIMEOUT: Duration = QueueSettings::LONGEST_SUSPEND_TIMEOUT;
    /// The default number of deferrals: 100, the value of the kernel series' authors.
    pub const DEFER_HARD_IRQS: u64 = 100;

    /// Limits a policy that polls to one queue for each worker, the first ones, as a worker polls
    /// one. The others keep their interrupts, for all programs of the host. Not where the settings
    /// name the queues.
    pub fn limit_queues(&mut self, policy: Policy, interface: &Interface, workers: usize) {
        let count = self.channels.map_or(interface.queues.len(), |count| count as usize);
        if policy.busy_polls() && self.queues.is_none() && workers > 0 && count > workers {
            // Of a number of channels that is still to be set not all queues exist yet.
            let all = match self.channels {
                Some(count) => (0..count).collect(),
                None => interface.queues.iter().map(|queue| queue.index).collect::<Vec<_>>(),
            };
            self.queues = Some(all.into_iter().take(workers).collect());
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            channels: None,
            rx_ring: None,
            queues: None,
            suppression: SuppressionValues::default(),
            worker_cores: Vec::new(),
            packing_cores: Cpus::none(),
            defer_hard_irqs: Self::DEFER_HARD_IRQS,
            gro_flush_timeout: GraceTime::Adaptive,
            poll_interval: PollInterval::default(),
            irq_suspend_timeout: Self::IRQ_SUSPEND_TIMEOUT,
            peak_packet_rate: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_channels_will_make_are_polled_too() {
        let loopback = crate::host::interface("lo").unwrap();
        let queues = |channels, policy, workers| {
            let mut settings = Settings { channels, ..Settings::default() };
            settings.limit_queues(policy, &loopback, workers);
            settings.queues
        };
        assert_eq!(queues(Some(8), Policy::KernelPolling, 6), Some((0..6).collect()));
        assert_eq!(queues(Some(4), Policy::KernelPolling, 6), None);
        assert_eq!(queues(Some(8), Policy::Vanilla, 6), None);
    }
}
