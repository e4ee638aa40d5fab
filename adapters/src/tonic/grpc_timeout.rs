//! The header `grpc-timeout`.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};

const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The time that a request has, as its client says. `None` if it doesn't, or says it wrongly.
///
/// Format: at most eight digits and a unit, one of `H M S m u n` (gRPC over HTTP/2, "Timeout").
pub(super) fn read(headers: &HeaderMap<HeaderValue>) -> Option<Duration> {
    let text = headers.get(GRPC_TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_a_unit_are_a_time_and_anything_else_is_none() {
        let parsed = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(GRPC_TIMEOUT, HeaderValue::from_static(text));
            read(&headers)
        };
        assert_eq!(parsed("99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(parsed("2M"), Some(Duration::from_secs(120)));
        assert_eq!(parsed("3S"), Some(Duration::from_secs(3)));
        assert_eq!(parsed("0m"), Some(Duration::ZERO));
        assert_eq!(parsed("5u"), Some(Duration::from_micros(5)));
        assert_eq!(parsed("7n"), Some(Duration::from_nanos(7)));
        for wrong in ["", "S", "1", "1s", "+1S", "-1S", "123456789S", "1 S"] {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
        assert_eq!(read(&HeaderMap::new()), None);
    }
}
