//! Responses that say what went wrong.

use bytes::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

use super::body::ResponseBody;

/// A response with a status, and its number and name as text.
pub fn error_response(status: StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(Bytes::from(format!("{status}\n")).into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// 405, with the methods that there are.
pub fn method_not_allowed(allowed: &'static str) -> Response<ResponseBody> {
    let mut response = error_response(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}
