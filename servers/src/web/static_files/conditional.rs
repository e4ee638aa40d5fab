//! Conditional requests (RFC 9110, section 13).

use std::time::{Duration, SystemTime};

use hyper::HeaderMap;
use hyper::header::{HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE};

/// What the conditions of a request lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The file is sent.
    Send,
    /// 304: the client has it.
    NotModified,
    /// 412.
    PreconditionFailed,
}

/// Evaluates the conditions in the order of section 13.2.2. `modified` is in whole seconds, as headers have it.
pub fn evaluate(headers: &HeaderMap, etag: &str, modified: SystemTime) -> Outcome {
    let date = |name| headers.get(name).and_then(parse_date);
    if headers.contains_key(IF_MATCH) {
        if !matches(headers.get_all(IF_MATCH), etag, false) {
            return Outcome::PreconditionFailed;
        }
    } else if date(IF_UNMODIFIED_SINCE).is_some_and(|limit| modified > limit) {
        return Outcome::PreconditionFailed;
    }
    if headers.contains_key(IF_NONE_MATCH) {
        if matches(headers.get_all(IF_NONE_MATCH), etag, true) {
            return Outcome::NotModified;
        }
    } else if date(IF_MODIFIED_SINCE).is_some_and(|limit| modified <= limit) {
        return Outcome::NotModified;
    }
    Outcome::Send
}

/// Whether a `Range` counts: without `If-Range`, or if that names the present file.
pub fn range_applies(headers: &HeaderMap, etag: &str, modified: SystemTime) -> bool {
    let Some(condition) = headers.get(IF_RANGE) else { return true };
    match parse_date(condition) {
        // A date has to be equal (section 13.1.5), and no later version can have it (section 8.8.2.2).
        Some(date) => date == modified && modified.elapsed().is_ok_and(|age| age > Duration::from_secs(1)),
        None => condition.as_bytes() == etag.as_bytes(),
    }
}

fn parse_date(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}

/// Whether a list of entity tags has `etag`, which is a strong one, or is `*`. `weak`: whether weak tags may match.
fn matches<'a>(values: impl IntoIterator<Item = &'a HeaderValue>, etag: &str, weak: bool) -> bool {
    // No tag of this server has a comma.
    values.into_iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag == etag || (weak && tag.strip_prefix("W/") == Some(etag))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ETAG: &str = "\"abc\"";

    fn outcome(headers: &[(&'static str, &str)]) -> Outcome {
        let map = headers.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()));
        evaluate(&map.collect(), ETAG, SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777))
    }

    const SAME: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";

    #[test]
    fn a_client_that_has_the_file_gets_304() {
        for value in ["\"abc\"", "W/\"abc\"", "\"x\", \"abc\"", "*"] {
            assert_eq!(outcome(&[("if-none-match", value)]), Outcome::NotModified, "{value}");
        }
        assert_eq!(outcome(&[("if-none-match", "\"x\""), ("if-modified-since", SAME)]), Outcome::Send);
        assert_eq!(outcome(&[("if-modified-since", SAME)]), Outcome::NotModified);
        assert_eq!(outcome(&[("if-modified-since", BEFORE)]), Outcome::Send);
        assert_eq!(outcome(&[("if-modified-since", "yesterday")]), Outcome::Send);
    }

    #[test]
    fn a_client_that_means_another_version_gets_412() {
        assert_eq!(outcome(&[("if-match", "\"x\"")]), Outcome::PreconditionFailed);
        // Weak tags don't do here (section 13.1.1).
        assert_eq!(outcome(&[("if-match", "W/\"abc\"")]), Outcome::PreconditionFailed);
        assert_eq!(outcome(&[("if-match", "\"x\", \"abc\"")]), Outcome::Send);
        assert_eq!(outcome(&[("if-match", "*")]), Outcome::Send);
        assert_eq!(outcome(&[("if-unmodified-since", BEFORE)]), Outcome::PreconditionFailed);
        assert_eq!(outcome(&[("if-unmodified-since", SAME)]), Outcome::Send);
        // The tag goes first.
        assert_eq!(outcome(&[("if-match", ETAG), ("if-unmodified-since", BEFORE)]), Outcome::Send);
    }

    #[test]
    fn a_range_of_another_version_is_ignored() {
        let modified = httpdate::parse_http_date(SAME).unwrap();
        for (value, applies) in
            [(ETAG, true), ("\"x\"", false), ("W/\"abc\"", false), (SAME, true), (BEFORE, false)]
        {
            let headers = HeaderMap::from_iter([(IF_RANGE, value.parse().unwrap())]);
            assert_eq!(range_applies(&headers, ETAG, modified), applies, "{value}");
        }
        assert!(range_applies(&HeaderMap::new(), ETAG, modified));
    }
}
