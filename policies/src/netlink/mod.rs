//! Synchronous netlink: one request, all its replies, and errors with the kernel's extended acknowledgement.
//!
//! Message layouts come from the `netlink-packet-*` crates; this module sends and receives.

pub mod ethtool;
pub mod generic;
pub mod netdev;
pub mod route;

use std::io;

use netlink_packet_core::{
    DefaultNla, ErrorMessage, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, Nla,
    NlasIterator, Parseable,
};
pub use netlink_packet_core::{NetlinkDeserializable, NetlinkPayload, NetlinkSerializable};
use netlink_sys::{Socket, SocketAddr};

/// The kind of a request, which determines where its replies end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Requests a list. Replies end with `NLMSG_DONE`. `NLM_F_MULTI` is ignored, because some families
    /// (netdev) don't set it.
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
    ///
    /// # Errors
    /// If the socket can't be opened, bound or configured.
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

    /// Sends `payload` and returns all replies.
    ///
    /// # Errors
    /// The kernel's error, or the error of sending or receiving. [`errno`] returns its number.
    pub fn request<T>(&mut self, payload: T, request: Request) -> io::Result<Vec<T>>
    where
        T: NetlinkSerializable + NetlinkDeserializable,
        NetlinkPayload<T>: From<T>,
    {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST
            | match request {
                Request::Dump => NLM_F_DUMP,
                Request::Acknowledged(flags) => NLM_F_ACK | flags,
            };
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(payload));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        self.replies()
    }

    fn replies<T: NetlinkDeserializable>(&mut self) -> io::Result<Vec<T>> {
        let mut replies = Vec::new();
        loop {
            self.buffer.clear();
            let received = self.socket.recv(&mut self.buffer, 0)?;
            let mut rest = &self.buffer[..received];
            while !rest.is_empty() {
                let message = NetlinkMessage::<T>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
                // Messages are aligned to four bytes; the padding of the last one may be missing.
                let length = (message.header.length as usize).next_multiple_of(4).max(16);
                rest = rest.get(length..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => replies.push(inner),
                    NetlinkPayload::Done(_) => return Ok(replies),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(replies),
                    NetlinkPayload::Error(error) => return Err(kernel_error(&error)),
                    NetlinkPayload::Overrun(_) => {
                        return Err(io::Error::other("netlink replies were lost (overrun)"));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The kernel's error, with its message if it sent one (`NLMSGERR_ATTR_MSG`).
fn kernel_error(error: &ErrorMessage) -> io::Error {
    const HEADER: usize = 16;
    const MESSAGE: u16 = 1;
    let plain = error.to_io();
    let attributes = error.header.get(HEADER..).unwrap_or_default();
    let message = NlasIterator::new(attributes).flatten().find_map(|attribute| {
        let attribute = DefaultNla::parse(&attribute).ok()?;
        let mut bytes = vec![0; attribute.value_len()];
        attribute.emit_value(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        (attribute.kind() == MESSAGE).then(|| text.trim_end_matches('\0').to_owned())
    });
    match message {
        Some(message) => io::Error::new(plain.kind(), ExplainedError { plain, message }),
        None => plain,
    }
}

/// An errno with the kernel's message.
#[derive(Debug, thiserror::Error)]
#[error("{plain}: {message}")]
struct ExplainedError {
    plain: io::Error,
    message: String,
}

/// The errno of an error that this module returned, with or without a message of the kernel.
pub fn errno(error: &io::Error) -> Option<i32> {
    let explained = error.get_ref().and_then(|inner| inner.downcast_ref::<ExplainedError>());
    explained.map_or(error.raw_os_error(), |explained| explained.plain.raw_os_error())
}
