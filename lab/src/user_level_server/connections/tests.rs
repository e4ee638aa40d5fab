//! The server's side against smoltcp's as the client, over a wire in memory.

use std::collections::VecDeque;

use servers::memcached::Config as MemcachedConfig;
use smoltcp::iface::{PollResult, SocketHandle};
use smoltcp::socket::tcp::{Socket, SocketBuffer};

use super::*;

const SERVER: HardwareAddress = [2, 0, 0, 0, 0, 1];
const CLIENT: HardwareAddress = [2, 0, 0, 0, 0, 2];
const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const PORT: u16 = 11211;

/// Frames on their way.
#[derive(Default)]
struct Wire {
    frames: VecDeque<Vec<u8>>,
    sent: usize,
    /// Drops every n-th frame; 0 drops none.
    lost_of: usize,
}

impl FrameSink for Wire {
    fn has_room(&mut self) -> bool {
        self.frames.len() < 8
    }

    fn write<R>(&mut self, length: usize, write: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut frame = vec![0; length];
        let result = write(&mut frame);
        self.sent += 1;
        if self.lost_of == 0 || !self.sent.is_multiple_of(self.lost_of) {
            self.frames.push_back(frame);
        }
        result
    }
}

struct Network<'s> {
    server: Connections<'s>,
    to_server: Wire,
    to_client: Wire,
    client: Interface,
    sockets: SocketSet<'static>,
    millis: i64,
    next_port: u16,
}

fn port<'a>(sink: &'a mut Wire, received: Option<&'a [u8]>) -> Port<'a, Wire> {
    Port { received, sink, own: CLIENT, peer: SERVER }
}

impl<'s> Network<'s> {
    fn new(sessions: &'s Sessions, lost_of: usize) -> Self {
        let wire = || Wire { lost_of, ..Wire::default() };
        let (mut to_server, mut to_client) = (wire(), wire());
        let endpoint = Endpoint { address: ADDRESS, prefix_length: 29, port: PORT, hardware: SERVER };
        let server = Connections::new(endpoint, sessions, &mut to_client);
        let config = Config::new(InterfaceAddress::Ip);
        let mut client = Interface::new(config, &mut port(&mut to_server, None), Instant::from_micros(0));
        client.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(Ipv4Addr::new(198, 18, 0, 2).into(), 29)).unwrap();
        });
        let sockets = SocketSet::new(Vec::new());
        Self { server, to_server, to_client, client, sockets, millis: 0, next_port: 2000 }
    }

    fn connect(&mut self) -> SocketHandle {
        let buffer = || SocketBuffer::new(vec![0; 4096]);
        let mut socket = Socket::new(buffer(), buffer());
        self.next_port += 1;
        socket.connect(self.client.context(), (ADDRESS, PORT), self.next_port).unwrap();
        self.sockets.add(socket)
    }

    /// A millisecond: everything that was sent arrives, unless it is lost.
    fn step(&mut self) {
        self.millis += 1;
        let now = Instant::from_millis(self.millis);
        while self.client.poll_egress(now, &mut port(&mut self.to_server, None), &mut self.sockets)
            == PollResult::SocketStateChanged
        {}
        while let Some(frame) = self.to_server.frames.pop_front() {
            self.server.receive(&frame, &mut self.to_client, now);
        }
        for _ in 0..=self.server.connections.len() {
            self.server.look_after_one(&mut self.to_client, now);
        }
        while let Some(frame) = self.to_client.frames.pop_front() {
            assert_eq!((&frame[..6], &frame[6..12]), (&CLIENT[..], &SERVER[..]));
            let mut port = port(&mut self.to_server, Some(&frame[14..]));
            self.client.poll_ingress_single(now, &mut port, &mut self.sockets);
        }
    }

    fn socket(&mut self, handle: SocketHandle) -> &mut Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Sends a request on each connection, and checks the replies.
    fn ask(&mut self, requests: &[(SocketHandle, Vec<u8>, Vec<u8>)]) {
        let mut sent = vec![0; requests.len()];
        let mut received = vec![Vec::new(); requests.len()];
        for _ in 0..200_000 {
            for (at, (handle, request, _)) in requests.iter().enumerate() {
                let socket = self.socket(*handle);
                if socket.can_send() {
                    sent[at] += socket.send_slice(&request[sent[at]..]).unwrap();
                }
                if socket.can_recv() {
                    let reply = &mut received[at];
                    socket.recv(|bytes| (bytes.len(), reply.extend_from_slice(bytes))).unwrap();
                }
            }
            if requests.iter().zip(&received).all(|((.., reply), received)| received.len() >= reply.len()) {
                break;
            }
            self.step();
        }
        for ((handle, _, reply), received) in requests.iter().zip(&received) {
            let difference = reply.iter().zip(received).position(|(a, b)| a != b);
            assert_eq!((difference, received.len()), (None, reply.len()), "{handle}");
        }
    }
}

