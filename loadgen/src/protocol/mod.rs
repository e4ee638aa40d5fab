//! memcached's protocols and redis': requests to bytes, bytes to responses.

pub(crate) mod binary;
pub(crate) mod message;
pub(crate) mod request_writer;
pub(crate) mod resp;
pub(crate) mod text;

use crate::config::Protocol;
use crate::error::Error;
use crate::protocol::binary::BinaryParser;
use crate::protocol::message::ResponseSink;
use crate::protocol::resp::RespParser;
use crate::protocol::text::TextParser;

/// Splits received bytes into responses.
#[derive(Debug)]
pub(crate) enum ResponseDecoder {
    Text(TextParser),
    Binary(BinaryParser),
    Resp(RespParser),
}

impl ResponseDecoder {
    pub(crate) fn new(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Text | Protocol::Udp => Self::Text(TextParser::default()),
            Protocol::Binary => Self::Binary(BinaryParser::default()),
            Protocol::Resp => Self::Resp(RespParser::default()),
        }
    }

    pub(crate) fn feed(&mut self, input: &[u8], sink: &mut impl ResponseSink) -> Result<(), Error> {
        match self {
            Self::Text(parser) => parser.feed(input, sink),
            Self::Binary(parser) => parser.feed(input, sink),
            Self::Resp(parser) => parser.feed(input, sink),
        }
    }
}
