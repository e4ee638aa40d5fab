//! Requests in the binary protocol, up to the value.

use crate::protocol::binary::header::{
    ADD, APPEND, DECREMENT, DELETE, GETK, GETKQ, INCREMENT, NOOP, PREPEND, REPLACE, SASL_AUTH, SET, TOUCH,
    write_header,
};
use crate::protocol::request::RequestFields;
use crate::workload::operation::Operation;

/// The expiration of `incr` and `decr` that keeps them from creating a missing counter.
const DO_NOT_CREATE: [u8; 4] = [0xff; 4];

/// Writes a request for one key. If the operation stores, the caller appends the value.
pub(crate) fn write(operation: Operation, fields: RequestFields<'_>, out: &mut Vec<u8>) {
    let RequestFields { key, size, ttl, cas } = fields;
    let ttl = u32::try_from(ttl).unwrap_or(u32::MAX).to_be_bytes();
    let mut extras = [0; 20];
    let (opcode, extras): (u8, &[u8]) = match operation {
        Operation::Get | Operation::Cas | Operation::MetaGet => (GETK, &[]),
        Operation::Set | Operation::Add | Operation::Replace | Operation::MetaSet => {
            extras[4..8].copy_from_slice(&ttl);
            let opcode = match operation {
                Operation::Add => ADD,
                Operation::Replace => REPLACE,
                _ => SET,
            };
            (opcode, &extras[..8])
        }
        Operation::Append => (APPEND, &[]),
        Operation::Prepend => (PREPEND, &[]),
        Operation::Delete => (DELETE, &[]),
        Operation::Touch => {
            extras[..4].copy_from_slice(&ttl);
            (TOUCH, &extras[..4])
        }
        Operation::Incr | Operation::Decr => {
            extras[..8].copy_from_slice(&1_u64.to_be_bytes());
            extras[16..].copy_from_slice(&DO_NOT_CREATE);
            (if operation == Operation::Incr { INCREMENT } else { DECREMENT }, &extras[..])
        }
    };
    let size = if operation.stores() { size } else { 0 };
    write_header(opcode, key.len(), extras.len(), size, cas, out);
    out.extend_from_slice(extras);
    out.extend_from_slice(key);
}

/// Writes one key of a multiget, as a quiet get. [`end_multiget`] ends the multiget.
pub(crate) fn multiget_key(key: &[u8], out: &mut Vec<u8>) {
    write_header(GETKQ, key.len(), 0, 0, 0, out);
    out.extend_from_slice(key);
}

/// Ends a multiget with a no-op. Quiet gets have no response for a miss, so the response to the no-op is the
/// end of theirs.
pub(crate) fn end_multiget(out: &mut Vec<u8>) {
    write_header(NOOP, 0, 0, 0, 0, out);
}

/// Writes a SASL PLAIN authentication request (RFC 4616).
pub(crate) fn authenticate(user: &str, password: &str, out: &mut Vec<u8>) {
    const MECHANISM: &[u8] = b"PLAIN";
    let message = [b"\0", user.as_bytes(), b"\0", password.as_bytes()].concat();
    write_header(SASL_AUTH, MECHANISM.len(), 0, message.len(), 0, out);
    out.extend_from_slice(MECHANISM);
    out.extend_from_slice(&message);
}
