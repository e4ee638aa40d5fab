//! The server behind the proxy: it spends as little as a server can, on the cores that the proxy doesn't have.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use policies::Cpus;

use crate::peers::service::HELLO_RESPONSE;

/// Serves on a free port of loopback until the process ends, with a thread for each connection.
pub(super) fn start(proxy_core: u32) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("upstream".to_owned()).spawn(move || {
        let others =
            Cpus::online().map(|cpus| cpus.iter().filter(|core| *core != proxy_core).collect::<Cpus>());
        // Threads inherit it. On a machine with one core all share that.
        if let Ok(others) = others
            && !others.is_empty()
        {
            let _ = others.pin(None);
        }
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    })?;
    Ok(address)
}

/// Answers each request without a body, until the connection ends.
fn answer(mut stream: TcpStream) -> io::Result<()> {
    const END: &[u8] = b"\r\n\r\n";
    stream.set_nodelay(true)?;
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        received.extend_from_slice(&buffer[..length]);
        while let Some(end) = received.windows(END.len()).position(|bytes| bytes == END) {
            received.drain(..end + END.len());
            stream.write_all(HELLO_RESPONSE.as_bytes())?;
        }
    }
}
