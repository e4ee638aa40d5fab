//! Synchronous netlink: one request, all its replies, and errors with the kernel's extended
//! acknowledgement.
//!
//! [`message`] has the layout of messages, and each family a module.

pub mod ethtool;
pub mod generic;
pub mod message;
pub mod netdev;
pub mod route;

use std::io;

use netlink_sys::{Socket, SocketAddr};

use self::message::{HEADER, Message, attributes, read_u16, read_u32};

/// Types of messages that are no replies: `NLMSG_NOOP`, `NLMSG_ERROR`, `NLMSG_DONE`,
/// `NLMSG_OVERRUN`.
const NOOP: u16 = 1;
const ERROR: u16 = 2;
const DONE: u16 = 3;
const OVERRUN: u16 = 4;
/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_ROOT | NLM_F_MATCH`.
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const DUMP: u16 = 0x300;

/// The kind of a request, which determines where its replies end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Requests a list. Replies end with `NLMSG_DONE`. `NLM_F_MULTI` is ignored, because some
    /// families (netdev) don't set it.
    Dump,
    /// Changes something, or requests one object. Replies end with an acknowledgement. The value is
    /// additional flags (`NLM_F_CREATE`, `NLM_F_EXCL`).
    Acknowledged(u16),
}

/// A netlink socket of the calling thread's network namespace.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Connection {
    /// Opens a socket for a protocol (`NETLINK_ROUTE`, `NETLINK_GENERIC`).
    pub fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Errors carry the kernel's message, and not a copy of the request.
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        // 64 KiB is more than the kernel puts into one dump skb (NLMSG_GOODSIZE, at most 32 KiB).
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(64 << 10) })
    }

    /// Sends a message with the family's header and attributes, and returns all replies.
    ///
    /// # Errors
    /// The kernel's error, or the error of sending or receiving. [`errno`] returns its number.
    pub fn request(&mut self, kind: u16, body: &[u8], request: Request) -> io::Result<Vec<Message>> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = REQUEST
            | match request {
                Request::Dump => DUMP,
                Request::Acknowledged(flags) => ACKNOWLEDGE | flags,
            };
        let length = u32::try_from(HEADER + body.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.extend_from_slice(&length.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&self.sequence.to_ne_bytes());
        // The kernel fills in the port.
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(body);
        self.socket.send(&bytes, 0)?;
        self.replies()
    }

    fn replies(&mut self) -> io::Result<Vec<Message>> {
        let mut replies = Vec::new();
        loop {
            self.buffer.clear();
            let received = self.socket.recv(&mut self.buffer, 0)?;
            let mut rest = &self.buffer[..received];
            while !rest.is_empty() {
                let cut_off = || io::Error::new(io::ErrorKind::InvalidData, "a netlink message is cut off");
                let length = read_u32(rest, 0).ok_or_else(cut_off)? as usize;
                let body = rest.get(HEADER..length).ok_or_else(cut_off)?;
                let kind = read_u16(rest, 4).ok_or_else(cut_off)?;
                let sequence = read_u32(rest, 8).ok_or_else(cut_off)?;
                // Messages are aligned to four bytes; the padding of the last one may be missing.
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
                if sequence != self.sequence {
                    continue;
                }
                match kind {
                    NOOP => {}
                    DONE => return Ok(replies),
                    ERROR => match read_u32(body, 0).ok_or_else(cut_off)?.cast_signed() {
                        0 => return Ok(replies),
                        code => return Err(kernel_error(code, body)),
                    },
                    OVERRUN => return Err(io::Error::other("netlink replies were lost (overrun)")),
                    kind => replies.push(Message { kind, body: body.to_vec() }),
                }
            }
        }
    }
}

/// The kernel's error, with its message if it sent one (`NLMSGERR_ATTR_MSG`). `body`: the code, the
/// request's header and, as the socket caps acknowledgements (`NETLINK_CAP_ACK`), attributes.
fn kernel_error(code: i32, body: &[u8]) -> io::Error {
    const MESSAGE: u16 = 1;
    let plain = io::Error::from_raw_os_error(code.saturating_neg());
    let inner = attributes(body.get(4 + HEADER..).unwrap_or_default());
    match inner.iter().find(|attribute| attribute.kind() == MESSAGE) {
        Some(message) => io::Error::new(plain.kind(), ExplainedError { plain, message: message.as_text() }),
        None => plain,
    }
}

/// An errno with the kernel's message.
#[derive(Debug)]
struct ExplainedError {
    plain: io::Error,
    message: String,
}

crate::error_text!(ExplainedError: Self { plain, message } => "{plain}: {message}");

/// The errno of an error that this module returned, with or without a message of the kernel.
pub fn errno(error: &io::Error) -> Option<i32> {
    let explained = error.get_ref().and_then(|inner| inner.downcast_ref::<ExplainedError>());
    explained.map_or(error.raw_os_error(), |explained| explained.plain.raw_os_error())
}
