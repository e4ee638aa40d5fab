//! All connections, and which of them a frame belongs to.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::Ipv4Addr;

use foldhash::fast::RandomState;
use servers::memcached::sessions::Sessions;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress as InterfaceAddress, IpCidr};

use super::connection::Connection;
use super::link::{FrameSink, HardwareAddress, Peer, Port, ReceivedFrame};

/// The server's end of all connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Endpoint {
    pub(super) address: Ipv4Addr,
    pub(super) prefix_length: u8,
    pub(super) port: u16,
    pub(super) hardware: HardwareAddress,
}

/// The connections of a server.
pub(super) struct Connections<'s> {
    endpoint: Endpoint,
    sessions: &'s Sessions,
    interface: Interface,
    indices: HashMap<Peer, usize, RandomState>,
    connections: Vec<Connection<'s>>,
    /// Those that have ended.
    free: Vec<usize>,
    /// Index of the connection whose timers are checked next.
    next: usize,
    /// Without sockets: what belongs to no connection is answered with a reset.
    nobody: SocketSet<'static>,
}

impl<'s> Connections<'s> {
    pub(super) fn new<S: FrameSink>(endpoint: Endpoint, sessions: &'s Sessions, sink: &mut S) -> Self {
        let mut port = Port { received: None, sink, own: endpoint.hardware, peer: endpoint.hardware };
        let mut interface =
            Interface::new(Config::new(InterfaceAddress::Ip), &mut port, Instant::from_micros(0));
        interface.update_ip_addrs(|addresses| {
            // There is room for one.
            let _ = addresses.push(IpCidr::new(endpoint.address.into(), endpoint.prefix_length));
        });
        Self {
            endpoint,
            sessions,
            interface,
            indices: HashMap::default(),
            connections: Vec::new(),
            free: Vec::new(),
            next: 0,
            nobody: SocketSet::new(Vec::new()),
        }
    }

    /// Handles a frame, and sends what answers it.
    #[inline]
    pub(super) fn receive<S: FrameSink>(&mut self, frame: &[u8], sink: &mut S, now: Instant) {
        let Some(frame) = ReceivedFrame::parse(frame) else { return };
        let mut port =
            Port { received: Some(frame.packet), sink, own: self.endpoint.hardware, peer: frame.hardware };
        let index = match self.indices.get(&frame.peer) {
            Some(&index) => index,
            None if frame.opens => match self.open(&frame) {
                Some(index) => index,
                None => return,
            },
            None => {
                self.interface.poll_ingress_single(now, &mut port, &mut self.nobody);
                return;
            }
        };
        let connection = &mut self.connections[index];
        connection.serve(&mut self.interface, &mut port, now);
        if connection.is_closed() {
            self.close(index);
        }
    }

    /// Looks after the timers of one connection: what is to be sent again, acknowledged late, or had no room.
    #[inline]
    pub(super) fn look_after_one<S: FrameSink>(&mut self, sink: &mut S, now: Instant) {
        let Some(connection) = self.connections.get_mut(self.next) else {
            self.next = 0;
            return;
        };
        let index = self.next;
        self.next += 1;
        if self.indices.get(&connection.peer) != Some(&index) {
            return;
        }
        let (own, peer) = (self.endpoint.hardware, connection.hardware);
        connection.execute();
        connection.serve(&mut self.interface, &mut Port { received: None, sink, own, peer }, now);
        if connection.is_closed() {
            self.close(index);
        }
    }

    fn open(&mut self, frame: &ReceivedFrame<'_>) -> Option<usize> {
        let session = self.sessions.open();
        let index = match self.free.pop() {
            Some(index) => {
                self.connections[index].renew(session, frame.peer, frame.hardware);
                index
            }
            None => {
                self.connections.push(Connection::new(session, frame.peer, frame.hardware));
                self.connections.len() - 1
            }
        };
        if self.connections[index].listen(self.endpoint.port).is_err() {
            // Fails only for port 0.
            self.free.push(index);
            return None;
        }
        self.indices.insert(frame.peer, index);
        Some(index)
    }

    fn close(&mut self, index: usize) {
        if self.indices.remove(&self.connections[index].peer).is_some() {
            self.free.push(index);
        }
    }
}
