//! Answers a request for a file: all of it, a range, or several in one body.

use std::collections::VecDeque;
use std::sync::Arc;

use adapters::hyper::{FileBody, Peer};
use hyper::body::Body;
use hyper::header::{
    ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderValue,
    LAST_MODIFIED, LOCATION, RANGE, VARY,
};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, Version};

use super::conditional::{self, Outcome};
use super::encoding::preferred;
use super::lookup::{Entry, Files, Lookup};
use super::range::{self, ByteRange, Ranges};
use super::served_file::{self, ServedFile};
use crate::web::body::{ResponseBody, error_response, method_not_allowed};

impl Files {
    /// Answers a request for a file.
    pub async fn respond<B>(&self, request: &Request<B>, peer: &Peer) -> Response<ResponseBody> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return method_not_allowed("GET, HEAD");
        }
        match self.look_up(request.uri().path()).await {
            Ok(Lookup::File(entry)) => send(&entry, request, peer),
            Ok(Lookup::FolderWithoutSlash) => add_slash(request),
            Ok(Lookup::Forbidden) => error_response(StatusCode::FORBIDDEN),
            Ok(Lookup::NotFound) => error_response(StatusCode::NOT_FOUND),
            Err(_) => error_response(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}

fn send<B>(entry: &Entry, request: &Request<B>, peer: &Peer) -> Response<ResponseBody> {
    let headers = request.headers();
    let encoding = match entry.varies() {
        true => preferred(headers, |encoding| entry.encoded(encoding).is_some()),
        false => None,
    };
    let file = encoding.and_then(|encoding| entry.encoded(encoding)).unwrap_or(&entry.file);
    let etag = file.etag.to_str().unwrap_or_default();
    let mut response = match conditional::evaluate(headers, etag, file.modified) {
        Outcome::PreconditionFailed => return error_response(StatusCode::PRECONDITION_FAILED),
        Outcome::NotModified => {
            let mut response = Response::new(ResponseBody::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        }
        Outcome::Send => with_body(file, request, peer),
    };
    let sent = response.headers_mut();
    sent.insert(ETAG, file.etag.clone());
    sent.insert(LAST_MODIFIED, file.last_modified.clone());
    if entry.varies() {
        sent.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    response
}

fn with_body<B>(file: &ServedFile, request: &Request<B>, peer: &Peer) -> Response<ResponseBody> {
    let sending = Sending { file, peer, version: request.version() };
    let ranges = match ranges(request.method(), request.headers(), file) {
        Ranges::All => return sending.whole(),
        Ranges::Some(ranges) => ranges,
        Ranges::Unsatisfiable => {
            let mut response = error_response(StatusCode::RANGE_NOT_SATISFIABLE);
            if let Ok(value) = HeaderValue::try_from(format!("bytes */{}", file.length)) {
                response.headers_mut().insert(CONTENT_RANGE, value);
            }
            return response;
        }
    };
    match &ranges[..] {
        [range] => sending.single(*range),
        ranges => sending.several(ranges),
    }
}

/// `Range` is defined for GET only (RFC 9110, section 14.2).
fn ranges(method: &Method, headers: &HeaderMap, file: &ServedFile) -> Ranges {
    let Some(value) = headers.get(RANGE).filter(|_| *method == Method::GET) else { return Ranges::All };
    let etag = file.etag.to_str().unwrap_or_default();
    match value.to_str() {
        Ok(value) if conditional::range_applies(headers, etag, file.modified) => {
            range::parse(value, file.length)
        }
        _ => Ranges::All,
    }
}

/// A file on the way to one client.
struct Sending<'a> {
    file: &'a ServedFile,
    peer: &'a Peer,
    version: Version,
}

impl Sending<'_> {
    fn body(&self, ByteRange { start, length }: ByteRange) -> ResponseBody {
        match &self.file.source {
            served_file::Source::Memory(bytes) => {
                bytes.slice(start as usize..(start + length) as usize).into()
            }
            served_file::Source::File(file) => {
                let body = FileBody::new(Arc::clone(file), start, length);
                // Nothing between here and the connection reads bodies.
                ResponseBody::File(body.sent_by_kernel(self.peer, self.version))
            }
        }
    }

    /// Headers that all responses with content have.
    fn response(&self, body: ResponseBody, content_type: HeaderValue) -> Response<ResponseBody> {
        let mut response = Response::new(body);
        let headers = response.headers_mut();
        headers.reserve(8);
        headers.insert(CONTENT_TYPE, content_type);
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if let Some(encoding) = self.file.encoding {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
        }
        response
    }

    fn whole(&self) -> Response<ResponseBody> {
        let all = ByteRange { start: 0, length: self.file.length };
        let mut response = self.response(self.body(all), self.file.content_type.clone());
        response.headers_mut().insert(CONTENT_LENGTH, self.file.content_length.clone());
        response
    }

    fn single(&self, range: ByteRange) -> Response<ResponseBody> {
        let mut response = self.response(self.body(range), self.file.content_type.clone());
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let headers = response.headers_mut();
        headers.insert(CONTENT_LENGTH, range.length.into());
        if let Ok(value) = HeaderValue::try_from(content_range(range, self.file.length)) {
            headers.insert(CONTENT_RANGE, value);
        }
        response
    }

    fn several(&self, ranges: &[ByteRange]) -> Response<ResponseBody> {
        let content_type = self.file.content_type.to_str().unwrap_or_default();
        let mut multipart = Multipart::new();
        for range in ranges {
            let head = format!(
                "content-type: {content_type}\r\ncontent-range: {}\r\n\r\n",
                content_range(*range, self.file.length)
            );
            multipart.push(head, self.body(*range));
        }
        let content_type = multipart.content_type();
        let (length, body) = multipart.finish();
        let mut response = self.response(body, content_type);
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
        response
    }
}

fn content_range(ByteRange { start, length }: ByteRange, size: u64) -> String {
    format!("bytes {start}-{}/{size}", start + length - 1)
}

/// Sends the client to the path with a slash at its end, on whatever host it knows this server by.
fn add_slash<B>(request: &Request<B>) -> Response<ResponseBody> {
    let uri = request.uri();
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    // A path that begins with two slashes would be taken for a host, and browsers take a backslash
    // for a slash.
    let path = uri.path().trim_start_matches('/').replace('\\', "%5C");
    let Ok(location) = HeaderValue::try_from(format!("/{path}/{query}")) else {
        return error_response(StatusCode::NOT_FOUND);
    };
    let mut response = error_response(StatusCode::MOVED_PERMANENTLY);
    response.headers_mut().insert(LOCATION, location);
    response
}

/// Separates parts. A file that contains it on purpose only breaks its own responses.
const BOUNDARY: &str = "LULL_BYTERANGES_7d1f4a0c93e25b86";

/// Parts that are being put together.
#[derive(Debug, Default)]
struct Multipart {
    length: u64,
    parts: VecDeque<ResponseBody>,
}

impl Multipart {
    fn new() -> Self {
        Self::default()
    }

    /// Adds a part. `head`: its header lines and the empty line after them.
    fn push(&mut self, head: String, body: ResponseBody) {
        let separator = if self.parts.is_empty() { "" } else { "\r\n" };
        self.add(format!("{separator}--{BOUNDARY}\r\n{head}").into_bytes().into());
        self.add(body);
    }

    fn add(&mut self, body: ResponseBody) {
        self.length += body.size_hint().lower();
        self.parts.push_back(body);
    }

    fn content_type(&self) -> HeaderValue {
        let value = format!("multipart/byteranges; boundary={BOUNDARY}");
        HeaderValue::try_from(value).unwrap_or_else(|_| HeaderValue::from_static("multipart/byteranges"))
    }

    /// Ends the body. Returns its length in bytes, too.
    fn finish(mut self) -> (u64, ResponseBody) {
        self.add(format!("\r\n--{BOUNDARY}--\r\n").into_bytes().into());
        (self.length, ResponseBody::Parts(self.parts))
    }
}
