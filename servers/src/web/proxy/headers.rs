//! What changes in the headers of requests and responses on their way.

use std::io::Write;
use std::net::IpAddr;

use hyper::body::Body;
use hyper::header::{
    self, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use hyper::http::request;
use hyper::{Response, StatusCode, Version};

use super::error::Refusal;
use super::route::ClientInfo;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Turns the head of a client's request into that of an HTTP/1.1 request to an upstream, whose
/// `Host` the caller sets. Returns the client's host, if it gave one.
///
/// # Errors
/// If the host is ambiguous.
pub(super) fn forward_request(
    head: &mut request::Parts,
    body: &impl Body,
    client: ClientInfo,
    upgrade: Option<HeaderValue>,
) -> Result<Option<HeaderValue>, Refusal> {
    let host = client_host(head)?;
    let headers = &mut head.headers;
    remove_underscored(headers);
    let accepts_trailers = remove_hop_by_hop(headers);
    if headers.contains_key(EXPECT) {
        // Sending the body is what tells the client to continue. The upstream need not ask for it
        // again.
        headers.remove(EXPECT);
    }
    // They are dropped.
    headers.remove(TRAILER);
    frame_request(headers, body);
    if head.version >= Version::HTTP_2 {
        join(headers, &COOKIE, b"; ");
    }
    if let Some(address) = client.address {
        append_forwarded_for(headers, address.ip());
    }
    let scheme = if client.encrypted { "https" } else { "http" };
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    match &host {
        Some(host) => drop(headers.insert(X_FORWARDED_HOST, host.clone())),
        None => drop(headers.remove(X_FORWARDED_HOST)),
    }
    headers.append(VIA, HeaderValue::from_static(via(head.version)));
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    } else if accepts_trailers {
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    head.version = Version::HTTP_11;
    head.extensions.clear();
    Ok(host)
}

/// Turns the head of an upstream's response into that of a response to the client. With `upgraded`
/// its `Connection` and `Upgrade` remain.
///
/// # Errors
/// If the body has a transfer coding besides `chunked`, which nobody asked for.
pub(super) fn forward_response<B: Body>(
    response: &mut Response<B>,
    upgraded: bool,
) -> Result<(), &'static str> {
    let protocol = if upgraded { response.headers_mut().remove(UPGRADE) } else { None };
    let codings = response.headers().get_all(TRANSFER_ENCODING);
    if codings.iter().any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
        return Err("the upstream's response has a transfer coding that was not asked for");
    }
    let length = response.body().size_hint().exact();
    let ended = response.body().is_end_stream();
    let status = response.status();
    let headers = response.headers_mut();
    if headers.contains_key(TRANSFER_ENCODING) || status == StatusCode::NO_CONTENT || upgraded {
        headers.remove(CONTENT_LENGTH);
    } else if let Some(length) = length.filter(|_| !ended) {
        set_content_length(headers, length);
    } else if headers.get_all(CONTENT_LENGTH).iter().nth(1).is_some() {
        // Of a response without a body, whose lengths may differ.
        headers.remove(CONTENT_LENGTH);
    }
    remove_hop_by_hop(headers);
    if let Some(protocol) = protocol {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    *response.version_mut() = Version::HTTP_11;
    Ok(())
}

/// The protocols that an HTTP/1.1 request asks to upgrade to. None for HTTP itself: what followed
/// would pass the proxy unseen.
pub(super) fn requested_upgrade(head: &request::Parts) -> Option<HeaderValue> {
    if head.version != Version::HTTP_11 {
        return None;
    }
    let mut protocols = head.headers.get_all(UPGRADE).iter();
    let protocol = protocols.next().filter(|_| protocols.next().is_none())?;
    let allowed = tokens(protocol).all(|protocol| {
        let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
        ![&b"h2c"[..], b"h2", b"http", b"tls"].iter().any(|other| name.eq_ignore_ascii_case(other))
    });
    let mut options = head.headers.get_all(CONNECTION).iter().flat_map(tokens);
    let wanted = options.any(|option| option.eq_ignore_ascii_case(b"upgrade"));
    (allowed && wanted).then(|| protocol.clone())
}

/// The host that the request is for: that of its target, else `Host` (RFC 9112, section 3.2.2).
fn client_host(head: &request::Parts) -> Result<Option<HeaderValue>, Refusal> {
    if let Some(authority) = head.uri.authority() {
        if authority.as_str().contains('@') {
            return Err(Refusal::BadRequest);
        }
        return HeaderValue::from_str(authority.as_str()).map(Some).map_err(|_| Refusal::BadRequest);
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (_, Some(_)) => Err(Refusal::BadRequest),
        (None, _) if head.version == Version::HTTP_11 => Err(Refusal::BadRequest),
        (host, _) => Ok(host.cloned()),
    }
}

