//! Fields of requests, outcomes of responses, and the lines and values that text protocols consist
//! of.

use crate::error::Error;

/// What a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Response {
    /// The end of a `get`, with the number of values before it.
    Values(u32),
    /// Success: `STORED`, `DELETED`, `TOUCHED`, `HD`, or the new value of a counter.
    Done,
    /// The record doesn't exist: `NOT_FOUND`, `NF`.
    NotFound,
    /// The CAS number has changed: `EXISTS`, `EX`.
    Exists,
    /// The condition of the command was not met: `NOT_STORED`, `NS`.
    NotStored,
    Error,
}

/// Receives the parts of responses as they are parsed.
pub(crate) trait ResponseSink {
    /// A value of `length` bytes begins. `cas` is its CAS number, or 0.
    fn value(&mut self, _key: &[u8], _length: usize, _cas: u64) {}
    /// The next bytes of the value.
    fn bytes(&mut self, _bytes: &[u8]) {}
    fn response(&mut self, response: Response) -> Result<(), Error>;
}

/// The fields of a request for one key, apart from its operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestFields<'a> {
    pub(crate) key: &'a [u8],
    /// Bytes of the value that follows.
    pub(crate) size: usize,
    /// Seconds; 0 means never.
    pub(crate) ttl: u64,
    /// The CAS number that the record must still have; 0 for none.
    pub(crate) cas: u64,
}

/// The longest line of a response: a key, numbers, and room for the text of an error.
const LONGEST_LINE: usize = 4096;

pub(crate) const LINE_END: &[u8; 2] = b"\r\n";

/// Splits received bytes into lines and values, which end with a line end, too.
#[derive(Debug, Default)]
pub(crate) struct LineReader {
    line: Vec<u8>,
    /// Remaining bytes of a value.
    value: usize,
    /// Remaining bytes of the line end after a value.
    line_end: usize,
    ends_response: bool,
}

/// The value that follows a line.
pub(crate) struct Announced {
    pub(crate) length: usize,
    /// Whether the response ends with the value, not with a further line.
    pub(crate) ends_response: bool,
}

impl LineReader {
    /// Calls `parse` with each complete line and the sink.
    pub(crate) fn feed<S: ResponseSink>(
        &mut self,
        mut input: &[u8],
        sink: &mut S,
        mut parse: impl FnMut(&[u8], &mut S) -> Result<Option<Announced>, Error>,
    ) -> Result<(), Error> {
        while !input.is_empty() {
            if self.value > 0 {
                let (now, later) = input.split_at(self.value.min(input.len()));
                sink.bytes(now);
                (self.value, input) = (self.value - now.len(), later);
                continue;
            }
            if self.line_end > 0 {
                if input[0] != LINE_END[2 - self.line_end] {
                    return Err(Error::Protocol("a value is longer than its announced length".to_owned()));
                }
                (self.line_end, input) = (self.line_end - 1, &input[1..]);
                if self.line_end == 0 && self.ends_response {
                    sink.response(Response::Values(1))?;
                }
                continue;
            }
            let end = memchr::memchr(b'\n', input).map_or(input.len(), |end| end + 1);
            let (part, later) = input.split_at(end);
            input = later;
            if self.line.len() + part.len() > LONGEST_LINE {
                return Err(Error::Protocol(format!("a line of a response exceeds {LONGEST_LINE} bytes")));
            }
            let announced = if !part.ends_with(b"\n") {
                self.line.extend_from_slice(part);
                return Ok(());
            } else if self.line.is_empty() {
                parse(part, sink)?
            } else {
                self.line.extend_from_slice(part);
                let parsed = parse(&self.line, sink)?;
                self.line.clear();
                parsed
            };
            if let Some(Announced { length, ends_response }) = announced {
                (self.value, self.line_end, self.ends_response) = (length, LINE_END.len(), ends_response);
            }
        }
        Ok(())
    }
}

/// The error for a line that is no response.
pub(crate) fn unexpected(line: &[u8]) -> Error {
    Error::Protocol(format!("unexpected response {:?}", String::from_utf8_lossy(line)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Records everything that a parser reports.
    #[derive(Default)]
    pub(crate) struct ResponseLog {
        pub(crate) responses: Vec<Response>,
        /// Key, length, CAS number and bytes.
        pub(crate) values: Vec<(Vec<u8>, usize, u64, Vec<u8>)>,
    }

    impl ResponseSink for ResponseLog {
        fn value(&mut self, key: &[u8], length: usize, cas: u64) {
            self.values.push((key.to_vec(), length, cas, Vec::new()));
        }

        fn bytes(&mut self, bytes: &[u8]) {
            self.values.last_mut().unwrap().3.extend_from_slice(bytes);
        }

        fn response(&mut self, response: Response) -> Result<(), Error> {
            self.responses.push(response);
            Ok(())
        }
    }
}
