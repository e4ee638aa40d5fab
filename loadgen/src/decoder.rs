//! Answers in either protocol.

use crate::answers::{Answers, Sink};
use crate::binary::BinaryAnswers;
use crate::error::Error;

/// Splits what a server sends into answers.
#[derive(Debug)]
pub(crate) enum Decoder {
    Text(Answers),
    Binary(BinaryAnswers),
}

impl Decoder {
    pub(crate) fn new(binary: bool) -> Self {
        if binary { Self::Binary(BinaryAnswers::default()) } else { Self::Text(Answers::default()) }
    }

    pub(crate) fn feed(&mut self, input: &[u8], sink: &mut impl Sink) -> Result<(), Error> {
        match self {
            Self::Text(answers) => answers.feed(input, sink),
            Self::Binary(answers) => answers.feed(input, sink),
        }
    }
}
