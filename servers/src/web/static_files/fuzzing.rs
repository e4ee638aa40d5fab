//! Entry points for fuzzing. Compiled with `--cfg fuzzing` only.

use std::path::Component;
use std::time::SystemTime;

use hyper::HeaderMap;
use hyper::header::{
    ACCEPT_ENCODING, HeaderName, HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE,
};

use super::conditional;
use super::encoding::preferred;
use super::range::{self, Ranges};
use super::request_path::RequestPath;

/// Parses a path.
///
/// # Panics
/// If what it leads to could be outside of the root, or hidden.
pub fn parse_path(path: &str) {
    for dotfiles in [false, true] {
        let Ok(parsed) = RequestPath::parse(path, dotfiles) else { continue };
        let relative = parsed.relative();
        assert!(!relative.as_os_str().as_encoded_bytes().contains(&0));
        let is_root = relative.as_os_str() == ".";
        for component in relative.components() {
            match component {
                Component::Normal(name) => assert!(dotfiles || !name.as_encoded_bytes().starts_with(b".")),
                Component::CurDir => assert!(is_root),
                other => panic!("{other:?} in {}", relative.display()),
            }
        }
    }
}

/// Reads a `Range` header for a file of `size` bytes.
///
/// # Panics
/// If a range is empty, outside of the file, or overlaps another.
pub fn parse_range(header: &str, size: u64) {
    let Ranges::Some(mut ranges) = range::parse(header, size) else { return };
    assert!(!ranges.is_empty());
    ranges.sort_by_key(|range| range.start);
    let mut end = 0;
    for range in ranges {
        assert!(range.length > 0 && range.start >= end);
        end = range.start + range.length;
    }
    assert!(end <= size);
}

/// Evaluates headers about a file.
///
/// # Panics
/// If an encoding is chosen that there is not.
pub fn evaluate_headers(value: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(value) else { return };
    let headers = |name: HeaderName| HeaderMap::from_iter([(name, value.clone())]);
    for name in [IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE] {
        let _ = conditional::evaluate(&headers(name), "\"abc\"", SystemTime::UNIX_EPOCH);
    }
    let _ = conditional::range_applies(&headers(IF_RANGE), "\"abc\"", SystemTime::UNIX_EPOCH);
    assert_eq!(preferred(&headers(ACCEPT_ENCODING), |_| false), None);
}
