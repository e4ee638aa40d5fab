//! Several ranges of a file in one body (`multipart/byteranges`, RFC 9110, section 14.6).

use std::collections::VecDeque;

use hyper::body::Body;
use hyper::header::HeaderValue;

use crate::web::body::ResponseBody;

/// Not in any file that was not made to have it, and whoever makes one harms only its readers.
const BOUNDARY: &str = "LULL_BYTERANGES_7d1f4a0c93e25b86";

/// Parts that are being put together.
#[derive(Debug, Default)]
pub struct Multipart {
    length: u64,
    parts: VecDeque<ResponseBody>,
}

impl Multipart {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part. `head`: its header lines and the empty line after them.
    pub fn push(&mut self, head: String, body: ResponseBody) {
        let separator = if self.parts.is_empty() { "" } else { "\r\n" };
        self.add(format!("{separator}--{BOUNDARY}\r\n{head}").into_bytes().into());
        self.add(body);
    }

    fn add(&mut self, body: ResponseBody) {
        self.length += body.size_hint().lower();
        self.parts.push_back(body);
    }

    pub fn content_type(&self) -> HeaderValue {
        let value = format!("multipart/byteranges; boundary={BOUNDARY}");
        HeaderValue::try_from(value).unwrap_or_else(|_| HeaderValue::from_static("multipart/byteranges"))
    }

    /// Ends the body. Returns its length in bytes, too.
    pub fn finish(mut self) -> (u64, ResponseBody) {
        self.add(format!("\r\n--{BOUNDARY}--\r\n").into_bytes().into());
        (self.length, ResponseBody::Parts(self.parts))
    }
}
