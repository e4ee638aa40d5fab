//! What a coordinator and its agents receive from each other: neither panics on any bytes, however
//! they are cut.
//!
//! The input is two bytes that choose the receiver and the size of the chunks, and then lines. A
//! line is sent as a message after its length; one that begins with `r` is sent as it is.
#![no_main]

use loadgen::fuzzing::{greet, receive};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    greet(input);
    let [receiver, chunk_size, rest @ ..] = input else { return };
    let mut bytes = Vec::new();
    for line in rest.split(|byte| *byte == b'\n') {
        match line {
            [b'r', raw @ ..] => bytes.extend_from_slice(raw),
            [_, text @ ..] => {
                bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
                bytes.extend_from_slice(text);
            }
            [] => {}
        }
    }
    receive(receiver % 2 == 1, &bytes, usize::from(*chunk_size) + 1);
});
