//! Synchronous netlink: one request, all its answers.
//!
//! Message layouts come from the `netlink-packet-*` crates; this module sends and receives.

pub mod ethtool;
pub mod generic;
pub mod netdev;
pub mod route;

use std::io;

use netlink_packet_core::{
    DefaultNla, ErrorMessage, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader,
    NetlinkMessage, NetlinkPayload, NetlinkSerializable, Nla, NlasIterator, Parseable,
};
use netlink_sys::{Socket, SocketAddr};

/// What a request is, which decides where its answers end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Asks for a list. Answers end with `NLMSG_DONE`; some families (netdev) don't set
    /// `NLM_F_MULTI` on them, so that flag is not looked at.
    Dump,
    /// Changes something, or asks for one object. Ends with an acknowledgement; more flags
    /// (`NLM_F_CREATE`, `NLM_F_EXCL`) may be given.
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
        // A refusal comes with the kernel's words for it, and without the request that it refuses.
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        // 64 KiB is more than the kernel puts into one dump skb (NLMSG_GOODSIZE, at most 32 KiB).
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(64 << 10) })
    }

    /// Sends `payload` and returns every answer.
    ///
    /// # Errors
    /// The kernel's refusal, as the errno that it named, or a failure to talk to it at all.
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
        self.answers()
    }

    fn answers<T: NetlinkDeserializable>(&mut self) -> io::Result<Vec<T>> {
        let mut answers = Vec::new();
        loop {
            self.buffer.clear();
            let received = self.socket.recv(&mut self.buffer, 0)?;
            let mut rest = &self.buffer[..received];
            while !rest.is_empty() {
                let message = NetlinkMessage::<T>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
                // Messages are aligned to four bytes; the last one's padding may be left out.
                let length = (message.header.length as usize).next_multiple_of(4).max(16);
                rest = rest.get(length..).unwrap_or_default();
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(inner) => answers.push(inner),
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answers),
                    NetlinkPayload::Error(error) => return Err(refusal(&error)),
                    NetlinkPayload::Overrun(_) => {
                        return Err(io::Error::other("netlink answers were lost (overrun)"));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The kernel's error, with its own words where it has any (`NLMSGERR_ATTR_MSG`).
fn refusal(error: &ErrorMessage) -> io::Error {
    const HEADER: usize = 16;
    const MESSAGE: u16 = 1;
    let plain = error.to_io();
    let attributes = error.header.get(HEADER..).unwrap_or_default();
    let words = NlasIterator::new(attributes).flatten().find_map(|attribute| {
        let attribute = DefaultNla::parse(&attribute).ok()?;
        let mut bytes = vec![0; attribute.value_len()];
        attribute.emit_value(&mut bytes);
        let text = String::from_utf8_lossy(&bytes);
        (attribute.kind() == MESSAGE).then(|| text.trim_end_matches('\0').to_owned())
    });
    match words {
        Some(words) => io::Error::new(plain.kind(), Refusal { plain, words }),
        None => plain,
    }
}

/// An errno that the kernel explained.
#[derive(Debug, thiserror::Error)]
#[error("{plain}: {words}")]
struct Refusal {
    plain: io::Error,
    words: String,
}

/// The errno of an error of this module, also of one that comes with words.
pub fn errno(error: &io::Error) -> Option<i32> {
    let explained = error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>());
    explained.map_or(error.raw_os_error(), |refusal| refusal.plain.raw_os_error())
}
