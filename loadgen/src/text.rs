//! Requests in the text protocol, up to the value.

use crate::workload::Operation;

/// What a request says beside its operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Details<'a> {
    pub(crate) key: &'a [u8],
    /// Bytes of the value that follows.
    pub(crate) size: usize,
    /// Seconds.
    pub(crate) ttl: u64,
    /// The CAS number that the record must still have; 0 is none.
    pub(crate) unique: u64,
}

/// Writes a request for one key. A value and a line's end follow where the operation stores.
pub(crate) fn write(operation: Operation, details: Details<'_>, out: &mut Vec<u8>) {
    let Details { key, size, ttl, unique } = details;
    let verb: &[u8] = match operation {
        Operation::Set if unique != 0 => b"cas ",
        Operation::Set => b"set ",
        Operation::Add => b"add ",
        Operation::Replace => b"replace ",
        Operation::Append => b"append ",
        Operation::Prepend => b"prepend ",
        Operation::Get => b"get ",
        Operation::Cas => b"gets ",
        Operation::Delete => b"delete ",
        Operation::Touch => b"touch ",
        Operation::Incr => b"incr ",
        Operation::Decr => b"decr ",
        Operation::MetaGet => b"mg ",
        Operation::MetaSet => b"ms ",
    };
    out.extend_from_slice(verb);
    out.extend_from_slice(key);
    match operation {
        Operation::Get | Operation::Cas | Operation::Delete => {}
        Operation::Touch => spaced(ttl, out),
        Operation::Incr | Operation::Decr => out.extend_from_slice(b" 1"),
        Operation::MetaGet => out.extend_from_slice(b" v k"),
        Operation::MetaSet => {
            spaced(size as u64, out);
            if ttl > 0 {
                out.extend_from_slice(b" T");
                number(ttl, out);
            }
        }
        Operation::Set | Operation::Add | Operation::Replace | Operation::Append | Operation::Prepend => {
            out.extend_from_slice(b" 0");
            spaced(ttl, out);
            spaced(size as u64, out);
            if unique != 0 {
                spaced(unique, out);
            }
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn spaced(value: u64, out: &mut Vec<u8>) {
    out.push(b' ');
    number(value, out);
}

fn number(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}
