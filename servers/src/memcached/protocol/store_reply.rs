//! The replies to storage commands, in each protocol.

use super::binary::{ResponseHeader, Status};
use super::meta::{write_flag, write_flags};
use crate::memcached::mutation::{Condition, StoreOutcome, StoreRequest};
use crate::memcached::store::ItemBits;

/// A storage command without its data block.
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
    /// Bytes that terminate a data block in this protocol.
    pub fn terminator_length(self) -> usize {
        if matches!(self, Self::Binary(_)) { 0 } else { 2 }
    }
}

impl StoreCommand<'_> {
    pub fn write_reply(&self, outcome: StoreOutcome, out: &mut Vec<u8>) {
        match self.reply {
            StoreReply::Classic { noreply: true } => {}
            StoreReply::Classic { noreply: false } => out.extend_from_slice(classic_reply(outcome)),
            StoreReply::Meta { quiet } => self.write_meta_reply(quiet, outcome, out),
            StoreReply::Binary(header) => write_binary_reply(header, self.request.condition, outcome, out),
        }
    }

    fn write_meta_reply(&self, quiet: bool, outcome: StoreOutcome, out: &mut Vec<u8>) {
        let (code, cas, length) = match outcome {
            StoreOutcome::Stored { .. } if quiet => return,
            StoreOutcome::Stored { cas, length } => (b"HD", cas, length),
            StoreOutcome::NotStored => (b"NS", 0, self.request.length),
            StoreOutcome::Exists => (b"EX", 0, self.request.length),
            StoreOutcome::NotFound => (b"NF", 0, self.request.length),
            error => {
                // Errors are sent even to quiet commands.
                out.extend_from_slice(classic_reply(error));
                return;
            }
        };
        out.extend_from_slice(code);
        let is_binary = self.request.bits.intersects(ItemBits::KEY_BINARY);
        write_flags(self.meta_flags, self.key, is_binary, out, |flag, out| match flag {
            b'c' => write_flag(flag, cas, out),
            b's' => write_flag(flag, length as u64, out),
            _ => {}
        });
        out.extend_from_slice(b"\r\n");
    }
}

fn classic_reply(outcome: StoreOutcome) -> &'static [u8] {
    match outcome {
        StoreOutcome::Stored { .. } => b"STORED\r\n",
        StoreOutcome::NotStored => b"NOT_STORED\r\n",
        StoreOutcome::Exists => b"EXISTS\r\n",
        StoreOutcome::NotFound => b"NOT_FOUND\r\n",
        StoreOutcome::OutOfMemory => b"SERVER_ERROR out of memory storing object\r\n",
        StoreOutcome::BadDataBlock => b"CLIENT_ERROR bad data chunk\r\n",
        StoreOutcome::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
    }
}

fn write_binary_reply(
    header: ResponseHeader,
    condition: Condition,
    outcome: StoreOutcome,
    out: &mut Vec<u8>,
) {
    let status = match outcome {
        StoreOutcome::Stored { cas, .. } => {
            header.write_success(cas, out);
            return;
        }
        StoreOutcome::Exists => Status::Exists,
        StoreOutcome::NotFound => Status::NotFound,
        StoreOutcome::NotStored => match condition {
            Condition::Absent => Status::Exists,
            Condition::Present => Status::NotFound,
            _ => Status::NotStored,
        },
        StoreOutcome::OutOfMemory => Status::OutOfMemory,
        StoreOutcome::BadDataBlock => Status::Invalid,
        StoreOutcome::TooLarge => Status::TooLarge,
    };
    header.write_error(status, out);
}
