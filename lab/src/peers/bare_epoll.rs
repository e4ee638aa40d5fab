//! The echo server as an epoll loop, without tasks or wakers.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::request_shape::{READ_BUFFER, RequestCounter, RequestShape};

struct Connection {
    stream: TcpStream,
    requests: RequestCounter,
    /// Replies for which the socket's send buffer had no room.
    unsent: Vec<u8>,
}

impl Connection {
    /// Reads once and replies. Returns whether the connection stays open.
    fn serve(&mut self, buffer: &mut [u8]) -> bool {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        match self.stream.read(buffer) {
            Ok(0) => false,
            Ok(length) => {
                let replies = self.requests.replies(length);
                match self.stream.write(replies) {
                    Ok(sent) => self.unsent.extend_from_slice(&replies[sent..]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.unsent.extend_from_slice(replies);
                    }
                    Err(_) => return false,
                }
                true
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

pub(super) fn serve(listener: &TcpListener, shape: RequestShape) -> io::Result<()> {
    let instance = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&instance, listener.as_fd(), EventData::new_u64(0), EventFlags::IN)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events: Vec<Event> = Vec::with_capacity(1024);
    let mut buffer = [0; READ_BUFFER];
    loop {
        events.clear();
        match epoll::wait(&instance, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let Some(index) = usize::try_from(event.data.u64()).ok().and_then(|data| data.checked_sub(1))
            else {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                let data = EventData::new_u64(connections.len() as u64 + 1);
                epoll::add(&instance, stream.as_fd(), data, EventFlags::IN)?;
                let requests = RequestCounter::new(shape);
                connections.push(Some(Connection { stream, requests, unsent: Vec::new() }));
                continue;
            };
            if let Some(connection) = &mut connections[index]
                && !connection.serve(&mut buffer)
            {
                connections[index] = None;
            }
        }
    }
}
