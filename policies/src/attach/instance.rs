//! Epoll instances of other processes, and the queues of the network namespace: which NAPIs the
//! packets of an instance's sockets come from, and whose these are.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;

use super::process::{EpollReader, HeldSocket};
use crate::epoll_params::EpollParams;
use crate::error::Error;
use crate::host::process::ProcessIdentity;
use crate::host::{Interface, interfaces};
use crate::pidfd::Descriptors;
use crate::socket_options::incoming_napi_id;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct QueueName {
    pub interface: String,
    pub queue: u32,
    #[serde(skip)]
    pub(crate) ifindex: u32,
}

impl std::fmt::Display for QueueName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rx-{}", self.interface, self.queue)
    }
}

/// The NAPIs of the calling thread's network namespace.
#[derive(Debug, Default)]
pub(super) struct QueueMap {
    queues: BTreeMap<u32, QueueName>,
    pub(super) interfaces: Vec<Interface>,
}

impl QueueMap {
    pub(super) fn read() -> Result<Self, Error> {
        let interfaces = interfaces()?;
        let mut queues = BTreeMap::new();
        for interface in &interfaces {
            for queue in &interface.queues {
                let Some(napi) = &queue.napi else { continue };
                let name = QueueName {
                    interface: interface.name.clone(),
                    queue: queue.index,
                    ifindex: interface.index,
                };
                queues.insert(napi.id, name);
            }
        }
        Ok(Self { queues, interfaces })
    }

    /// The queue of a NAPI. `None` if it is no longer there: sockets keep the id of the last
    /// packet's NAPI.
    pub(super) fn queue(&self, napi: u32) -> Option<&QueueName> {
        self.queues.get(&napi)
    }

    pub(super) fn interface(&self, queue: &QueueName) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.index == queue.ifindex)
    }
}

/// How many sockets are looked at at once. Each is duplicated for some microseconds, in which the
/// process's closing it would take effect only afterwards.
const LOOKS: usize = 128;
/// How often a new socket without a NAPI is looked at each time. Listeners and local sockets never
/// get one...
const PATIENCE: u8 = 3;
/// ...but a UDP socket gets one with its first packet, whenever that comes. So after that each is
/// looked at once in this number of scans.
const RARELY: u64 = 16;

#[derive(Debug, Clone, Copy)]
struct Look {
    /// 0 if packets come from no NAPI.
    napi: u32,
    looks: u8,
}

/// An epoll instance, and what was seen of its sockets so far.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) process: ProcessIdentity,
    pub(super) descriptor: i32,
    sockets: BTreeMap<HeldSocket, Look>,
    scans: u64,
    looked_again: Option<HeldSocket>,
}

/// What follows from the NAPIs of an instance's sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Holds {
    /// No socket whose packets come through a queue.
    Nothing,
    One(QueueName),
    Several(Vec<(QueueName, usize)>),
}

impl Instance {
    pub(super) fn new(process: ProcessIdentity, descriptor: i32) -> Self {
        Self { process, descriptor, sockets: BTreeMap::new(), scans: 0, looked_again: None }
    }

    pub(super) fn params(&self) -> io::Result<EpollParams> {
        EpollParams::read(Descriptors::of(&self.process)?.duplicate(self.descriptor)?)
    }

    /// How many sockets it holds, and for how many of them a queue is known.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.sockets.len(), self.sockets.values().filter(|look| look.napi != 0).count())
    }

    /// Looks at the sockets that are new, and at some of the others again: all of them within some
    /// looks. A socket's NAPI changes when its flow is steered to another queue or its link is
    /// reopened.
    ///
    /// # Errors
    /// `NotFound` if the instance was closed.
    pub(super) fn read_sockets(&mut self, reader: &EpollReader) -> io::Result<()> {
        let present = reader.sockets(self.process.pid, self.descriptor)?;
        let descriptors = Descriptors::of(&self.process)?;
        self.scans += 1;
        let mut seen = BTreeMap::new();
        let mut looks_left = LOOKS;
        let again_after = self.looked_again;
        let mut last_again = None;
        for socket in present {
            let known = self.sockets.get(&socket).copied();
            let due = socket.inode.wrapping_add(self.scans) % RARELY == 0;
            let is_new = known.is_none_or(|look| look.napi == 0 && (look.looks < PATIENCE || due));
            let again =
                known.is_some_and(|look| look.napi != 0) && again_after.is_none_or(|after| socket > after);
            // Half of the looks are for new sockets.
            if looks_left == 0 || !(is_new || again && looks_left > LOOKS / 2) {
                // An unknown socket is looked at next time.
                seen.extend(known.map(|look| (socket, look)));
                continue;
            }
            looks_left -= 1;
            // It may have been closed meanwhile.
            let Ok(duplicate) = descriptors.duplicate(socket.descriptor) else { continue };
            let napi = incoming_napi_id(&duplicate);
            drop(duplicate);
            if again && !is_new {
                last_again = Some(socket);
            }
            let looks = known.map_or(1, |look| look.looks.saturating_add(1));
            seen.insert(socket, Look { napi, looks });
        }
        self.looked_again = last_again;
        self.sockets = seen;
        Ok(())
    }

    pub(super) fn holds(&self, queues: &QueueMap) -> Holds {
        let mut counts: BTreeMap<QueueName, usize> = BTreeMap::new();
        for look in self.sockets.values() {
            // Reopening a link gives its queues new NAPIs. A socket keeps the old NAPI's id until
            // its next packet arrives, and that id is in no map: such a socket doesn't count.
            if let Some(queue) = queues.queue(look.napi) {
                *counts.entry(queue.clone()).or_default() += 1;
            }
        }
        let mut counts: Vec<(QueueName, usize)> = counts.into_iter().collect();
        match (counts.pop(), counts.is_empty()) {
            (None, _) => Holds::Nothing,
            (Some((only, _)), true) => Holds::One(only),
            (Some(last), false) => {
                counts.push(last);
                Holds::Several(counts)
            }
        }
    }

    /// Whether a socket has a NAPI that the map does not know.
    pub(super) fn has_unknown_napi(&self, queues: &QueueMap) -> bool {
        self.sockets.values().any(|look| look.napi != 0 && queues.queue(look.napi).is_none())
    }
}

/// Whether the instance is in another one of the process: a wait on that one never polls, but
/// suspends.
pub(super) fn is_nested(reader: &EpollReader, pid: u32, descriptor: i32, epolls: &[i32]) -> bool {
    let holds_it = |other: &&i32| {
        **other != descriptor && reader.descriptors(pid, **other).is_ok_and(|held| held.contains(&descriptor))
    };
    epolls.iter().any(|other| holds_it(&other))
}
