//! The binary protocol, as in memcached's `protocol_binary.h`: parses requests and writes
//! responses.

use super::KEY_MAX;
use crate::memcached::mutation::Condition;

pub const REQUEST_MAGIC: u8 = 0x80;
const HEADER: usize = 24;
/// The largest body, in bytes: 1 GiB, memcached's limit of an item.
const MAX_BODY: usize = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Get { with_key: bool, touches: bool },
    Touch,
    Store(Condition),
    Delete,
    Delta { increments: bool },
    Quit,
    Flush,
    Noop,
    Version,
    Stat,
    SaslList,
    SaslAuth,
    SaslStep,
    Unknown,
}

impl Command {
    fn from_opcode(opcode: u8) -> Self {
        use Command::*;
        match opcode {
            0x00 | 0x09 => Get { with_key: false, touches: false },
            0x01 | 0x11 => Store(Condition::Always),
            0x02 | 0x12 => Store(Condition::Absent),
            0x03 | 0x13 => Store(Condition::Present),
            0x04 | 0x14 => Delete,
            0x05 | 0x15 => Delta { increments: true },
            0x06 | 0x16 => Delta { increments: false },
            0x07 | 0x17 => Quit,
            0x08 | 0x18 => Flush,
            0x0a => Noop,
            0x0b => Version,
            0x0c | 0x0d => Get { with_key: true, touches: false },
            0x0e | 0x19 => Store(Condition::Append),
            0x0f | 0x1a => Store(Condition::Prepend),
            0x10 => Stat,
            0x1c => Touch,
            0x1d | 0x1e => Get { with_key: false, touches: true },
            0x20 => SaslList,
            0x21 => SaslAuth,
            0x22 => SaslStep,
            0x23 | 0x24 => Get { with_key: true, touches: true },
            _ => Unknown,
        }
    }

    fn accepts_lengths(self, key: usize, extras: usize, value: usize) -> bool {
        use Command::*;
        match self {
            Get { touches: false, .. } | Delete => key > 0 && extras == 0 && value == 0,
            Get { touches: true, .. } | Touch => key > 0 && extras == 4 && value == 0,
            Store(Condition::Append | Condition::Prepend) => key > 0 && extras == 0,
            Store(_) => key > 0 && extras == 8,
            Delta { .. } => key > 0 && extras == 20 && value == 0,
            Quit | Noop | Version | SaslList => key == 0 && extras == 0 && value == 0,
            Flush => key == 0 && value == 0 && matches!(extras, 0 | 4),
            Stat => extras == 0 && value == 0,
            SaslAuth | SaslStep => key > 0 && extras == 0,
            Unknown => true,
        }
    }

    fn is_allowed_unauthenticated(self) -> bool {
        matches!(self, Command::SaslList | Command::SaslAuth | Command::SaslStep | Command::Version)
    }
}

/// A request whose header, extras and key were received.
pub struct Request<'a> {
    pub command: Command,
    pub header: ResponseHeader,
    pub cas: u64,
    pub extras: &'a [u8],
    pub key: &'a [u8],
    /// Bytes before the value.
    pub used: usize,
    /// Bytes of the value; of an unknown command, all bytes after the header.
    pub value_length: usize,
}

pub enum Unparsed {
    /// The header, the extras or the key were not received completely.
    Incomplete,
    NotBinary,
    /// An error, after which the connection closes.
    Refused(ResponseHeader, Status),
}

fn array_at<const LENGTH: usize>(bytes: &[u8], at: usize) -> [u8; LENGTH] {
    std::array::from_fn(|index| bytes[at + index])
}

/// The big-endian number at an offset.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array_at(bytes, at))
}

/// The big-endian number at an offset.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array_at(bytes, at))
}

