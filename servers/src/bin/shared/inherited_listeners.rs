//! Socket activation.

use std::net::TcpListener;

/// The listening sockets that systemd passes (socket activation).
pub fn inherited_listeners() -> Result<Vec<TcpListener>, String> {
    let mut passed = listenfd::ListenFd::from_env();
    (0..passed.len())
        .map(|index| match passed.take_tcp_listener(index) {
            Ok(Some(listener)) => Ok(listener),
            Ok(None) => Err("systemd passed a descriptor that is in use already".into()),
            Err(error) => Err(format!("systemd passed a descriptor that is not a TCP socket: {error}")),
        })
        .collect()
}
