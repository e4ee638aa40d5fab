//! Lines of text, whole: parsing never panics, and the words of a line are all of it but its spaces.
#![no_main]

libfuzzer_sys::fuzz_target!(|line: &[u8]| {
    servers::memcached::fuzzing::parse_line(line);
});
