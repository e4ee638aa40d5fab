//! memcached's protocols: requests to bytes, bytes to responses.

pub(crate) mod binary;
pub(crate) mod request;
pub(crate) mod request_writer;
pub(crate) mod response;
pub(crate) mod response_decoder;
pub(crate) mod text;
