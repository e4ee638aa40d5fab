//! Requests for files: a path leads to nothing outside of the root, ranges are within the file, and no header panics.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: (&str, &str, u64, &[u8])| {
    let (path, range, size, header) = input;
    servers::web::fuzzing::parse_path(path);
    servers::web::fuzzing::parse_range(&format!("bytes={range}"), size);
    servers::web::fuzzing::evaluate_headers(header);
});
