//! An interface whose knobs are read and written.

use std::cell::RefCell;
use std::io;

use super::discover::interface_by_index;
use super::interface::Interface;
use super::irq::Direction;
use super::process::is_napi_thread;
use crate::cpus::Pid;
use crate::netlink::netdev::{Napi, Netdev};

/// An interface by name and index, with its queues cached until [`Device::invalidate_queues`].
pub(crate) struct Device {
    name: String,
    index: u32,
    queues: RefCell<Option<Interface>>,
}

fn not_found(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, what)
}

impl Device {
    pub(crate) fn new(name: &str, index: u32) -> Self {
        Self { name: name.to_owned(), index, queues: RefCell::new(None) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The interface's index, if the index still has the expected name.
    ///
    /// # Errors
    /// `NotFound` if the interface was removed, renamed, or moved to another network namespace.
    pub(crate) fn verified_index(&self) -> io::Result<u32> {
        match rustix::net::netdevice::index_to_name_inlined(
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?,
            self.index,
        ) {
            Ok(name) if name.as_str() == self.name => Ok(self.index),
            Ok(name) => Err(not_found(format!("{} is now named {name}", self.name))),
            Err(_) => Err(not_found(format!("{} no longer exists in this network namespace", self.name))),
        }
    }

    /// Drops the cached queues; the next access reads them again.
    pub(crate) fn invalidate_queues(&self) {
        self.queues.replace(None);
    }

    fn with_queues<R>(&self, find: impl FnOnce(&Interface) -> Option<R>, what: &str) -> io::Result<R> {
        let mut queues = self.queues.borrow_mut();
        if queues.is_none() {
            let index = self.verified_index()?;
            *queues = Some(interface_by_index(index).map_err(io::Error::other)?);
        }
        queues.as_ref().and_then(find).ok_or_else(|| not_found(format!("{} has no {what}", self.name)))
    }

    pub(crate) fn napi(&self, queue: u32) -> io::Result<Napi> {
        self.with_queues(
            |interface| interface.queues.iter().find(|found| found.index == queue)?.napi.clone(),
            &format!("NAPI for rx-{queue}"),
        )
    }

    pub(crate) fn irq(&self, queue: u32, direction: Direction) -> io::Result<u32> {
        self.with_queues(
            |interface| match direction {
                Direction::Rx => interface.queues.iter().find(|found| found.index == queue)?.irq,
                Direction::Tx => interface.tx_queues.iter().find(|found| found.index == queue)?.irq,
            },
            &format!("interrupt for queue {queue}"),
        )
    }

    /// The queue's NAPI with its present settings, not those of when the queues were cached.
    pub(crate) fn fresh_napi(&self, queue: u32) -> io::Result<Napi> {
        let id = self.napi(queue)?.id;
        let mut netdev = Netdev::open()?;
        netdev.napi(id).or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            // The driver may have replaced its NAPIs when the link was reopened.
            self.invalidate_queues();
            netdev.napi(self.napi(queue)?.id)
        })
    }

    pub(crate) fn napi_thread(&self, queue: u32) -> io::Result<Pid> {
        let id = self.fresh_napi(queue)?.pid.ok_or_else(|| not_found("the NAPI has no thread".to_owned()))?;
        let thread = Pid::from_raw(id as i32).filter(|_| is_napi_thread(id));
        thread.ok_or_else(|| {
            not_found(format!("the NAPI's thread {id}, as the kernel has it, is none here, in a container"))
        })
    }
}
