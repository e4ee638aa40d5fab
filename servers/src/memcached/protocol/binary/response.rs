//! Responses of the binary protocol.

/// The first byte of a response.
const RESPONSE_MAGIC: u8 = 0x81;

/// A response's status.
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

/// What a response repeats of its request.
#[derive(Debug, Clone, Copy)]
pub struct ResponseHeader {
    pub opcode: u8,
    pub opaque: [u8; 4],
    /// Whether the request is quiet: only errors and found items are returned.
    pub quiet: bool,
}

impl ResponseHeader {
    pub fn write_response(
        &self,
        status: Status,
        cas: u64,
        extras: &[u8],
        key: &[u8],
        value: &[u8],
        out: &mut Vec<u8>,
    ) {
        self.write_header(status, cas, (extras.len(), key.len(), value.len()), out);
        out.extend_from_slice(extras);
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
        self.write_response(status, 0, &[], &[], status.text().as_bytes(), out);
    }

    /// Writes a response without content, unless the request is quiet.
    pub fn write_success(&self, cas: u64, out: &mut Vec<u8>) {
        if !self.quiet {
            self.write_response(Status::Ok, cas, &[], &[], &[], out);
        }
    }
}
