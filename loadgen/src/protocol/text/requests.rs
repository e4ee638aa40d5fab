//! Requests in the text protocol, up to the value.

use crate::protocol::request::RequestFields;
use crate::workload::operation::Operation;

/// Writes a request for one key. If the operation stores, the caller appends the value and a line end.
pub(crate) fn write(operation: Operation, fields: RequestFields<'_>, out: &mut Vec<u8>) {
    let RequestFields { key, size, ttl, cas } = fields;
    let verb: &[u8] = match operation {
        Operation::Set if cas != 0 => b"cas ",
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
        Operation::Touch => write_field(ttl, out),
        Operation::Incr | Operation::Decr => out.extend_from_slice(b" 1"),
        Operation::MetaGet => out.extend_from_slice(b" v k"),
        Operation::MetaSet => {
            write_field(size as u64, out);
            if ttl > 0 {
                out.extend_from_slice(b" T");
                write_number(ttl, out);
            }
        }
        Operation::Set | Operation::Add | Operation::Replace | Operation::Append | Operation::Prepend => {
            out.extend_from_slice(b" 0");
            write_field(ttl, out);
            write_field(size as u64, out);
            if cas != 0 {
                write_field(cas, out);
            }
        }
    }
    out.extend_from_slice(b"\r\n");
}

fn write_field(value: u64, out: &mut Vec<u8>) {
    out.push(b' ');
    write_number(value, out);
}

fn write_number(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}
