//! What both protocols write of a request.

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
