//! Connects a socket without blocking the worker.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use runtime::io::{AsyncFd, Direction, SourceKind};
use socket2::{Domain, SockAddr, Socket, Type};

use super::generic::Stream;

pub(crate) async fn connect<K>(address: &SockAddr, domain: Domain) -> io::Result<Stream<K>> {
    connect_socket(Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None)?, address).await
}

/// How long a Unix domain socket waits before it tries again to get into a full backlog, and the
/// longest time; twice as long each time.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LAST_RETRY: Duration = Duration::from_millis(32);

/// Begins to connect a non-blocking socket. Returns whether it is connected; otherwise that is in
/// progress.
async fn begin_connect(socket: &Socket, address: &SockAddr) -> io::Result<bool> {
    let mut pause = FIRST_RETRY;
    loop {
        match socket.connect(address) {
            Ok(()) => return Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => return Ok(false),
            // Only of Unix domain sockets: the listener's backlog is full. A blocking connect would
            // wait, and no readiness says when there is room (net/unix/af_unix.c,
            // unix_stream_connect).
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                runtime::sleep(pause).await;
                pause = (pause * 2).min(LAST_RETRY);
            }
            Err(error) => return Err(error),
        }
    }
}

pub(crate) async fn connect_socket<K>(socket: Socket, address: &SockAddr) -> io::Result<Stream<K>> {
    if begin_connect(&socket, address).await? {
        return Stream::from_socket(Arc::new(socket));
    }
    // Its NAPI is not known until the first packet has come in.
    let connecting = AsyncFd::new(socket, SourceKind::Other)?;
    let finished = |socket: &Socket| match socket.take_error()? {
        Some(error) => Err(error),
        None => match socket.peer_addr() {
            // Not yet.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            result => result.map(drop),
        },
    };
    connecting.io(Direction::Write, finished).await?;
    Stream::from_socket(Arc::new(connecting.into_inner()?))
}
