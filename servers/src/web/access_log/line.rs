//! A request's line, in nginx's `combined` format.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::SystemTime;

use hyper::header::{HeaderValue, REFERER, USER_AGENT};
use hyper::{Method, Request, StatusCode, Uri, Version};

/// What the line says of a request, kept until its response has ended.
#[derive(Debug)]
pub struct LogLine {
    client: Option<SocketAddr>,
    method: Method,
    uri: Uri,
    version: Version,
    referer: Option<HeaderValue>,
    user_agent: Option<HeaderValue>,
    pub status: StatusCode,
    pub bytes: u64,
}

impl LogLine {
    pub fn of<B>(request: &Request<B>, client: Option<SocketAddr>) -> Self {
        Self {
            client,
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            referer: request.headers().get(REFERER).cloned(),
            user_agent: request.headers().get(USER_AGENT).cloned(),
            status: StatusCode::OK,
            bytes: 0,
        }
    }

    /// `now` is in UTC, as the line says.
    pub fn write(&self, line: &mut String, now: SystemTime) {
        match self.client {
            Some(client) => drop(write!(line, "{}", client.ip().to_canonical())),
            None => line.push_str("unix:"),
        }
        line.push_str(" - - [");
        write_time(line, now);
        line.push_str("] \"");
        escape(line, self.method.as_str().as_bytes());
        line.push(' ');
        // A proxy's client names the whole URI, others the path.
        match self.uri.path_and_query() {
            Some(path) => escape(line, path.as_str().as_bytes()),
            None => escape(line, self.uri.to_string().as_bytes()),
        }
        let (status, bytes) = (self.status.as_u16(), self.bytes);
        let _ = write!(line, " {:?}\" {status} {bytes} \"", self.version);
        for (index, value) in [&self.referer, &self.user_agent].into_iter().enumerate() {
            line.push_str(if index == 0 { "" } else { "\" \"" });
            match value {
                Some(value) => escape(line, value.as_bytes()),
                None => line.push('-'),
            }
        }
        line.push_str("\"\n");
    }
}

/// What clients send must not look like another line or field.
fn escape(line: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | ..0x20 | 0x7f.. => drop(write!(line, "\\x{byte:02X}")),
            _ => line.push(byte.into()),
        }
    }
}

/// As `06/Nov/1994:08:49:37 +0000`, from the format of HTTP's headers, as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn write_time(line: &mut String, now: SystemTime) {
    let date = httpdate::fmt_http_date(now);
    let part = |range: std::ops::Range<usize>| date.get(range).unwrap_or_default();
    let _ = write!(line, "{}/{}/{}:{} +0000", part(5..7), part(8..11), part(12..16), part(17..25));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_has_nginx_s_fields_and_nothing_that_a_client_could_forge() {
        let request = Request::get("/a?b=c")
            .version(Version::HTTP_11)
            .header(USER_AGENT, HeaderValue::from_bytes(b"evil\" 200 \\ \xff\t").unwrap())
            .body(())
            .unwrap();
        let mut line = LogLine::of(&request, Some("10.1.2.3:4".parse().unwrap()));
        (line.status, line.bytes) = (StatusCode::NOT_FOUND, 14);
        let mut text = String::new();
        line.write(&mut text, SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777));
        assert_eq!(
            text,
            "10.1.2.3 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b=c HTTP/1.1\" 404 14 \"-\" \
             \"evil\\x22 200 \\x5C \\xFF\\x09\"\n"
        );
    }
}
