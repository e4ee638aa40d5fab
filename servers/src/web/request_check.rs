//! Refuses requests that hyper accepts and RFC 9112 does not, and those that h3 accepts and RFC
//! 9114 does not.

use hyper::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING, UPGRADE};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Request, StatusCode, Version};

/// The status that a request is refused with. Servers before and behind this one may understand it
/// otherwise, so a connection of HTTP/1 has to be closed. A stream of HTTP/3 ends with its request.
pub fn refusal<B>(request: &Request<B>) -> Option<StatusCode> {
    if request.version() == Version::HTTP_3 {
        return (!is_well_formed(request.headers())).then_some(StatusCode::BAD_REQUEST);
    }
    if request.version() != Version::HTTP_11 {
        // HTTP/1.0 has neither header, and HTTP/2 has `:authority` and frames.
        return None;
    }
    if !has_one_host(request.headers()) {
        return Some(StatusCode::BAD_REQUEST);
    }
    if !is_only_chunked(request.headers()) {
        return Some(StatusCode::NOT_IMPLEMENTED);
    }
    None
}

/// Nothing about the connection, and at most one length (section 4.2).
fn is_well_formed(headers: &HeaderMap) -> bool {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let length = lengths.next().is_none_or(|length| length.as_bytes().iter().all(u8::is_ascii_digit));
    let foreign = [CONNECTION, TRANSFER_ENCODING, UPGRADE];
    length && lengths.next().is_none() && !foreign.iter().any(|name| headers.contains_key(name))
}

/// Exactly one, and it is valid or empty (section 3.2).
fn has_one_host(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    host.is_empty() || host.to_str().is_ok_and(is_host)
}

/// A name or an address, perhaps with a port.
fn is_host(text: &str) -> bool {
    let Ok(authority) = text.parse::<Authority>() else { return false };
    // An authority may also have a user name (`user@host`), which `Host` must not have.
    match text.strip_prefix(authority.host()).map(|rest| rest.strip_prefix(':').ok_or(rest)) {
        Some(Ok(port)) => port.bytes().all(|byte| byte.is_ascii_digit()),
        Some(Err(rest)) => rest.is_empty(),
        None => false,
    }
}

/// No other coding is known here (section 6.1). hyper looks only at the last one.
fn is_only_chunked(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => true,
        (Some(coding), None) => coding.as_bytes().eq_ignore_ascii_case(b"chunked"),
        (Some(_), Some(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(version: Version, headers: &[(&str, &str)]) -> Option<u16> {
        let mut request = Request::builder().version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        refusal(&request.body(()).unwrap()).map(|status| status.as_u16())
    }

    #[test]
    fn a_request_of_http_1_1_needs_one_valid_host() {
        for host in ["a", "a.example:8080", "127.0.0.1", "[::1]:80", ""] {
            assert_eq!(refused(Version::HTTP_11, &[("host", host)]), None, "{host}");
        }
        for host in ["a b", "a/b", "user@a", "a?b", "[::1", "a:b:c", "a:x"] {
            assert_eq!(refused(Version::HTTP_11, &[("host", host)]), Some(400), "{host}");
        }
        assert_eq!(refused(Version::HTTP_11, &[]), Some(400));
        assert_eq!(refused(Version::HTTP_11, &[("host", "a"), ("host", "a")]), Some(400));
        assert_eq!(refused(Version::HTTP_10, &[]), None);
        assert_eq!(refused(Version::HTTP_2, &[]), None);
    }

    #[test]
    fn a_request_of_http_3_says_nothing_of_its_connection_and_has_one_length() {
        assert_eq!(refused(Version::HTTP_3, &[("content-length", "5"), ("te", "trailers")]), None);
        for headers in [
            &[("content-length", "5"), ("content-length", "5")][..],
            &[("content-length", "5,5")],
            &[("transfer-encoding", "chunked")],
            &[("connection", "close")],
            &[("upgrade", "websocket")],
        ] {
            assert_eq!(refused(Version::HTTP_3, headers), Some(400), "{headers:?}");
        }
    }

    #[test]
    fn transfer_codings_other_than_chunked_are_not_implemented() {
        let coded = |values: &[&'static str]| {
            let codings = values.iter().map(|value| ("transfer-encoding", *value));
            refused(Version::HTTP_11, &[("host", "a")].into_iter().chain(codings).collect::<Vec<_>>())
        };
        assert_eq!(coded(&["chunked"]), None);
        assert_eq!(coded(&["Chunked"]), None);
        for values in [&["gzip, chunked"][..], &["x", "chunked"], &["chunked, chunked"], &[", chunked"]] {
            assert_eq!(coded(values), Some(501), "{values:?}");
        }
    }
}
