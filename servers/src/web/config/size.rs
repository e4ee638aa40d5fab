//! Sizes in bytes, with a suffix.

use serde::de::{Deserializer, Error, Visitor};

/// Reads a number of bytes, or text as `64k`, `1m` or `2g`.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    deserializer.deserialize_any(SizeVisitor)
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = u64;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a number of bytes, or text as \"64k\", \"1m\" or \"2g\"")
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<u64, E> {
        Ok(bytes)
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<u64, E> {
        u64::try_from(bytes).map_err(|_| E::custom("a size can't be negative"))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        parse(text)
            .ok_or_else(|| E::custom(format!("{text:?} is not a size; write as \"64k\", \"1m\" or \"2g\"")))
    }
}

fn parse(text: &str) -> Option<u64> {
    let shift = match text.chars().last()?.to_ascii_lowercase() {
        'k' => 10,
        'm' => 20,
        'g' => 30,
        _ => return text.parse().ok(),
    };
    let number: u64 = text[..text.len() - 1].trim_end().parse().ok()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse("12"), Some(12));
        assert_eq!(parse("64k"), Some(65_536));
        assert_eq!(parse("2 M"), Some(2 << 20));
        assert_eq!(parse("1G"), Some(1 << 30));
        for wrong in ["", "k", "1t", "-1k", "1.5m", "99999999999g", "é"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
