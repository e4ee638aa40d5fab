//! Steers connections to the listener of the worker that owns their receive queue.

use std::io;
use std::sync::{Mutex, PoisonError};

use runtime::__net::OwnedQueue;
use socket2::Socket;

use crate::sockopt;

/// A reuseport group's steering program.
///
/// The queue number that the program reads is one too high on hardware and right on veth. It starts
/// with what holds for the interface's driver. Accepted connections tell whether that is wrong:
/// each has a NAPI, and with it a queue, and came to a listener that a program has chosen.
pub(super) struct Steering {
    queues: Vec<OwnedQueue>,
    listeners: u32,
    state: Mutex<SteeringState>,
}

#[derive(Default)]
struct SteeringState {
    /// How much the numbers that packets have are taken to be too high: 0 or 1.
    offset: u32,
    /// Whether the program was replaced: connections that were queued before came by the old one.
    replaced: bool,
    /// How many connections in a row only the other offset explains.
    streak: u32,
}

/// Which member of a group the packets with each number go to: worker `i` has the `i`-th.
fn table(queues: &[OwnedQueue], offset: u32) -> Vec<(u32, u32)> {
    queues.iter().map(|owned| (owned.queue + offset, owned.worker as u32)).collect()
}

/// Makes a group of datagram sockets, of which worker `i` has the `i`-th, choose by receive queue.
/// Datagrams of loopback, which can't be handed over as connections are, are left to the kernel's
/// hash.
pub(super) fn steer_datagrams(socket: &Socket, queues: &[OwnedQueue], sockets: usize) -> io::Result<()> {
    sockopt::steer_by_queue(
        socket,
        &table(queues, runtime::__net::first_queue_number()),
        sockets as u32,
        true,
    )
}

/// After this many connections in a row that only the other offset explains, it is taken.
const STREAK: u32 = 8;

impl Steering {
    /// Attaches the program to the reuseport group of `listener`, which has a listener for each
    /// worker.
    pub(super) fn attach(listener: &Socket, queues: Vec<OwnedQueue>, listeners: u32) -> io::Result<Self> {
        let offset = runtime::__net::first_queue_number();
        let state = Mutex::new(SteeringState { offset, ..SteeringState::default() });
        let steering = Self { queues, listeners, state };
        steering.set_program(listener, offset)?;
        Ok(steering)
    }

    fn set_program(&self, listener: &Socket, offset: u32) -> io::Result<()> {
        sockopt::steer_by_queue(listener, &table(&self.queues, offset), self.listeners, false)
    }

    /// The listener that a program chooses for a packet with this number.
    fn chosen(&self, offset: u32, number: u32) -> usize {
        let queue = number.checked_sub(offset);
        let owned = queue.and_then(|queue| self.queues.iter().find(|owned| owned.queue == queue));
        owned.map_or(number as usize % self.listeners as usize, |owned| owned.worker)
    }

    /// Records that a connection of a NAPI arrived at worker `here`.
    pub(super) fn observe(&self, listener: &Socket, here: usize, napi: u32) {
        let Some(owned) = self.queues.iter().find(|owned| owned.napi == napi) else { return };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.suggests_other_offset(&mut state, here, owned.queue) {
            let offset = 1 - state.offset;
            if self.set_program(listener, offset).is_ok() {
                *state = SteeringState { offset, replaced: true, streak: 0 };
            }
        }
    }

    /// Whether the other offset must be the right one, because only it explains the last
    /// connections. A connection may have come by the present program or by the one before, so that
    /// one of those queued before a replacement is no evidence against the new offset.
    fn suggests_other_offset(&self, state: &mut SteeringState, here: usize, queue: u32) -> bool {
        let explains = |offset: u32| {
            self.chosen(state.offset, queue + offset) == here
                || state.replaced && self.chosen(1 - state.offset, queue + offset) == here
        };
        match (explains(state.offset), explains(1 - state.offset)) {
            (false, true) => state.streak += 1,
            (true, false) => state.streak = 0,
            // It tells nothing.
            (true, true) | (false, false) => {}
        }
        state.streak >= STREAK
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use socket2::{Domain, Type};

    use super::*;

    fn steering(queues: &[u32], listeners: u32) -> Steering {
        let queues = queues.iter().enumerate();
        let owned = |(position, &queue): (usize, &u32)| {
            let mut owned = runtime::__net::OwnedQueue::default();
            (owned.queue, owned.napi, owned.worker) = (queue, 100 + queue, position % listeners as usize);
            owned
        };
        Steering { queues: queues.map(owned).collect(), listeners, state: Mutex::default() }
    }

    fn listening(address: SocketAddr) -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&address.into()).unwrap();
        socket.listen(16).unwrap();
        socket
    }

    fn local() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    /// A packet of each queue in turn arrives, `offset` too high; returns how many came to the
    /// wrong worker.
    fn arrive(steering: &Steering, listener: &Socket, offset: u32, packets: usize) -> usize {
        let mut wrong = 0;
        for owned in steering.queues.iter().cycle().take(packets) {
            let program = steering.state.lock().unwrap().offset;
            let here = steering.chosen(program, owned.queue + offset);
            wrong += usize::from(here != owned.worker);
            steering.observe(listener, here, owned.napi);
        }
        wrong
    }

    #[test]
    fn each_queue_gets_its_worker_whether_numbers_are_right_or_one_too_high() {
        let listener = listening(local());
        for queues in [vec![0, 1], vec![0, 2], vec![1, 2, 5], vec![0, 1, 2, 3]] {
            for offset in [0, 1] {
                let steering = steering(&queues, 2);
                arrive(&steering, &listener, offset, 100);
                assert_eq!(arrive(&steering, &listener, offset, 100), 0, "{queues:?}, {offset} too high");
                assert_eq!(steering.state.lock().unwrap().offset, offset);
            }
        }
    }

    #[test]
    fn connections_that_came_by_the_old_program_do_not_change_the_new_one() {
        let listener = listening(local());
        for queues in [vec![0, 1], vec![0, 2], vec![0, 1, 2]] {
            let steering = steering(&queues, queues.len() as u32);
            arrive(&steering, &listener, 1, 100);
            assert_eq!(steering.state.lock().unwrap().offset, 1);
            // A backlog of them, which the program for numbers that are right has chosen.
            for owned in steering.queues.iter().cycle().take(4096) {
                steering.observe(&listener, steering.chosen(0, owned.queue + 1), owned.napi);
            }
            assert_eq!(steering.state.lock().unwrap().offset, 1, "{queues:?}");
        }
    }

    #[test]
    fn the_kernel_chooses_the_listener_by_the_table() {
        // Packets of loopback have queue 0.
        for table in [vec![(0, 1)], vec![(7, 0), (0, 1)], vec![(7, 1), (0, 0)]] {
            let first = listening(local());
            let address = first.local_addr().unwrap().as_socket().unwrap();
            let second = listening(address);
            sockopt::steer_by_queue(&first, &table, 2, false).unwrap();
            let expected = table.iter().find(|(queue, _)| *queue == 0).unwrap().1;
            let (chosen, other) = if expected == 0 { (&first, &second) } else { (&second, &first) };
            for socket in [chosen, other] {
                socket.set_nonblocking(true).unwrap();
            }
            let clients: Vec<_> = (0..16).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
            assert!(clients.iter().all(|_| chosen.accept().is_ok()), "{table:?}");
            assert!(other.accept().is_err(), "{table:?}");
        }
    }
}
