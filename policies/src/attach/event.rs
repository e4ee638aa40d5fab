//! What an attachment reports.

use std::fmt;
use std::net::SocketAddr;

use super::instance::QueueName;
use crate::supervise::Change;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[non_exhaustive]
pub struct InstanceName {
    /// The process id, in the PID namespace of the attaching process.
    pub pid: u32,
    /// The process's name, of at most 15 bytes.
    pub process: String,
    pub descriptor: i32,
}

impl fmt::Display for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}), epoll instance {}", self.process, self.pid, self.descriptor)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachEvent {
    /// An epoll instance is attached: from now on the controller decides when its waits poll.
    Attached {
        instance: InstanceName,
        queue: QueueName,
    },
    LeftAlone {
        instance: InstanceName,
        /// What stands against kernel polling there, as a clause.
        reason: String,
    },
    /// An epoll instance is no longer attached.
    Detached {
        instance: InstanceName,
        reason: String,
    },
    QueueRefused {
        queue: QueueName,
        /// What the queue lacks or who has it, as a clause.
        reason: String,
    },
    /// A queue under kernel polling goes back to interrupts for some time.
    SteppedBack {
        queue: QueueName,
        reason: String,
    },
    /// A queue's settings have changed, or its link.
    Queue {
        queue: QueueName,
        /// The setting that has another value, or what became of the link.
        change: Change,
    },
    /// New connections to an address go to the listener of their queue.
    Steered {
        address: SocketAddr,
        listeners: usize,
    },
    /// New connections to an address can't be steered.
    NotSteered {
        address: SocketAddr,
        /// What the listeners or the kernel lack, as a clause.
        reason: String,
    },
    ProcessLeftAlone {
        /// The process id, in the PID namespace of the attaching process.
        pid: u32,
        /// The step that failed, with the kernel's error.
        reason: String,
    },
    TargetEnded,
}

impl fmt::Display for AttachEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachEvent::Attached { instance, queue } => write!(f, "attached {instance}, to {queue}"),
            AttachEvent::LeftAlone { instance, reason } => write!(f, "{instance} is left alone: {reason}"),
            AttachEvent::Detached { instance, reason } => write!(f, "detached {instance}: {reason}"),
            AttachEvent::QueueRefused { queue, reason } => write!(f, "{queue} can't be used: {reason}"),
            AttachEvent::SteppedBack { queue, reason } => {
                write!(f, "{queue} is back at interrupts for a while: {reason}")
            }
            AttachEvent::Queue { queue, change: change @ Change::QueueSettings { .. } } => {
                write!(f, "{}: {change}", queue.interface)
            }
            AttachEvent::Queue { queue, change } => write!(f, "{queue}: {change}"),
            AttachEvent::Steered { address, listeners } => {
                write!(f, "new connections to {address} are steered to its {listeners} listeners by queue")
            }
            AttachEvent::NotSteered { address, reason } => write!(f, "{address} is not steered: {reason}"),
            AttachEvent::ProcessLeftAlone { pid, reason } => {
                write!(f, "process {pid} is left alone: {reason}")
            }
            AttachEvent::TargetEnded => write!(f, "all processes have ended"),
        }
    }
}
