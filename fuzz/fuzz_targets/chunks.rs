//! Arbitrary bytes: the replies do not depend on how the input is split into chunks.
#![no_main]

use servers::memcached::fuzzing::converse;

libfuzzer_sys::fuzz_target!(|input: (u8, &[u8])| {
    let (chunk_size, bytes) = (usize::from(input.0) + 1, input.1);
    let (whole, open) = converse([bytes]);
    let (split, split_open) = converse(bytes.chunks(chunk_size));
    // A line that is too long is refused as soon as that is known, which may be before its end is received.
    if open && split_open {
        assert_eq!(whole, split);
    }
});
