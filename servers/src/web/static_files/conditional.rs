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

/// Evaluates the conditions in the order of section 13.2.2. `modified` is in whole seconds, as
/// headers have it.
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
        // A date has to be equal (section 13.1.5), and no later version can have it (section
        // 8.8.2.2).
        Some(date) => date == modified && modified.elapsed().is_ok_and(|age| age > Duration::from_secs(1)),
        None => condition.as_bytes() == etag.as_bytes(),
    }
}

fn parse_date(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}

/// Whether a list of entity tags has `etag`, which is a strong one, or is `*`. `weak`: whether weak
/// tags may match.
fn matches<'a>(values: impl IntoIterator<Item = &'a HeaderValue>, etag: &str, weak: bool) -> bool {
    // No tag of this server has a comma.
    values.into_iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).any(|tag| {
        let tag = tag.trim();
        tag == "*" || tag == etag || (weak && tag.strip_prefix("W/") == Some(etag))
    })
}
