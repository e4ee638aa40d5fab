//! Any bytes: what they are answered does not depend on how they were cut.
#![no_main]

use servers::memcached::fuzzing::converse;

libfuzzer_sys::fuzz_target!(|input: (u8, &[u8])| {
    let (piece, bytes) = (usize::from(input.0) + 1, input.1);
    let (whole, open) = converse([bytes]);
    let (cut, cut_open) = converse(bytes.chunks(piece));
    // A line that is too long is refused as soon as that shows, which may be before its end has come.
    if open && cut_open {
        assert_eq!(whole, cut);
    }
});
