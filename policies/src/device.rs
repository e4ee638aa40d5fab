//! An interface whose knobs are being turned.

use std::cell::RefCell;
use std::io;

use rustix::thread::Pid;

use crate::irq::Direction;
use crate::netlink::netdev::{Napi, Netdev};
use crate::{Interface, host};

/// An interface by name and index. Looks its queues up once, and again after a change that can move
/// them.
pub(crate) struct Device {
    name: String,
    index: u32,
    queues: RefCell<Option<Interface>>,
}

fn gone(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, what)
}

impl Device {
    pub(crate) fn new(name: &str, index: u32) -> Self {
        Self { name: name.to_owned(), index, queues: RefCell::new(None) }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The interface's index, if the name still means the interface that it meant.
    ///
    /// # Errors
    /// `NotFound` where it is gone, was renamed, or was moved to another network namespace.
    pub(crate) fn present_index(&self) -> io::Result<u32> {
        match rustix::net::netdevice::index_to_name_inlined(
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?,
            self.index,
        ) {
            Ok(name) if name.as_str() == self.name => Ok(self.index),
            Ok(name) => Err(gone(format!("{} is called {name} now", self.name))),
            Err(_) => Err(gone(format!("{} is gone, or another interface by now", self.name))),
        }
    }

    /// Has the queues looked up again.
    pub(crate) fn forget(&self) {
        self.queues.replace(None);
    }

    fn with_queues<R>(&self, ask: impl FnOnce(&Interface) -> Option<R>, what: &str) -> io::Result<R> {
        let mut queues = self.queues.borrow_mut();
        if queues.is_none() {
            let index = self.present_index()?;
            *queues = Some(host::interface_at(index).map_err(io::Error::other)?);
        }
        queues.as_ref().and_then(ask).ok_or_else(|| gone(format!("{} has no {what}", self.name)))
    }

    pub(crate) fn napi(&self, queue: u32) -> io::Result<Napi> {
        self.with_queues(
            |interface| interface.queues.iter().find(|found| found.index == queue)?.napi.clone(),
            &format!("NAPI for rx-{queue}"),
        )
    }

    /// The interrupt that a queue has now.
    pub(crate) fn irq(&self, queue: u32, direction: Direction) -> io::Result<u32> {
        self.with_queues(
            |interface| match direction {
                Direction::Rx => interface.queues.iter().find(|found| found.index == queue)?.irq,
                Direction::Tx => interface.tx_queues.iter().find(|found| found.index == queue)?.irq,
            },
            &format!("interrupt for queue {queue}"),
        )
    }

    /// The NAPI as the kernel reports it now, not as it was when the queues were listed.
    pub(crate) fn fresh_napi(&self, queue: u32) -> io::Result<Napi> {
        let id = self.napi(queue)?.id;
        let mut netdev = Netdev::open()?;
        netdev.napi(id).or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            // A link that was reopened has given its queues other NAPIs.
            self.forget();
            netdev.napi(self.napi(queue)?.id)
        })
    }

    pub(crate) fn napi_thread(&self, queue: u32) -> io::Result<Pid> {
        self.fresh_napi(queue)?
            .pid
            .and_then(|pid| Pid::from_raw(pid as i32))
            .ok_or_else(|| gone("the NAPI has no thread".to_owned()))
    }
}
