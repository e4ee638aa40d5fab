//! The binary protocol, as in memcached's `protocol_binary.h`: parses requests and writes
//! responses.

use super::KEY_MAX;
use crate::memcached::mutation::Condition;

pub const REQUEST_MAGIC: u8 = 0x80;
/// Bytes of a request's header.
const HEADER: usize = 24;
/// The largest body, in bytes: 1 GiB, memcached's limit of an item.
const MAX_BODY: usize = 1 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Get { with_key: bool, touches: bool },
    Touch,
    Store(Condition),
    Concatenate(Condition),
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
}

impl Command {
    /// The command, and whether it is quiet: only errors and found items are returned.
    fn from_opcode(opcode: u8) -> Option<(Self, bool)> {
        use Command::*;
        let get = |with_key, touches| Get { with_key, touches };
        let (append, prepend) = (Condition::Append { vivify: false }, Condition::Prepend { vivify: false });
        let command = match opcode {
            0x00 | 0x09 => get(false, false),
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
            0x0c | 0x0d => get(true, false),
            0x0e | 0x19 => Concatenate(append),
            0x0f | 0x1a => Concatenate(prepend),
            0x10 => Stat,
            0x1c => Touch,
            0x1d | 0x1e => get(false, true),
            0x20 => SaslList,
            0x21 => SaslAuth,
            0x22 => SaslStep,
            0x23 | 0x24 => get(true, true),
            _ => return None,
        };
        Some((command, matches!(opcode, 0x09 | 0x0d | 0x11..=0x1a | 0x1e | 0x24)))
    }

    fn accepts_lengths(self, key: usize, extras: usize, value: usize) -> bool {
        use Command::*;
        match self {
            Get { touches: false, .. } | Delete => key > 0 && extras == 0 && value == 0,
            Get { touches: true, .. } | Touch => key > 0 && extras == 4 && value == 0,
            Store(_) => key > 0 && extras == 8,
            Concatenate(_) => key > 0 && extras == 0,
            Delta { .. } => key > 0 && extras == 20 && value == 0,
            Quit | Noop | Version | SaslList => key == 0 && extras == 0 && value == 0,
            Flush => key == 0 && value == 0 && matches!(extras, 0 | 4),
            Stat => extras == 0 && value == 0,
            SaslAuth | SaslStep => key > 0 && extras == 0,
        }
    }

    /// Whether clients may send it before they authenticate.
    fn is_allowed_unauthenticated(self) -> bool {
        matches!(self, Command::SaslList | Command::SaslAuth | Command::SaslStep | Command::Version)
    }
}

/// A request whose header, extras and key were received.
pub struct Request<'a> {
    pub header: ResponseHeader,
    pub cas: u64,
    pub extras: &'a [u8],
    pub key: &'a [u8],
    /// Bytes of the value, which follows the key.
    pub value_length: usize,
}

pub enum Parsed<'a> {
    /// The header, the extras or the key were not received completely.
    Incomplete,
    NotBinary,
    /// An error, after which the connection closes.
    Fatal {
        header: ResponseHeader,
        status: Status,
    },
    /// An unknown command. `used` bytes of header precede a body of `body` bytes.
    Unknown {
        header: ResponseHeader,
        used: usize,
        body: usize,
    },
    /// A request. The value starts after `used` bytes.
    Request {
        command: Command,
        request: Request<'a>,
        used: usize,
    },
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

/// The big-endian number at an offset.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The big-endian number at an offset.
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

/// Parses the request at the start of `input`, which is not empty.
#[inline]
pub fn parse(input: &[u8], authenticated: bool) -> Parsed<'_> {
    if input[0] != REQUEST_MAGIC {
        return Parsed::NotBinary;
    }
    if input.len() < HEADER {
        return Parsed::Incomplete;
    }
    let (key, extras, body) = (u16_at(input, 2), usize::from(input[4]), u32_at(input, 8) as usize);
    let opaque = [input[12], input[13], input[14], input[15]];
    let mut header = ResponseHeader { opcode: input[1], opaque, quiet: false };
    let command = Command::from_opcode(input[1]);
    let allowed = authenticated || command.is_some_and(|(command, _)| command.is_allowed_unauthenticated());
    let error = if key + extras > body {
        Some(Status::UnknownCommand)
    } else if body > MAX_BODY {
        Some(Status::Invalid)
    } else if !allowed {
        Some(Status::Unauthenticated)
    } else if key > KEY_MAX {
        Some(Status::Invalid)
    } else {
        None
    };
    if let Some(status) = error {
        return Parsed::Fatal { header, status };
    }
    let Some((command, quiet)) = command else {
        return Parsed::Unknown { header, used: HEADER, body };
    };
    let value_length = body - key - extras;
    if !command.accepts_lengths(key, extras, value_length) {
        return Parsed::Fatal { header, status: Status::Invalid };
    }
    let used = HEADER + extras + key;
    if input.len() < used {
        return Parsed::Incomplete;
    }
    header.quiet = quiet;
    let (extras, key) = input[HEADER..used].split_at(extras);
    let request = Request { header, cas: u64_at(input, 16), extras, key, value_length };
    Parsed::Request { command, request, used }
}

const RESPONSE_MAGIC: u8 = 0x81;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    Ok = 0x00,
    NotFound = 0x01,
    Exists = 0x02,
    TooLarge = 0x03,
    Invalid = 0x04,
    NotStored = 0x05,
    NotANumber = 0x06,
    Unauthenticated = 0x20,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
}

impl Status {
    fn text(self) -> &'static str {
        match self {
            Status::Ok => "",
            Status::NotFound => "Not found",
            Status::Exists => "Data exists for key.",
            Status::TooLarge => "Too large.",
            Status::Invalid => "Invalid arguments",
            Status::NotStored => "Not stored.",
            Status::NotANumber => "Non-numeric server-side value for incr or decr",
            Status::Unauthenticated => "Auth failure.",
            Status::UnknownCommand => "Unknown command",
            Status::OutOfMemory => "Out of memory",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct ResponseHeader {
    pub opcode: u8,
    pub opaque: [u8; 4],
    /// Whether the request is quiet: only errors and found items are returned.
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
        out.extend_from_slice(&(status as u16).to_be_bytes());
        out.extend_from_slice(&((extras + key + value) as u32).to_be_bytes());
        out.extend_from_slice(&self.opaque);
        out.extend_from_slice(&cas.to_be_bytes());
    }

    /// Writes an error, with the status's text as its value.
    pub fn write_error(&self, status: Status, out: &mut Vec<u8>) {
        self.write_response(status, 0, &[], status.text().as_bytes(), out);
    }

    /// Writes a response without content, unless the request is quiet.
    pub fn write_success(&self, cas: u64, out: &mut Vec<u8>) {
        if !self.quiet {
            self.write_response(Status::Ok, cas, &[], &[], out);
        }
    }
}
