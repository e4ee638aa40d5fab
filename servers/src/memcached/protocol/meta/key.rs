//! Keys of meta commands, which may be base64.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// A key as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetaKey<'a> {
    Plain(&'a [u8]),
    /// Decoded from base64.
    Binary(Vec<u8>),
}

impl MetaKey<'_> {
    pub fn bytes(&self) -> &[u8] {
        match self {
            MetaKey::Plain(bytes) => bytes,
            MetaKey::Binary(bytes) => bytes,
        }
    }

    pub fn is_binary(&self) -> bool {
        matches!(self, MetaKey::Binary(_))
    }
}

/// Decodes a key. `None` if it is not base64 of at least one byte.
pub fn decode_key(key: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(key).ok().filter(|key| !key.is_empty())
}

/// Writes the `k` flag of a reply, and the `b` flag if the key is binary.
pub fn write_key_flag(key: &[u8], binary: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b" k");
    if binary {
        write_base64(key, out);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
}

pub fn write_base64(key: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(STANDARD.encode(key).as_bytes());
}
