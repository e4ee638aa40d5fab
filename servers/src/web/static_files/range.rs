//! The parts of a file that a request asks for (RFC 9110, section 14).

/// More ranges than this are no use to anybody but an attacker.
const MAX_RANGES: usize = 16;

/// Bytes of a file: the first, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    pub start: u64,
    pub length: u64,
}

/// What a `Range` header asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Ranges {
    /// Everything: another unit than bytes, a syntax error, or ranges that overlap or are too many.
    All,
    /// These, of which there is at least one.
    Some(Vec<ByteRange>),
    /// Bytes that the file doesn't have.
    Unsatisfiable,
}

/// Reads a `Range` header for a file of `size` bytes.
pub fn parse(header: &str, size: u64) -> Ranges {
    let unit = "bytes=";
    let specifications = match header.get(..unit.len()) {
        Some(given) if given.eq_ignore_ascii_case(unit) => &header[unit.len()..],
        _ => return Ranges::All,
    };
    let mut ranges = Vec::new();
    for specification in specifications.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        match parse_one(specification, size) {
            Specification::Range(range) => ranges.push(range),
            // Others may be within the file.
            Specification::BeyondTheEnd => {}
            Specification::Malformed => return Ranges::All,
        }
        if ranges.len() > MAX_RANGES {
            return Ranges::All;
        }
    }
    if ranges.is_empty() {
        return Ranges::Unsatisfiable;
    }
    // A server may ignore ranges that overlap (section 14.2): they make a small request cost much.
    let mut sorted = ranges.clone();
    sorted.sort_by_key(|range| range.start);
    match sorted.windows(2).any(|pair| pair[0].start + pair[0].length > pair[1].start) {
        true => Ranges::All,
        false => Ranges::Some(ranges),
    }
}

/// One part of the header.
enum Specification {
    Range(ByteRange),
    /// The file has no byte of it.
    BeyondTheEnd,
    Malformed,
}

fn parse_one(specification: &str, size: u64) -> Specification {
    let Some((first, last)) = specification.split_once('-') else { return Specification::Malformed };
    match (number(first), number(last)) {
        // The last bytes.
        (None, Some(length)) if first.is_empty() => match length.min(size) {
            0 => Specification::BeyondTheEnd,
            length => Specification::Range(ByteRange { start: size - length, length }),
        },
        (Some(start), None) if last.is_empty() => between(start, u64::MAX, size),
        (Some(start), Some(end)) if start <= end => between(start, end, size),
        _ => Specification::Malformed,
    }
}

/// The bytes from `start` to `end`, which is one of them, as far as the file has them.
fn between(start: u64, end: u64, size: u64) -> Specification {
    if start >= size {
        return Specification::BeyondTheEnd;
    }
    Specification::Range(ByteRange { start, length: end.min(size - 1) - start + 1 })
}

/// Digits only; a number that is too large is as good as the largest.
fn number(digits: &str) -> Option<u64> {
    let valid = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    valid.then(|| digits.parse().unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(ranges: &[(u64, u64)]) -> Ranges {
        Ranges::Some(ranges.iter().map(|&(start, length)| ByteRange { start, length }).collect())
    }

    #[test]
    fn ranges_are_cut_at_the_end_of_the_file() {
        assert_eq!(parse("bytes=0-0", 10), some(&[(0, 1)]));
        assert_eq!(parse("bytes=2-5", 10), some(&[(2, 4)]));
        assert_eq!(parse("bytes=7-", 10), some(&[(7, 3)]));
        assert_eq!(parse("bytes=7-99", 10), some(&[(7, 3)]));
        assert_eq!(parse("bytes=-3", 10), some(&[(7, 3)]));
        assert_eq!(parse("bytes=-30", 10), some(&[(0, 10)]));
        assert_eq!(parse("Bytes=0-1, 4-5 ,", 10), some(&[(0, 2), (4, 2)]));
        assert_eq!(parse("bytes=0-1,90-99", 10), some(&[(0, 2)]));
        assert_eq!(parse("bytes=0-99999999999999999999", 10), some(&[(0, 10)]));
    }

    #[test]
    fn ranges_beyond_the_end_are_unsatisfiable() {
        for (header, size) in [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)] {
            assert_eq!(parse(header, size), Ranges::Unsatisfiable, "{header} of {size}");
        }
    }

    #[test]
    fn what_is_malformed_overlaps_or_is_too_much_gets_everything() {
        for header in
            ["", "bytes", "lines=0-1", "bytes=a-b", "bytes=5-2", "bytes=1", "bytes=+1-2", "bytes=0-5,3-7"]
        {
            assert_eq!(parse(header, 10), Ranges::All, "{header}");
        }
        let many: Vec<String> = (0..40).map(|number| format!("{0}-{0}", number * 2)).collect();
        assert_eq!(parse(&format!("bytes={}", many.join(",")), 100), Ranges::All);
        assert_eq!(parse("béés=0-1", 10), Ranges::All);
    }
}
