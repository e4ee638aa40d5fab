//! Steers connections to the listener of the worker that owns their receive queue.

use std::io;
use std::sync::{Mutex, PoisonError};

use socket2::Socket;

use crate::sockopt;

/// A reuseport group's steering program, and its correction.
///
/// The queue number that the program reads is one too high on hardware and right on veth, so that connections
/// may arrive a constant number of workers beside their owner.
pub(super) struct Steering {
    listeners: u32,
    state: Mutex<SteeringState>,
}

#[derive(Default)]
struct SteeringState {
    /// What the program adds to the queue number.
    shift: u32,
    /// How many workers beside its owner the last connection arrived.
    error: u32,
    /// How many connections in a row had that error.
    streak: u32,
}

/// After this many connections in a row with the same error, the error is systematic.
const STREAK: u32 = 8;

impl Steering {
    /// Attaches the program to the reuseport group of `listener`, which has a listener for each worker.
    pub(super) fn attach(listener: &Socket, listeners: u32) -> io::Result<Self> {
        sockopt::steer_by_queue(listener, listeners, 0)?;
        Ok(Self { listeners, state: Mutex::default() })
    }

    /// Records that a connection arrived at worker `here` and belongs to worker `owner`.
    pub(super) fn observe(&self, listener: &Socket, here: usize, owner: usize) {
        let count = self.listeners;
        let error = (owner as u32 + count - here as u32) % count;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if error == 0 || error != state.error {
            (state.error, state.streak) = (error, u32::from(error != 0));
            return;
        }
        state.streak += 1;
        if state.streak == STREAK {
            let shift = (state.shift + error) % count;
            if sockopt::steer_by_queue(listener, count, shift).is_ok() {
                *state = SteeringState { shift, ..SteeringState::default() };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_constant_error_is_corrected_after_a_streak_and_an_accident_is_not() {
        let socket = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        socket.listen(1).unwrap();
        let steering = Steering { listeners: 3, state: Mutex::default() };
        let shift = || steering.state.lock().unwrap().shift;
        for _ in 0..STREAK - 1 {
            steering.observe(&socket, 1, 0);
        }
        steering.observe(&socket, 1, 1);
        assert_eq!(shift(), 0);
        for _ in 0..STREAK {
            steering.observe(&socket, 1, 0);
        }
        assert_eq!(shift(), 2);
    }
}
