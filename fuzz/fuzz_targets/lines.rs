//! Text lines: parsing never panics, and the tokens of a line are all of its bytes except spaces.
#![no_main]

libfuzzer_sys::fuzz_target!(|line: &[u8]| {
    fuzz::parse_line(line);
});
