//! The answers to storing commands, in each protocol.

use super::binary;
use super::command::words;
use super::meta;
use super::store::Bits;
use super::storing::{Condition, Incoming, Stored};

/// How a storing command is answered.
#[derive(Debug, Clone, Copy)]
pub enum Reply<B> {
    Text {
        noreply: bool,
    },
    /// With the command's flags, some of which are answered.
    Meta {
        flags: B,
        quiet: bool,
    },
    Binary(binary::Header),
}

/// What there is to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyTo {
    Stored(Stored),
    /// The value did not end where it should.
    BadBlock,
    TooLarge,
}

impl<B: AsRef<[u8]>> Reply<B> {
    /// Bytes that end the value in this protocol.
    pub fn end(&self) -> usize {
        match self {
            Reply::Binary(_) => 0,
            _ => 2,
        }
    }

    pub fn is_meta(&self) -> bool {
        matches!(self, Reply::Meta { .. })
    }

    pub fn to_owned(&self) -> Reply<Box<[u8]>> {
        match self {
            Reply::Text { noreply } => Reply::Text { noreply: *noreply },
            Reply::Meta { flags, quiet } => Reply::Meta { flags: flags.as_ref().into(), quiet: *quiet },
            Reply::Binary(header) => Reply::Binary(*header),
        }
    }

    pub fn write(&self, item: &Incoming<B>, to: ReplyTo, out: &mut Vec<u8>) {
        match self {
            Reply::Text { noreply: true } => {}
            Reply::Text { noreply: false } => out.extend_from_slice(text(to)),
            Reply::Meta { flags, quiet } => meta_reply(flags.as_ref(), *quiet, item, to, out),
            Reply::Binary(header) => binary_reply(header, item.condition, to, out),
        }
    }
}

fn text(to: ReplyTo) -> &'static [u8] {
    match to {
        ReplyTo::Stored(Stored::Done { .. }) => b"STORED\r\n",
        ReplyTo::Stored(Stored::Refused) => b"NOT_STORED\r\n",
        ReplyTo::Stored(Stored::Exists) => b"EXISTS\r\n",
        ReplyTo::Stored(Stored::NotFound) => b"NOT_FOUND\r\n",
        ReplyTo::Stored(Stored::OutOfMemory) => b"SERVER_ERROR out of memory storing object\r\n",
        ReplyTo::BadBlock => b"CLIENT_ERROR bad data chunk\r\n",
        ReplyTo::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
    }
}

fn meta_reply<B: AsRef<[u8]>>(flags: &[u8], quiet: bool, item: &Incoming<B>, to: ReplyTo, out: &mut Vec<u8>) {
    let (code, cas, length) = match to {
        ReplyTo::Stored(Stored::Done { .. }) if quiet => return,
        ReplyTo::Stored(Stored::Done { cas, length }) => (b"HD", cas, length),
        ReplyTo::Stored(Stored::Refused) => (b"NS", 0, item.length),
        ReplyTo::Stored(Stored::Exists) => (b"EX", 0, item.length),
        ReplyTo::Stored(Stored::NotFound) => (b"NF", 0, item.length),
        other => {
            // Errors are told even where silence was asked for.
            out.extend_from_slice(text(other));
            return;
        }
    };
    out.extend_from_slice(code);
    let mut digits = itoa::Buffer::new();
    for flag in words(flags) {
        match flag[0] {
            b'O' => {
                out.push(b' ');
                out.extend_from_slice(flag);
            }
            b'k' => meta::write_key(item.key.as_ref(), item.bits.has(Bits::KEY_BINARY), out),
            b'c' => {
                out.extend_from_slice(b" c");
                out.extend_from_slice(digits.format(cas).as_bytes());
            }
            b's' => {
                out.extend_from_slice(b" s");
                out.extend_from_slice(digits.format(length).as_bytes());
            }
            _ => {}
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn binary_reply(header: &binary::Header, condition: Condition, to: ReplyTo, out: &mut Vec<u8>) {
    use binary::Status;
    let status = match to {
        ReplyTo::Stored(Stored::Done { cas, .. }) => {
            if !header.quiet {
                header.respond(Status::Ok, cas, &[], &[], &[], out);
            }
            return;
        }
        ReplyTo::Stored(Stored::Exists) => Status::Exists,
        ReplyTo::Stored(Stored::NotFound) => Status::NotFound,
        ReplyTo::Stored(Stored::Refused) => match condition {
            Condition::Absent => Status::Exists,
            Condition::Present => Status::NotFound,
            _ => Status::NotStored,
        },
        ReplyTo::Stored(Stored::OutOfMemory) => Status::OutOfMemory,
        ReplyTo::BadBlock => Status::Invalid,
        ReplyTo::TooLarge => Status::TooLarge,
    };
    header.refuse(status, out);
}
