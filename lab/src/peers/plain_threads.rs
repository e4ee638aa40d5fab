//! The echo server with a thread for each connection, which blocks in the kernel.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use super::request_shape::{READ_BUFFER, RequestCounter, RequestShape};

/// As much as the dispatcher's threads have.
const STACK: usize = 256 << 10;

pub(super) fn serve(listener: &TcpListener, shape: RequestShape) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        std::thread::Builder::new().stack_size(STACK).spawn(move || {
            // Fails if the client breaks the connection, which ends it anyway.
            let _ = echo(stream, shape);
        })?;
    }
}

fn echo(mut stream: TcpStream, shape: RequestShape) -> io::Result<()> {
    let mut requests = RequestCounter::new(shape);
    let mut buffer = [0; READ_BUFFER];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(requests.replies(length))?;
    }
}
