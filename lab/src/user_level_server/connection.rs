//! One client's connection: a TCP socket of smoltcp, and the session of the memcached server.

use servers::memcached::sessions::{ClientSession, SessionProgress};
use smoltcp::iface::{Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{self, CongestionControl, Socket, SocketBuffer};
use smoltcp::time::Instant;

use super::link::{FrameSink, HardwareAddress, Peer, Port};

/// Bytes of the socket's buffers. What doesn't fit waits.
const RECEIVE_BUFFER: usize = 16 << 10;
const SEND_BUFFER: usize = 32 << 10;

/// A connection, or one that can be reused.
pub(super) struct Connection<'s> {
    /// With this connection's socket alone: smoltcp looks at all sockets of a set for each packet.
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    session: ClientSession<'s>,
    /// Replies, of which `sent` bytes are in the socket's buffer.
    replies: Vec<u8>,
    sent: usize,
    progress: SessionProgress,
    pub(super) peer: Peer,
    pub(super) hardware: HardwareAddress,
}

impl<'s> Connection<'s> {
    pub(super) fn new(session: ClientSession<'s>, peer: Peer, hardware: HardwareAddress) -> Self {
        let mut socket =
            Socket::new(SocketBuffer::new(vec![0; RECEIVE_BUFFER]), SocketBuffer::new(vec![0; SEND_BUFFER]));
        // As the kernel's server: replies are sent at once, with the testbed's congestion control.
        socket.set_nagle_enabled(false);
        socket.set_congestion_control(CongestionControl::Reno);
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let handle = sockets.add(socket);
        let progress = SessionProgress::AwaitsInput;
        Self { sockets, handle, session, replies: Vec::new(), sent: 0, progress, peer, hardware }
    }

    /// Makes it a new connection, with the memory of the one that has ended.
    pub(super) fn renew(&mut self, session: ClientSession<'s>, peer: Peer, hardware: HardwareAddress) {
        (self.session, self.peer, self.hardware) = (session, peer, hardware);
        self.replies.clear();
        (self.sent, self.progress) = (0, SessionProgress::AwaitsInput);
    }

    /// Awaits the peer's first segment.
    pub(super) fn listen(&mut self, port: u16) -> Result<(), tcp::ListenError> {
        let socket = self.socket();
        socket.abort();
        socket.listen(port)
    }

    pub(super) fn is_closed(&self) -> bool {
        // One that has got no segment that opens it goes on listening.
        matches!(
            self.sockets.get::<Socket<'_>>(self.handle).state(),
            tcp::State::Closed | tcp::State::Listen | tcp::State::TimeWait
        )
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Has TCP handle the packet that `port` received, if there is one, the session execute what has arrived, and TCP send
    /// what is to be sent now.
    #[inline]
    pub(super) fn serve<S: FrameSink>(
        &mut self,
        interface: &mut Interface,
        port: &mut Port<'_, S>,
        now: Instant,
    ) {
        if port.received.is_some() {
            interface.poll_ingress_single(now, port, &mut self.sockets);
            self.execute();
        }
        while interface.poll_egress(now, port, &mut self.sockets) == PollResult::SocketStateChanged {}
    }

    /// Executes requests, until there are none or their replies have no room.
    pub(super) fn execute(&mut self) {
        let Self { sockets, handle, session, replies, sent, progress, .. } = self;
        let socket = sockets.get_mut::<Socket<'_>>(*handle);
        loop {
            if *sent < replies.len() {
                // Fails on a connection that is closed, whose replies nobody awaits.
                *sent += socket.send_slice(&replies[*sent..]).unwrap_or(replies.len() - *sent);
                if *sent < replies.len() {
                    return;
                }
                replies.clear();
                *sent = 0;
            }
            match *progress {
                SessionProgress::Closes => return socket.close(),
                SessionProgress::AwaitsSending => *progress = session.execute(&[], replies),
                SessionProgress::AwaitsInput => {
                    let executed = socket.recv(|input| {
                        let executed =
                            if input.is_empty() { None } else { Some(session.execute(input, replies)) };
                        (input.len(), executed)
                    });
                    match executed {
                        Ok(Some(executed)) => *progress = executed,
                        Ok(None) => return,
                        // The client has closed its side, or the connection is gone.
                        Err(tcp::RecvError::Finished) => return socket.close(),
                        Err(tcp::RecvError::InvalidState) => return,
                    }
                }
            }
        }
    }
}
