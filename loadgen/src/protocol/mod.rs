//! memcached's protocols: requests to bytes, bytes to responses.

pub(crate) mod binary;
pub(crate) mod message;
pub(crate) mod request_writer;
pub(crate) mod text;

use crate::error::Error;
use crate::protocol::binary::BinaryParser;
use crate::protocol::message::ResponseSink;
use crate::protocol::text::TextParser;

/// Splits received bytes into responses.
#[derive(Debug)]
pub(crate) enum ResponseDecoder {
    Text(TextParser),
    Binary(BinaryParser),
}

impl ResponseDecoder {
    pub(crate) fn new(binary: bool) -> Self {
        if binary { Self::Binary(BinaryParser::default()) } else { Self::Text(TextParser::default()) }
    }

    pub(crate) fn feed(&mut self, input: &[u8], sink: &mut impl ResponseSink) -> Result<(), Error> {
        match self {
            Self::Text(parser) => parser.feed(input, sink),
            Self::Binary(parser) => parser.feed(input, sink),
        }
    }
}
