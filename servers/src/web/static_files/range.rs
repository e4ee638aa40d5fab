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
