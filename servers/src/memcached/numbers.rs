//! Numbers as memcached reads them: with `strtol` and its kin, which take more than digits.

/// What `strtoull` with memcached's checks takes: white space, a sign, digits, then the end or white
/// space.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    let (negative, digits) = split(text)?;
    let value: u64 = parse(digits)?;
    // strtoull negates; memcached refuses what looks negative afterwards.
    if !negative {
        return Some(value);
    }
    let negated = value.wrapping_neg();
    (negated as i64 >= 0).then_some(negated)
}

/// What `strtol` takes.
pub fn signed(text: &[u8]) -> Option<i64> {
    let (negative, digits) = split(text)?;
    let value = i128::from(parse(digits)?);
    i64::try_from(if negative { -value } else { value }).ok()
}

/// Flags: the lower 32 bits of what is given, as memcached keeps them.
pub fn flags(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|value| value as u32)
}

/// A length: 32 bits, signed.
pub fn length(text: &[u8]) -> Option<i32> {
    signed(text).and_then(|value| i32::try_from(value).ok())
}

fn split(text: &[u8]) -> Option<(bool, &[u8])> {
    let text = trim_start(text);
    let (negative, rest) = match text.split_first()? {
        (b'-', rest) => (true, rest),
        (b'+', rest) => (false, rest),
        _ => (false, text),
    };
    let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    let (digits, tail) = rest.split_at(end);
    let ends = tail.first().is_none_or(|byte| is_space(*byte));
    (!digits.is_empty() && ends).then_some((negative, digits))
}

fn parse(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, digit| value.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

fn trim_start(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !is_space(*byte)).unwrap_or(text.len());
    &text[start..]
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_parse_as_strtoull_would_have_them() {
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned(b" 7"), Some(7));
        assert_eq!(unsigned(b"9 "), Some(9));
        assert_eq!(unsigned(b"+7"), Some(7));
        assert_eq!(unsigned(b"-1"), None);
        assert_eq!(unsigned(b"7x"), None);
        assert_eq!(unsigned(b""), None);
        assert_eq!(unsigned(b" "), None);
    }

    #[test]
    fn limits_of_flags_lengths_and_expiries() {
        assert_eq!(flags(b"4294967295"), Some(u32::MAX));
        assert_eq!(flags(b"4294967297"), Some(1));
        assert_eq!(length(b"2147483647"), Some(i32::MAX));
        assert_eq!(length(b"2147483648"), None);
        assert_eq!(signed(b"-9223372036854775808"), Some(i64::MIN));
        assert_eq!(signed(b"9223372036854775808"), None);
    }
}
