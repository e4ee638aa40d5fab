//! Fields of requests and outcomes of responses, the same for both protocols.

use crate::error::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Response {
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
