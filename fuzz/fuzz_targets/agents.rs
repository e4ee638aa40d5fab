//! The channel between load generators: only messages that the other side has sealed are accepted,
//! however they are cut.
//!
//! The input is lines. A line's first byte chooses what happens to the message that follows it on
//! the way, the first line's first bytes the receiver and the chunks. The greeting is the whole
//! input.
#![no_main]

use loadgen::fuzzing::{Tampering, greet, receive};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    greet(input);
    let [receiver, chunk_size, rest @ ..] = input else { return };
    let messages: Vec<_> = rest.split(|byte| *byte == b'\n').filter_map(message).collect();
    receive(receiver % 2 == 1, &messages, usize::from(*chunk_size) + 1);
});

/// A line: what is done to it as a letter, and its text.
fn message(line: &[u8]) -> Option<(&[u8], Tampering)> {
    let (tampering, text) = line.split_first()?;
    let bit = text.iter().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    let tampering = match tampering {
        b'c' => Tampering::ChangedBit(bit),
        b's' => Tampering::Reflected,
        b'r' => Tampering::Repeated,
        _ => Tampering::None,
    };
    Some((text, tampering))
}
