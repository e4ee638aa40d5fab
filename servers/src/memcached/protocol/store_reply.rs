//! The replies to storage commands, in each protocol.

use super::binary::{ResponseHeader, Status};
use super::meta::{write_flag, write_flags};
use crate::memcached::mutation::{Condition, StoreOutcome, StoreRequest};
use crate::memcached::store::ItemBits;

#[derive(Debug, Clone, Copy)]
pub struct StoreCommand<'a> {
    pub key: &'a [u8],
    /// The flags of a meta command, some of which are returned.
    pub meta_flags: &'a [u8],
    pub request: StoreRequest,
    pub reply: StoreReply,
}

/// The protocol of a storage command, and whether it replies.
#[derive(Debug, Clone, Copy)]
pub enum StoreReply {
    Classic { noreply: bool },
    Meta { quiet: bool },
    Binary(ResponseHeader),
}

impl StoreReply {
    pub fn terminator_length(self) -> usize {
        if matches!(self, Self::Binary(_)) { 0 } else { 2 }
    }
}

impl StoreCommand<'_> {
    pub fn write_reply(&self, outcome: StoreOutcome, out: &mut Vec<u8>) {
        // The classic reply; that of the meta commands, unless it is the same; that of the binary
        // protocol.
        let (text, code, status): (&[u8], &[u8], _) = match outcome {
            StoreOutcome::Stored { .. } => (b"STORED\r\n", b"HD", Status::OK),
            StoreOutcome::NotStored => {
                let status = match self.request.condition {
                    Condition::Absent => Status::EXISTS,
                    Condition::Present => Status::NOT_FOUND,
                    _ => Status::NOT_STORED,
                };
                (b"NOT_STORED\r\n", b"NS", status)
            }
            StoreOutcome::Exists => (b"EXISTS\r\n", b"EX", Status::EXISTS),
            StoreOutcome::NotFound => (b"NOT_FOUND\r\n", b"NF", Status::NOT_FOUND),
            StoreOutcome::OutOfMemory => {
                (b"SERVER_ERROR out of memory storing object\r\n", b"", Status::OUT_OF_MEMORY)
            }
            StoreOutcome::BadDataBlock => (b"CLIENT_ERROR bad data chunk\r\n", b"", Status::INVALID),
            StoreOutcome::TooLarge => {
                (b"SERVER_ERROR object too large for cache\r\n", b"", Status::TOO_LARGE)
            }
        };
        let (cas, length) = match outcome {
            StoreOutcome::Stored { cas, length } => (cas, length),
            _ => (0, self.request.length),
        };
        match self.reply {
            StoreReply::Classic { noreply: true } => {}
            StoreReply::Meta { quiet: true } if status == Status::OK => {}
            StoreReply::Meta { .. } if !code.is_empty() => {
                out.extend_from_slice(code);
                let is_binary = self.request.bits.contains(ItemBits::KEY_BINARY);
                write_flags(self.meta_flags, self.key, is_binary, out, |flag, out| match flag {
                    b'c' => write_flag(flag, cas, out),
                    b's' => write_flag(flag, length as u64, out),
                    _ => {}
                });
                out.extend_from_slice(b"\r\n");
            }
            StoreReply::Classic { .. } | StoreReply::Meta { .. } => out.extend_from_slice(text),
            StoreReply::Binary(header) if status == Status::OK => header.write_success(cas, out),
            StoreReply::Binary(header) => header.write_error(status, out),
        }
    }
}
