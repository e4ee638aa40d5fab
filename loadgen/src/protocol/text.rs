//! The text protocol, with its meta commands.

use crate::error::Error;
use crate::protocol::message::{
    Announced, LINE_END, LineReader, RequestFields, Response, ResponseSink, unexpected,
};
use crate::workload::mix::Operation;

/// Writes a request for one key. If the operation stores, the caller appends the value and a line
/// end.
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

/// Splits received bytes into responses.
#[derive(Debug, Default)]
pub(crate) struct TextParser {
    reader: LineReader,
    /// Values of the current response so far.
    values: u32,
}

impl TextParser {
    pub(crate) fn feed(&mut self, input: &[u8], sink: &mut impl ResponseSink) -> Result<(), Error> {
        let Self { reader, values } = self;
        reader.feed(input, sink, |line, sink| parse_line(line, values, sink))
    }
}

fn parse_line(
    line: &[u8],
    values: &mut u32,
    sink: &mut impl ResponseSink,
) -> Result<Option<Announced>, Error> {
    let unknown = || unexpected(line);
    let text = line.strip_suffix(LINE_END).ok_or_else(unknown)?;
    let checked = |length: u64| {
        let length = usize::try_from(length).ok().filter(|length| *length <= isize::MAX as usize);
        length.ok_or_else(|| Error::Protocol("the length of a value is too large".to_owned()))
    };
    if let Some(value) = text.strip_prefix(b"VALUE ") {
        // VALUE <key> <flags> <bytes> [<cas unique>]
        let (key, rest) = value.split_at(memchr::memchr(b' ', value).ok_or_else(unknown)?);
        let mut words = rest.split(|&byte| byte == b' ');
        let length = checked(words.nth(2).and_then(number).ok_or_else(unknown)?)?;
        let cas = words.next().map(|word| number(word).ok_or_else(unknown)).transpose()?;
        *values += 1;
        sink.value(key, length, cas.unwrap_or(0));
        return Ok(Some(Announced { length, ends_response: false }));
    }
    if let Some(value) = text.strip_prefix(b"VA ") {
        // VA <size> <flags>*; the flag k is the key.
        let mut words = value.split(|&byte| byte == b' ');
        let length = checked(words.next().and_then(number).ok_or_else(unknown)?)?;
        sink.value(words.find_map(|word| word.strip_prefix(b"k")).unwrap_or_default(), length, 0);
        return Ok(Some(Announced { length, ends_response: true }));
    }
    // An error between values replaces END, so forget the values before it.
    let found = std::mem::take(values);
    let starts_with =
        |word: &[u8]| text == word || text.strip_prefix(word).is_some_and(|rest| rest[0] == b' ');
    let response = match text {
        b"END" => Response::Values(found),
        b"STORED" | b"DELETED" | b"TOUCHED" | b"OK" => Response::Done,
        b"NOT_FOUND" => Response::NotFound,
        b"EXISTS" => Response::Exists,
        b"NOT_STORED" => Response::NotStored,
        b"ERROR Too many open connections" => {
            return Err(Error::Protocol("the server has too many open connections".to_owned()));
        }
        _ if starts_with(b"HD") => Response::Done,
        _ if starts_with(b"EN") => Response::Values(0),
        _ if starts_with(b"NF") => Response::NotFound,
        _ if starts_with(b"EX") => Response::Exists,
        _ if starts_with(b"NS") => Response::NotStored,
        _ if starts_with(b"ERROR") || starts_with(b"CLIENT_ERROR") || starts_with(b"SERVER_ERROR") => {
            Response::Error
        }
        _ if number(text).is_some() => Response::Done,
        _ => return Err(unknown()),
    };
    sink.response(response)?;
    Ok(None)
}

fn number(digits: &[u8]) -> Option<u64> {
    let digit = |byte: u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    let add = |sum: u64, byte: &u8| sum.checked_mul(10)?.checked_add(digit(*byte)?);
    if digits.is_empty() { None } else { digits.iter().try_fold(0, add) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::tests::ResponseLog;

    #[test]
    fn responses_and_values_are_parsed_from_chunks_of_any_size() {
        let input = b"VALUE k 0 9\r\nEND\r\nEND\r\r\nVALUE j 5 0 77\r\n\r\nEND\r\nEND\r\nSTORED\r\n\
                      SERVER_ERROR no\r\nVA 2 kkey f0\r\nHD\r\nHD\r\nEN\r\nNOT_FOUND\r\nEXISTS\r\n42\r\n";
        for chunk in 1..=input.len() {
            let (mut parser, mut log) = (TextParser::default(), ResponseLog::default());
            for part in input.chunks(chunk) {
                parser.feed(part, &mut log).unwrap();
            }
            use Response::{Done, Error, Exists, NotFound, Values};
            assert_eq!(
                log.responses,
                [Values(2), Values(0), Done, Error, Values(1), Done, Values(0), NotFound, Exists, Done],
                "chunks of {chunk}"
            );
            let value = |key: &[u8], cas, bytes: &[u8]| (key.to_vec(), bytes.len(), cas, bytes.to_vec());
            let expected = [value(b"k", 0, b"END\r\nEND\r"), value(b"j", 77, b""), value(b"key", 0, b"HD")];
            assert_eq!(log.values, expected, "chunks of {chunk}");
        }
    }

    #[test]
    fn an_invalid_response_is_an_error() {
        for input in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"VALUE k 0\r\n",
            b"VALUE k 0 99999999999999999999\r\n",
            b"VALUE k 0 -1\r\n",
            b"VA x\r\n",
            b"VALUE k 0 1\r\nxx\r\n",
            b"STOREDX\r\n",
            b"STORED\n",
            b"\r\n",
            &[b'x'; 9000],
        ] {
            let result = TextParser::default().feed(input, &mut ResponseLog::default());
            assert!(result.is_err(), "{:?}", String::from_utf8_lossy(&input[..input.len().min(40)]));
        }
    }
}
