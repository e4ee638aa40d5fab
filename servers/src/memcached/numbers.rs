//! Parses numbers as memcached does: most as plain digits, some as `strtol` and `strtoull` do.

/// The longest text of a 32-bit and of a 64-bit number, in bytes.
const MAX_LENGTH_32: usize = 11;
const MAX_LENGTH_64: usize = 22;

pub fn digits(text: &[u8]) -> Option<u64> {
    if text.len() > MAX_LENGTH_64 {
        return None;
    }
    parse(text)
}

pub fn digits_u32(text: &[u8]) -> Option<u32> {
    if text.len() > MAX_LENGTH_32 {
        return None;
    }
    parse(text).and_then(|value| u32::try_from(value).ok())
}

/// Parses an optional minus sign and digits, as a 32-bit number.
pub fn digits_i32(text: &[u8]) -> Option<i32> {
    if text.len() > MAX_LENGTH_32 {
        return None;
    }
    let (negative, digits) = text.strip_prefix(b"-").map_or((false, text), |digits| (true, digits));
    let value = i64::try_from(parse(digits)?).ok()?;
    i32::try_from(if negative { -value } else { value }).ok()
}

/// Parses as `strtoull` with memcached's checks: white space, a sign, digits, then white space or
/// the end.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    let (negative, digits) = split_sign(text)?;
    let value: u64 = parse(digits)?;
    // `strtoull` negates the number; memcached refuses results that are negative as a signed
    // number.
    if !negative {
        return Some(value);
    }
    let negated = value.wrapping_neg();
    (negated as i64 >= 0).then_some(negated)
}

/// Parses as `strtol`, and keeps the lower 32 bits as memcached does.
pub fn expiry(text: &[u8]) -> Option<i32> {
    let (negative, digits) = split_sign(text)?;
    let value = i128::from(parse(digits)?);
    i64::try_from(if negative { -value } else { value }).ok().map(|value| value as i32)
}

/// Parses client flags, and keeps the lower 32 bits as memcached does.
pub fn flags(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|value| value as u32)
}

fn split_sign(text: &[u8]) -> Option<(bool, &[u8])> {
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
    fn unsigned_parses_as_strtoull() {
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
    fn digits_accepts_nothing_but_digits() {
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
    fn flags_and_expiry_keep_the_lower_32_bits() {
        assert_eq!(flags(b"4294967295"), Some(u32::MAX));
        assert_eq!(flags(b"4294967297"), Some(1));
        assert_eq!(expiry(b"2147483647"), Some(i32::MAX));
        assert_eq!(expiry(b"2147483648"), Some(i32::MIN));
        assert_eq!(expiry(b"-1"), Some(-1));
        assert_eq!(expiry(b"9223372036854775808"), None);
    }
}
