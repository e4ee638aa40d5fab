//! The echo server as a loop on mio, without tasks or wakers: what somebody writes by hand.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpListener as StdListener;

use ::mio::net::{TcpListener, TcpStream};
use ::mio::{Events, Interest, Poll, Token};

use super::spec::{READ_BUFFER, RequestCounter, RequestShape};

const LISTENER: Token = Token(usize::MAX);

struct Connection {
    stream: TcpStream,
    requests: RequestCounter,
    /// Replies for which the socket's send buffer had no room.
    unsent: Vec<u8>,
}

impl Connection {
    /// Answers what has arrived. `Ok` at the end of the stream.
    fn serve(&mut self, buffer: &mut [u8], is_read_closed: bool) -> io::Result<()> {
        loop {
            while !self.unsent.is_empty() {
                let sent = self.stream.write(&self.unsent)?;
                self.unsent.drain(..sent);
            }
            let length = self.stream.read(buffer)?;
            if length == 0 {
                return Ok(());
            }
            let replies = self.requests.replies(length);
            let sent = match self.stream.write(replies) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                sent => sent?,
            };
            self.unsent.extend_from_slice(&replies[sent..]);
            // A short read has emptied a stream's buffer: more bytes are another event (epoll(7)).
            if length < buffer.len() && self.unsent.is_empty() && !is_read_closed {
                return Err(ErrorKind::WouldBlock.into());
            }
        }
    }
}

pub(super) fn serve(listener: StdListener, shape: RequestShape) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut listener = TcpListener::from_std(listener);
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1024));
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut buffer = [0; READ_BUFFER];
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            result => result?,
        }
        for event in &events {
            if event.token() == LISTENER {
                accept(&listener, &poll, shape, &mut connections)?;
            } else if let Some(place) = connections.get_mut(event.token().0)
                && let Some(connection) = place
            {
                let ended = connection.serve(&mut buffer, event.is_read_closed());
                if !ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                    *place = None;
                }
            }
        }
    }
}

/// Accepts until no connection waits: mio reports only that some have come.
fn accept(
    listener: &TcpListener,
    poll: &Poll,
    shape: RequestShape,
    connections: &mut Vec<Option<Connection>>,
) -> io::Result<()> {
    loop {
        let mut stream = match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            accepted => accepted?.0,
        };
        stream.set_nodelay(true)?;
        let token = Token(connections.len());
        poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
        connections.push(Some(Connection {
            stream,
            requests: RequestCounter::new(shape),
            unsent: Vec::new(),
        }));
    }
}