fn sessions() -> Sessions {
    Sessions::new(&MemcachedConfig { memory: 32 << 20, ..MemcachedConfig::default() }).unwrap()
}

/// Stores a value of its own on each connection, and asks for it on the next one.
fn store_and_get(network: &mut Network<'_>, clients: usize, length: usize) {
    let value = |client: usize| vec![b'a' + (client % 26) as u8; length + client];
    let handles: Vec<SocketHandle> = (0..clients).map(|_| network.connect()).collect();
    let sets = handles.iter().enumerate().map(|(client, handle)| {
        let value = value(client);
        let set = format!("set key{client} 0 0 {}\r\n", value.len());
        (*handle, [set.as_bytes(), &value, b"\r\n"].concat(), b"STORED\r\n".to_vec())
    });
    network.ask(&sets.collect::<Vec<_>>());
    let gets = handles.iter().enumerate().map(|(at, handle)| {
        let client = (at + 1) % clients;
        let value = value(client);
        let head = format!("VALUE key{client} 0 {}\r\n", value.len());
        let get = format!("get key{client}\r\n").into_bytes();
        (*handle, get, [head.as_bytes(), &value, b"\r\nEND\r\n"].concat())
    });
    network.ask(&gets.collect::<Vec<_>>());
}

#[test]
fn each_client_gets_what_another_has_stored() {
    let sessions = sessions();
    let mut network = Network::new(&sessions, 0);
    store_and_get(&mut network, 40, 10);
    assert_eq!(network.server.indices.len(), 40);
}

#[test]
fn values_larger_than_all_buffers_arrive_also_where_frames_are_lost() {
    for lost_of in [0, 13] {
        let sessions = sessions();
        let mut network = Network::new(&sessions, lost_of);
        store_and_get(&mut network, 3, 100_000);
    }
}

#[test]
fn a_connection_that_ends_is_forgotten_and_its_memory_used_again() {
    let sessions = sessions();
    let mut network = Network::new(&sessions, 0);
    for round in 0..6 {
        let handle = network.connect();
        network.ask(&[(handle, b"get a\r\n".to_vec(), b"END\r\n".to_vec())]);
        assert_eq!(network.server.indices.len(), 1);
        match round % 3 {
            0 => network.socket(handle).close(),
            1 => network.socket(handle).abort(),
            _ => network.ask(&[(handle, b"quit\r\n".to_vec(), Vec::new())]),
        }
        for _ in 0..50 {
            network.step();
        }
        assert!(!network.socket(handle).may_recv(), "{round}");
        if round % 3 == 2 {
            // The server has closed its side, and awaits the client.
            network.socket(handle).close();
            (0..50).for_each(|_| network.step());
        }
        assert_eq!((network.server.indices.len(), network.server.connections.len()), (0, 1), "{round}");
    }
}

#[test]
fn what_belongs_to_no_connection_is_reset() {
    let sessions = sessions();
    let mut network = Network::new(&sessions, 0);
    let handle = network.connect();
    network.ask(&[(handle, b"get a\r\n".to_vec(), b"END\r\n".to_vec())]);
    // As if the server had been started again.
    network.server.indices.clear();
    network.socket(handle).send_slice(b"get a\r\n").unwrap();
    (0..5).for_each(|_| network.step());
    assert!(!network.socket(handle).is_open());
}

#[test]
fn damaged_frames_are_ignored() {
    let sessions = sessions();
    let mut network = Network::new(&sessions, 0);
    network.connect();
    let now = Instant::from_millis(1);
    let _ = network.client.poll_egress(now, &mut port(&mut network.to_server, None), &mut network.sockets);
    let frame = network.to_server.frames.pop_front().unwrap();
    for length in 0..frame.len() {
        network.server.receive(&frame[..length], &mut network.to_client, now);
    }
    assert!(network.to_client.frames.is_empty());
}
