//! Response parsing in either protocol.

use crate::error::Error;
use crate::protocol::binary::responses::BinaryParser;
use crate::protocol::response::ResponseSink;
use crate::protocol::text::responses::TextParser;

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
