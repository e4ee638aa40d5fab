//! Which queue a NAPI id belongs to.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::error::Error;
use crate::host::{Interface, interfaces};

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