/// Parses the request at the start of `input`, which is not empty.
#[inline]
pub fn parse(input: &[u8], authenticated: bool) -> Result<Request<'_>, Unparsed> {
    if input[0] != REQUEST_MAGIC {
        return Err(Unparsed::NotBinary);
    }
    if input.len() < HEADER {
        return Err(Unparsed::Incomplete);
    }
    let (opcode, body) = (input[1], u32_at(input, 8) as usize);
    let (mut key, mut extras) = (usize::from(u16::from_be_bytes(array_at(input, 2))), usize::from(input[4]));
    let quiet = matches!(opcode, 0x09 | 0x0d | 0x11..=0x1a | 0x1e | 0x24);
    let header = ResponseHeader { opcode, opaque: array_at(input, 12), quiet };
    let command = Command::from_opcode(opcode);
    if key + extras > body {
        return Err(Unparsed::Refused(header, Status::UNKNOWN_COMMAND));
    } else if body > MAX_BODY {
        return Err(Unparsed::Refused(header, Status::INVALID));
    } else if !authenticated && !command.is_allowed_unauthenticated() {
        return Err(Unparsed::Refused(header, Status::UNAUTHENTICATED));
    } else if key > KEY_MAX || !command.accepts_lengths(key, extras, body - key - extras) {
        return Err(Unparsed::Refused(header, Status::INVALID));
    }
    if command == Command::Unknown {
        (key, extras) = (0, 0);
    }
    let (used, value_length) = (HEADER + extras + key, body - key - extras);
    let (extras, key) = input.get(HEADER..used).ok_or(Unparsed::Incomplete)?.split_at(extras);
    Ok(Request { command, header, cas: u64_at(input, 16), extras, key, used, value_length })
}

const RESPONSE_MAGIC: u8 = 0x81;

/// A status and the text that an error has as its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(u16, &'static str);

impl Status {
    pub const OK: Self = Self(0x00, "");
    pub const NOT_FOUND: Self = Self(0x01, "Not found");
    pub const EXISTS: Self = Self(0x02, "Data exists for key.");
    pub const TOO_LARGE: Self = Self(0x03, "Too large.");
    pub const INVALID: Self = Self(0x04, "Invalid arguments");
    pub const NOT_STORED: Self = Self(0x05, "Not stored.");
    pub const NOT_A_NUMBER: Self = Self(0x06, "Non-numeric server-side value for incr or decr");
    pub const UNAUTHENTICATED: Self = Self(0x20, "Auth failure.");
    pub const UNKNOWN_COMMAND: Self = Self(0x81, "Unknown command");
    pub const OUT_OF_MEMORY: Self = Self(0x82, "Out of memory");
}

#[derive(Debug, Clone, Copy)]
pub struct ResponseHeader {
    pub opcode: u8,
    pub opaque: [u8; 4],
    /// Whether only errors and found items are returned.
    pub quiet: bool,
}

impl ResponseHeader {
    pub fn write_response(&self, status: Status, cas: u64, key: &[u8], value: &[u8], out: &mut Vec<u8>) {
        self.write_header(status, cas, (0, key.len(), value.len()), out);
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }

    /// Writes the header alone. `lengths` are those of extras, key and value, which follow it.
    pub fn write_header(&self, status: Status, cas: u64, lengths: (usize, usize, usize), out: &mut Vec<u8>) {
        let (extras, key, value) = lengths;
        out.extend_from_slice(&[RESPONSE_MAGIC, self.opcode]);
        out.extend_from_slice(&(key as u16).to_be_bytes());
        out.extend_from_slice(&[extras as u8, 0]);
        out.extend_from_slice(&status.0.to_be_bytes());
        out.extend_from_slice(&((extras + key + value) as u32).to_be_bytes());
        out.extend_from_slice(&self.opaque);
        out.extend_from_slice(&cas.to_be_bytes());
    }

    pub fn write_error(&self, status: Status, out: &mut Vec<u8>) {
        self.write_response(status, 0, &[], status.1.as_bytes(), out);
    }

    /// Writes a response without content, unless the request is quiet.
    pub fn write_success(&self, cas: u64, out: &mut Vec<u8>) {
        if !self.quiet {
            self.write_response(Status::OK, cas, &[], &[], out);
        }
    }
}
