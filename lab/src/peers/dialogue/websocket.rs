//! A WebSocket's upgrade and frames (RFC 6455), as far as a load needs them.

/// The key is the one of the RFC's example: nobody checks the server's answer to it.
pub(super) const UPGRADE: &str = "GET / HTTP/1.1\r\nhost: lull\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// The last frame of a message, binary.
const BINARY: u8 = 0x82;
const MASKED: u8 = 0x80;
/// Longer messages have a longer head.
const LONGEST: usize = 125;

/// A client's frame with a message of this length, of at most [`LONGEST`] bytes. Its mask is zero.
pub(super) fn message(length: usize) -> Vec<u8> {
    let length = length.min(LONGEST);
    let mut frame = vec![BINARY, MASKED | length as u8, 0, 0, 0, 0];
    frame.resize(frame.len() + length, b'm');
    frame
}

/// Bytes of the server's frame with a message of this length.
pub(super) fn echo_length(length: usize) -> usize {
    2 + length.min(LONGEST)
}
