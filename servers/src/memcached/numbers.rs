//! Numbers as memcached reads them: most as plain digits, some with `strtol` and its kin, which take more.

/// The longest texts that are looked at.
const LONGEST_32: usize = 11;
const LONGEST_64: usize = 22;

/// Digits and nothing else.
pub fn digits(text: &[u8]) -> Option<u64> {
    if text.len() > LONGEST_64 {
        return None;
    }
    parse(text)
}

/// Digits and nothing else, of a number of 32 bits.
pub fn digits_u32(text: &[u8]) -> Option<u32> {
    if text.len() > LONGEST_32 {
        return None;
    }
    parse(text).and_then(|value| u32::try_from(value).ok())
}

/// Digits, after a minus sign or not, of a number of 32 bits.
pub fn digits_i32(text: &[u8]) -> Option<i32> {
    if text.len() > LONGEST_32 {
        return None;
    }
    let (negative, digits) = text.strip_prefix(b"-").map_or((false, text), |digits| (true, digits));
    let value = i64::try_from(parse(digits)?).ok()?;
    i32::try_from(if negative { -value } else { value }).ok()
}

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

/// What `strtol` takes, cut to its lower 32 bits as memcached does.
pub fn expiry(text: &[u8]) -> Option<i32> {
    let (negative, digits) = split(text)?;
    let value = i128::from(parse(digits)?);
    i64::try_from(if negative { -value } else { value }).ok().map(|value| value as i32)
}

/// Flags: the lower 32 bits of what is given, as memcached keeps them.
pub fn flags(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|value| value as u32)
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
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value.checked_mul(10)?.checked_add(u64::from(digit))
    })
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
    fn plain_digits_are_all_that_most_numbers_may_have() {
        assert_eq!(digits(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(digits(b"18446744073709551616"), None);
        assert_eq!(digits(b"00000000000000000000007"), None);
        assert_eq!((digits(b"+7"), digits(b"-1"), digits(b"7 ")), (None, None, None));
        assert_eq!(digits_u32(b"4294967295"), Some(u32::MAX));
        assert_eq!((digits_u32(b"4294967296"), digits_u32(b"000000000007")), (None, None));
        assert_eq!(digits_i32(b"-2147483648"), Some(i32::MIN));
        assert_eq!((digits_i32(b"2147483648"), digits_i32(b"1x"), digits_i32(b"--1")), (None, None, None));
    }

    #[test]
    fn flags_and_expiries_keep_their_lower_32_bits() {
        assert_eq!(flags(b"4294967295"), Some(u32::MAX));
        assert_eq!(flags(b"4294967297"), Some(1));
        assert_eq!(expiry(b"2147483647"), Some(i32::MAX));
        assert_eq!(expiry(b"2147483648"), Some(i32::MIN));
        assert_eq!(expiry(b"-1"), Some(-1));
        assert_eq!(expiry(b"9223372036854775808"), None);
    }
}
