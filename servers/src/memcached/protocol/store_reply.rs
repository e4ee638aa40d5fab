//! The replies to storage commands, in each protocol.

use super::binary::{ResponseHeader, Status};
use super::meta::{write_flag, write_flags};
use crate::memcached::mutation::{Condition, StoreOutcome, StoreRequest};
use crate::memcached::store::ItemBits;

#[derive(Debug, Clone, Copy)]
pub enum StoreReply<B> {
    Classic {
        noreply: bool,
    },
    /// With the command's flags, some of which are returned.
    Meta {
        flags: B,
        quiet: bool,
    },
    Binary(ResponseHeader),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreResult {
    Outcome(StoreOutcome),
    /// The data block did not end with its terminator.
    BadDataBlock,
    /// The item exceeds the largest item size.
    TooLarge,
}

impl<B: AsRef<[u8]>> StoreReply<B> {
    /// Bytes that terminate a data block in this protocol.
    pub fn terminator_length(&self) -> usize {
        match self {
            StoreReply::Binary(_) => 0,
            _ => 2,
        }
    }

    pub fn is_meta(&self) -> bool {
        matches!(self, StoreReply::Meta { .. })
    }

    pub fn to_owned(&self) -> StoreReply<Box<[u8]>> {
        match self {
            StoreReply::Classic { noreply } => StoreReply::Classic { noreply: *noreply },
            StoreReply::Meta { flags, quiet } => {
                StoreReply::Meta { flags: flags.as_ref().into(), quiet: *quiet }
            }
            StoreReply::Binary(header) => StoreReply::Binary(*header),
        }
    }

    pub fn write(&self, request: &StoreRequest<B>, result: StoreResult, out: &mut Vec<u8>) {
        match self {
            StoreReply::Classic { noreply: true } => {}
            StoreReply::Classic { noreply: false } => out.extend_from_slice(classic_reply(result)),
            StoreReply::Meta { flags, quiet } => {
                write_meta_reply(flags.as_ref(), *quiet, request, result, out);
            }
            StoreReply::Binary(header) => write_binary_reply(header, request.condition, result, out),
        }
    }
}

fn classic_reply(result: StoreResult) -> &'static [u8] {
    match result {
        StoreResult::Outcome(StoreOutcome::Stored { .. }) => b"STORED\r\n",
        StoreResult::Outcome(StoreOutcome::NotStored) => b"NOT_STORED\r\n",
        StoreResult::Outcome(StoreOutcome::Exists) => b"EXISTS\r\n",
        StoreResult::Outcome(StoreOutcome::NotFound) => b"NOT_FOUND\r\n",
        StoreResult::Outcome(StoreOutcome::OutOfMemory) => b"SERVER_ERROR out of memory storing object\r\n",
        StoreResult::BadDataBlock => b"CLIENT_ERROR bad data chunk\r\n",
        StoreResult::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
    }
}

fn write_meta_reply<B: AsRef<[u8]>>(
    flags: &[u8],
    quiet: bool,
    request: &StoreRequest<B>,
    result: StoreResult,
    out: &mut Vec<u8>,
) {
    let (code, cas, length) = match result {
        StoreResult::Outcome(StoreOutcome::Stored { .. }) if quiet => return,
        StoreResult::Outcome(StoreOutcome::Stored { cas, length }) => (b"HD", cas, length),
        StoreResult::Outcome(StoreOutcome::NotStored) => (b"NS", 0, request.length),
        StoreResult::Outcome(StoreOutcome::Exists) => (b"EX", 0, request.length),
        StoreResult::Outcome(StoreOutcome::NotFound) => (b"NF", 0, request.length),
        error => {
            // Errors are sent even to quiet commands.
            out.extend_from_slice(classic_reply(error));
            return;
        }
    };
    out.extend_from_slice(code);
    let is_binary = request.bits.intersects(ItemBits::KEY_BINARY);
    write_flags(flags, request.key.as_ref(), is_binary, out, |flag, out| match flag {
        b'c' => write_flag(flag, cas, out),
        b's' => write_flag(flag, length as u64, out),
        _ => {}
    });
    out.extend_from_slice(b"\r\n");
}

fn write_binary_reply(header: &ResponseHeader, condition: Condition, result: StoreResult, out: &mut Vec<u8>) {
    let status = match result {
        StoreResult::Outcome(StoreOutcome::Stored { cas, .. }) => {
            header.write_success(cas, out);
            return;
        }
        StoreResult::Outcome(StoreOutcome::Exists) => Status::Exists,
        StoreResult::Outcome(StoreOutcome::NotFound) => Status::NotFound,
        StoreResult::Outcome(StoreOutcome::NotStored) => match condition {
            Condition::Absent => Status::Exists,
            Condition::Present => Status::NotFound,
            _ => Status::NotStored,
        },
        StoreResult::Outcome(StoreOutcome::OutOfMemory) => Status::OutOfMemory,
        StoreResult::BadDataBlock => Status::Invalid,
        StoreResult::TooLarge => Status::TooLarge,
    };
    header.write_error(status, out);
}
