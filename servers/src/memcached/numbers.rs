//! Parses numbers as memcached does: most as plain digits, some as `strtol` and `strtoull` do.

use std::str::FromStr;

/// Parses digits, after a minus sign if the type has one. `max_length` is memcached's, in bytes.
fn parse<T: FromStr>(text: &[u8], max_length: usize) -> Option<T> {
    let is_valid = text.len() <= max_length && text.first() != Some(&b'+');
    str::from_utf8(text).ok().filter(|_| is_valid)?.parse().ok()
}

pub fn digits(text: &[u8]) -> Option<u64> {
    parse(text, 22)
}

pub fn digits_u32(text: &[u8]) -> Option<u32> {
    parse(text, 11)
}

pub fn digits_i32(text: &[u8]) -> Option<i32> {
    parse(text, 11)
}

/// Parses as `strtoll` with memcached's checks: white space, a sign, digits, then white space or
/// the end.
fn signed(text: &[u8]) -> Option<i128> {
    let text = text.trim_ascii_start();
    let number = text.split(u8::is_ascii_whitespace).next()?;
    str::from_utf8(number).ok()?.parse().ok()
}

/// Parses as `strtoull`. It would negate a negative number; memcached refuses most of those.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    signed(text)?.try_into().ok()
}

/// Parses as `strtol`, and keeps the lower 32 bits as memcached does.
pub fn expiry(text: &[u8]) -> Option<i32> {
    i64::try_from(signed(text)?).ok().map(|value| value as i32)
}

/// Parses client flags, and keeps the lower 32 bits as memcached does.
pub fn flags(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|value| value as u32)
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