fn tokens(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|token| !token.is_empty())
}

/// Removes the headers that concern one connection (RFC 9110, section 7.6.1). `Trailer` stays,
/// without which hyper sends none of a response. Returns whether `TE` accepted them.
fn remove_hop_by_hop(headers: &mut HeaderMap) -> bool {
    // Most messages have one of these, if any: one pass finds out which.
    let [mut connection, mut te, mut transfer_encoding, mut upgrade, mut others] = [false; 5];
    for name in headers.keys() {
        match *name {
            CONNECTION => connection = true,
            TE => te = true,
            TRANSFER_ENCODING => transfer_encoding = true,
            UPGRADE => upgrade = true,
            ref name => others |= is_other_hop_by_hop(name),
        }
    }
    let mut accepts_trailers = false;
    if te {
        accepts_trailers = headers
            .get_all(TE)
            .iter()
            .flat_map(tokens)
            .any(|coding| coding.eq_ignore_ascii_case(b"trailers"));
        headers.remove(TE);
    }
    if connection {
        for name in connection_options(headers) {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    if transfer_encoding {
        headers.remove(TRANSFER_ENCODING);
    }
    if upgrade {
        headers.remove(UPGRADE);
    }
    if others {
        let names: Vec<_> = headers.keys().filter(|name| is_other_hop_by_hop(name)).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
    accepts_trailers
}

/// `Keep-Alive`, `Proxy-*`, and `Proxy`, which CGI programs would take for a setting of theirs.
fn is_other_hop_by_hop(name: &HeaderName) -> bool {
    // RFC 9110 gives these to the proxy, or to the connection; upstreams' challenges are not for
    // the proxy's clients.
    let name_text = name.as_str();
    *name == KEEP_ALIVE
        || *name == header::PROXY_AUTHENTICATE
        || *name == header::PROXY_AUTHORIZATION
        || name_text == "proxy"
        || name_text.starts_with("proxy-")
        || name_text == "http2-settings"
}

/// The headers that `Connection` names, besides those that are removed anyway.
fn connection_options(headers: &HeaderMap) -> Vec<HeaderName> {
    let options = headers.get_all(CONNECTION).iter().flat_map(tokens);
    options
        .filter(|option| {
            !option.eq_ignore_ascii_case(b"keep-alive")
                && !option.eq_ignore_ascii_case(b"close")
                && !option.eq_ignore_ascii_case(b"upgrade")
        })
        .filter_map(|option| HeaderName::from_bytes(option).ok())
        // What the message is and where it goes does not concern one connection only.
        .filter(|name| !matches!(*name, HOST | CONTENT_LENGTH))
        .collect()
}

/// Removes headers whose names have an underscore: CGI programs take `X_Forwarded_For` for
/// `X-Forwarded-For`.
fn remove_underscored(headers: &mut HeaderMap) {
    let underscored = |name: &&HeaderName| name.as_str().contains('_');
    let names: Vec<_> = headers.keys().filter(underscored).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Gives a request one framing, that of the body.
fn frame_request(headers: &mut HeaderMap, body: &impl Body) {
    if body.is_end_stream() {
        if headers.contains_key(CONTENT_LENGTH) {
            headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
    } else if let Some(length) = body.size_hint().exact() {
        set_content_length(headers, length);
    } else {
        headers.remove(CONTENT_LENGTH);
        // hyper would take a GET without it for one without a body.
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

fn set_content_length(headers: &mut HeaderMap, length: u64) {
    let mut present = headers.get_all(CONTENT_LENGTH).iter();
    let is_set = match (present.next(), present.next()) {
        // hyper has compared it with the length, but allows lists of equal lengths.
        (Some(value), None) => value.as_bytes().iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !is_set {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
}

/// Makes one header of several.
fn join(headers: &mut HeaderMap, name: &HeaderName, separator: &[u8]) {
    let values = headers.get_all(name);
    if values.iter().nth(1).is_none() {
        return;
    }
    let values: Vec<_> = values.iter().map(HeaderValue::as_bytes).collect();
    if let Ok(value) = HeaderValue::from_bytes(&values.join(separator)) {
        headers.insert(name, value);
    }
}

fn append_forwarded_for(headers: &mut HeaderMap, address: IpAddr) {
    // Larger than any address.
    let mut text = [0; 64];
    let mut rest = &mut text[..];
    let written = write!(rest, "{}", address.to_canonical());
    let unused = rest.len();
    let length = text.len() - unused;
    let Ok(value) = HeaderValue::from_bytes(&text[..length]) else { return };
    debug_assert!(written.is_ok());
    if headers.append(X_FORWARDED_FOR, value) {
        join(headers, &X_FORWARDED_FOR, b", ");
    }
}

/// The entry in `Via`: the client's version, and a pseudonym (RFC 9110, section 7.6.3).
fn via(version: Version) -> &'static str {
    match version {
        Version::HTTP_3 => "3.0 lull",
        Version::HTTP_2 => "2.0 lull",
        Version::HTTP_10 => "1.0 lull",
        _ => "1.1 lull",
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Empty, Full};
    use hyper::Request;
    use hyper::body::Bytes;

    use super::*;

    const CLIENT: ClientInfo = ClientInfo { address: None, encrypted: false };

    fn head(request: request::Builder) -> request::Parts {
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_headers_that_connection_names_are_removed_but_not_host() {
        let request = Request::get("/").header("host", "a").header("x-secret", "1").header("x-kept", "2");
        let mut head = head(request.header("connection", "X-Secret, close").header("connection", "host"));
        forward_request(&mut head, &Empty::<Bytes>::new(), CLIENT, None).unwrap();
        assert!(!head.headers.contains_key("x-secret") && !head.headers.contains_key("connection"));
        assert_eq!(head.headers["x-kept"], "2");
        assert_eq!(head.headers["host"], "a");
    }

    #[test]
    fn a_request_has_one_framing() {
        let request = Request::post("/").header("host", "a").header("content-length", "3, 3");
        let mut head = head(request.header("transfer-encoding", "chunked"));
        forward_request(&mut head, &Full::<Bytes>::from("abc"), CLIENT, None).unwrap();
        assert_eq!(head.headers["content-length"], "3");
        assert!(!head.headers.contains_key("transfer-encoding"));
    }

    #[test]
    fn the_target_decides_which_host_a_request_is_for() {
        let mut head = head(Request::get("http://real/").header("host", "other"));
        let host = forward_request(&mut head, &Empty::<Bytes>::new(), CLIENT, None).unwrap();
        assert_eq!(host.unwrap(), "real");
    }

    #[test]
    fn requests_with_several_hosts_or_none_are_refused() {
        for request in [
            Request::get("/").header("host", "a").header("host", "b"),
            Request::get("/"),
            Request::get("http://me@a/"),
        ] {
            let refused = forward_request(&mut head(request), &Empty::<Bytes>::new(), CLIENT, None);
            assert_eq!(refused.unwrap_err(), Refusal::BadRequest);
        }
    }

    #[test]
    fn cookies_of_http2_and_addresses_become_one_header() {
        let request = Request::get("https://a/").version(Version::HTTP_2).header("cookie", "a=1");
        let request = request.header("cookie", "b=2").header("x-forwarded-for", "10.0.0.1");
        let mut head = head(request.header("te", "trailers"));
        let client = ClientInfo { address: Some("[::ffff:10.0.0.2]:5".parse().unwrap()), encrypted: true };
        forward_request(&mut head, &Empty::<Bytes>::new(), client, None).unwrap();
        assert_eq!(head.headers["cookie"], "a=1; b=2");
        assert_eq!(head.headers["x-forwarded-for"], "10.0.0.1, 10.0.0.2");
        assert_eq!(head.headers["x-forwarded-proto"], "https");
        assert_eq!(head.headers["te"], "trailers");
        assert_eq!(head.headers["connection"], "te");
        assert_eq!(head.headers["via"], "2.0 lull");
    }

    #[test]
    fn http_is_not_upgraded_to_http() {
        let asked = |protocol: &str| {
            let request = Request::get("/").header("connection", "keep-alive, Upgrade");
            requested_upgrade(&head(request.header("upgrade", protocol)))
        };
        assert_eq!(asked("websocket").unwrap(), "websocket");
        for protocol in ["h2c", "websocket, h2c", "HTTP/2.0", "TLS/1.2"] {
            assert_eq!(asked(protocol), None, "{protocol}");
        }
    }

    #[test]
    fn a_response_with_a_transfer_coding_or_two_framings_is_not_passed_on_so() {
        let response = |coding: &str| {
            let response = Response::builder().header("transfer-encoding", coding);
            response.header("content-length", "5").body(Full::<Bytes>::from("abc")).unwrap()
        };
        assert!(forward_response(&mut response("gzip, chunked"), false).is_err());
        let mut chunked = response("chunked");
        forward_response(&mut chunked, false).unwrap();
        assert!(chunked.headers().is_empty(), "{:?}", chunked.headers());
    }
}
