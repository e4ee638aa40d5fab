//! Steers new connections of a server with a listener for each queue, so that each listener gets
//! one queue's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use rustix::net::{getsockname, sockopt};

use super::event::AttachEvent;
use super::process::EpollReader;
use crate::apply::Steering;
use crate::error::Error;
use crate::host::process::ProcessIdentity;
use crate::host::{Interface, interface, interface_of_address};
use crate::journal::JournalDir;
use crate::pidfd::Descriptors;

/// Listeners by their address; each as a process's descriptor, by its inode.
type Groups = BTreeMap<SocketAddr, BTreeMap<u64, (ProcessIdentity, i32)>>;

/// The groups of listeners that were steered, until this is dropped.
#[derive(Debug, Default)]
pub(super) struct Steerer {
    steered: BTreeMap<SocketAddr, Steered>,
    /// Addresses that can't be steered with this number of listeners.
    refused: BTreeMap<SocketAddr, usize>,
    /// The inodes of sockets that are no listeners, and are not looked at again.
    others: BTreeSet<u64>,
}

#[derive(Debug)]
struct Steered {
    process: ProcessIdentity,
    inode: u64,
    _steering: Steering,
}

impl Steered {
    /// Whether the address has another group now: the server was restarted, or has opened new
    /// listeners.
    fn is_replaced(&self, listeners: Option<&BTreeMap<u64, (ProcessIdentity, i32)>>) -> bool {
        !self.process.is_alive() || listeners.is_some_and(|listeners| !listeners.contains_key(&self.inode))
    }
}

impl Steerer {
    /// Steers the groups that are not steered yet. Returns what it did.
    pub(super) fn steer(
        &mut self,
        epolls: &[(ProcessIdentity, i32)],
        reader: &EpollReader,
        only: Option<&str>,
        journals: &JournalDir,
    ) -> Vec<AttachEvent> {
        let mut events = Vec::new();
        let groups = self.groups(epolls, reader);
        self.steered.retain(|address, steered| !steered.is_replaced(groups.get(address)));
        for (address, listeners) in groups {
            let count = listeners.len();
            let refused = self.refused.get(&address) == Some(&count);
            if count < 2 || refused || self.steered.contains_key(&address) {
                continue;
            }
            match steer(address, listeners, only, journals) {
                Ok(steering) => {
                    self.steered.insert(address, steering);
                    events.push(AttachEvent::Steered { address, listeners: count });
                }
                Err(reason) => {
                    self.refused.insert(address, count);
                    events.push(AttachEvent::NotSteered { address, reason });
                }
            }
        }
        events
    }

    /// The listeners with `SO_REUSEPORT` in epoll instances.
    fn groups(&mut self, epolls: &[(ProcessIdentity, i32)], reader: &EpollReader) -> Groups {
        let mut groups = Groups::new();
        let mut others = BTreeSet::new();
        for (process, epoll) in epolls {
            let Ok(descriptors) = Descriptors::of(process) else { continue };
            for socket in reader.sockets(process.pid, *epoll).unwrap_or_default() {
                if self.others.contains(&socket.inode) {
                    others.insert(socket.inode);
                    continue;
                }
                // It may have been closed.
                let Ok(duplicate) = descriptors.duplicate(socket.descriptor) else { continue };
                let listens = sockopt::socket_acceptconn(&duplicate).unwrap_or(false)
                    && sockopt::socket_reuseport(&duplicate).unwrap_or(false);
                let address = getsockname(&duplicate).ok().and_then(|address| address.try_into().ok());
                if let (true, Some(address)) = (listens, address) {
                    let group: &mut BTreeMap<_, _> = groups.entry(address).or_default();
                    group.insert(socket.inode, (process.clone(), socket.descriptor));
                } else {
                    others.insert(socket.inode);
                }
            }
        }
        self.others = others;
        groups
    }
}

fn steer(
    address: SocketAddr,
    listeners: BTreeMap<u64, (ProcessIdentity, i32)>,
    only: Option<&str>,
    journals: &JournalDir,
) -> Result<Steered, String> {
    let found = match only {
        Some(name) => interface(name).map(Some),
        None => interface_of_address(address.ip()),
    };
    let interface: Interface = found
        .map_err(|error| error.to_string())?
        .ok_or("it is not known through which interface its connections come; name one with --interface")?;
    let (queues, count) = (interface.queues.len(), listeners.len());
    if queues != count {
        return Err(format!(
            "it has {count} listeners, and {} has {queues} queues; both numbers must be the same",
            interface.name
        ));
    }
    let (inode, (process, descriptor)) = listeners.into_iter().next().ok_or("it has no listener")?;
    let steering = Steering::new(&interface, journals).map_err(|error: Error| error.to_string())?;
    // The program is the group's, not the listener's.
    let count = u32::try_from(count).map_err(|error| error.to_string())?;
    steering.steer(&process, descriptor, count).map_err(|error| error.to_string())?;
    Ok(Steered { process, inode, _steering: steering })
}
