//! What is seen of a server: its processes, their epoll instances, the queues of their sockets.

use std::collections::BTreeSet;
use std::io;

use serde::Serialize;

use super::waits::{Timeouts, Waits};
use crate::attach::queue_map::{QueueMap, QueueName};
use crate::epoll_params::EpollParams;
use crate::journal::QueueHolder;

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ObservedProcess {
    pub pid: u32,
    /// Its name, of at most 15 bytes (`/proc/PID/comm`).
    pub name: String,
    pub rings: usize,
    pub instances: Vec<ObservedInstance>,
}

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ObservedInstance {
    pub descriptor: i32,
    pub sockets: usize,
    /// The queues that their packets come from, with the number of sockets of each.
    pub queues: Vec<(QueueName, usize)>,
    /// Its parameters; `None` before Linux 6.9.
    pub params: Option<EpollParams>,
    pub threads: Vec<i32>,
    pub fitness: Fitness,
}

/// Whether an epoll instance can be attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fitness {
    /// All sockets with packets from a queue have the same one.
    Aligned,
    /// No packets come from a queue: there are no connections, or only local ones.
    NoQueue,
    /// Packets come from several queues. Its wait would poll one of them, and the others would wait
    /// for up to the suspend timeout.
    SeveralQueues,
    /// It is in another epoll instance, whose wait never polls.
    Nested,
    PollsItself,
    Unreadable,
}

/// What could not be looked at, and why.
#[derive(Debug)]
pub(super) struct AccessError {
    pub(super) pid: u32,
    /// The step that failed, for example `read the descriptors`: "of process PID" follows.
    pub(super) step: &'static str,
    pub(super) error: io::Error,
}

#[derive(Debug)]
pub(super) struct Survey {
    pub(super) processes: Vec<ObservedProcess>,
    pub(super) programs: BTreeSet<String>,
    /// The first thing that could not be looked at.
    pub(super) access: Option<AccessError>,
    pub(super) waits: Waits,
    /// Threads that never sleep, with the timeouts of their waits where those could be traced.
    pub(super) restless: Vec<(u32, i32, Option<Timeouts>)>,
    pub(super) queues: QueueMap,
    /// Other processes that hold queues of interfaces.
    pub(super) holders: Vec<(String, QueueHolder)>,
    /// Whether the server is in another network namespace than this process.
    pub(super) other_namespace: bool,
}
