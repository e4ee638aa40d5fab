//! RESP, the protocol of redis and valkey: GET and SET.

use crate::error::Error;
use crate::protocol::message::{
    Announced, LINE_END, LineReader, RequestFields, Response, ResponseSink, unexpected,
};
use crate::workload::mix::Operation;

/// Writes a request for one key. If the operation stores, the caller appends the value and a line
/// end.
pub(crate) fn write(operation: Operation, fields: RequestFields<'_>, out: &mut Vec<u8>) {
    let RequestFields { key, size, ttl, .. } = fields;
    if !operation.stores() {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
        write_string(key, out);
        return;
    }
    // The lifetime goes before the value, which is last: SETEX key seconds value.
    if ttl > 0 {
        out.extend_from_slice(b"*4\r\n$5\r\nSETEX\r\n");
        write_string(key, out);
        write_string(itoa::Buffer::new().format(ttl).as_bytes(), out);
    } else {
        out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
        write_string(key, out);
    }
    write_length(size, out);
}

fn write_string(text: &[u8], out: &mut Vec<u8>) {
    write_length(text.len(), out);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn write_length(length: usize, out: &mut Vec<u8>) {
    out.push(b'$');
    out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Splits received bytes into responses.
#[derive(Debug, Default)]
pub(crate) struct RespParser(LineReader);

impl RespParser {
    pub(crate) fn feed(&mut self, input: &[u8], sink: &mut impl ResponseSink) -> Result<(), Error> {
        self.0.feed(input, sink, parse_line)
    }
}

fn parse_line(line: &[u8], sink: &mut impl ResponseSink) -> Result<Option<Announced>, Error> {
    match line.strip_suffix(LINE_END).ok_or_else(|| unexpected(line))? {
        b"$-1" | b"_" => sink.response(Response::Values(0))?,
        b"+OK" => sink.response(Response::Done)?,
        [b'-', ..] => sink.response(Response::Error)?,
        [b'$', digits @ ..] => {
            let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u32>().ok());
            let length = length.ok_or_else(|| unexpected(line))? as usize;
            sink.value(b"", length, 0);
            return Ok(Some(Announced { length, ends_response: true }));
        }
        _ => return Err(unexpected(line)),
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::tests::ResponseLog;

    #[test]
    fn responses_are_parsed_from_chunks_of_any_size() {
        let input = b"+OK\r\n$-1\r\n$0\r\n\r\n-ERR no\r\n$5\r\n$1\r\n\n\r\n_\r\n";
        for chunk in 1..=input.len() {
            let (mut parser, mut log) = (RespParser::default(), ResponseLog::default());
            for part in input.chunks(chunk) {
                parser.feed(part, &mut log).unwrap();
            }
            use Response::{Done, Error, Values};
            assert_eq!(log.responses, [Done, Values(0), Values(1), Error, Values(1), Values(0)], "{chunk}");
            let values: Vec<&[u8]> = log.values.iter().map(|value| &value.3[..]).collect();
            assert_eq!(values, [&b""[..], b"$1\r\n\n"], "{chunk}");
        }
    }

    #[test]
    fn an_invalid_response_is_an_error() {
        for input in
            [&b"END\r\n"[..], b"$x\r\n", b"$1\r\nxx\r\n", b"$-2\r\n", b"+OK\n", b":1\r\n", &[b'x'; 9000]]
        {
            let result = RespParser::default().feed(input, &mut ResponseLog::default());
            assert!(result.is_err(), "{:?}", String::from_utf8_lossy(&input[..input.len().min(40)]));
        }
    }

    #[test]
    fn requests_are_arrays_of_strings() {
        let written = |operation, ttl| {
            let mut out = Vec::new();
            write(operation, RequestFields { key: b"key", size: 7, ttl, cas: 0 }, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written(Operation::Get, 0), "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
        assert_eq!(written(Operation::Set, 0), "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$7\r\n");
        assert_eq!(written(Operation::Set, 60), "*4\r\n$5\r\nSETEX\r\n$3\r\nkey\r\n$2\r\n60\r\n$7\r\n");
    }
}
