//! What an attachment does at present.

use serde::Serialize;

use super::event::InstanceName;
use super::queue_map::QueueName;
use crate::status::QueueStatus;

/// The queues that are attached, as of the last second.
#[derive(Debug, Clone, PartialEq, Serialize, Default)]
#[non_exhaustive]
pub struct AttachStatus {
    /// Over how many seconds the rates were taken; less than 1 after a change of what is attached.
    pub seconds: f64,
    /// The processes of the target.
    pub processes: usize,
    /// The epoll instances that were found in them.
    pub instances: usize,
    /// The queues that are held for them.
    pub queues: Vec<AttachedQueue>,
}

/// A queue that is held for a server.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct AttachedQueue {
    /// The queue.
    #[serde(flatten)]
    pub queue: QueueName,
    /// The epoll instances that are attached to it.
    pub instances: Vec<InstanceName>,
    /// How it is driven, and why.
    #[serde(flatten)]
    pub status: QueueStatus,
    /// Received packets per second.
    pub packets_per_second: f64,
    /// The share of the network namespace's packets that busy polls received, 0 to 1.
    pub busy_poll_share: f64,
    /// Interrupts per second; `None` if the queue has none.
    pub interrupts_per_second: Option<f64>,
    /// How many cores the server's threads took.
    pub cores: f64,
    /// Their CPU time for a packet, in microseconds; `None` without packets.
    pub cpu_us_per_packet: Option<f64>,
}
