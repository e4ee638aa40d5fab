//! What is wrong with a configuration, and how a request is refused.

use hyper::{Response, StatusCode};

use crate::web::body::{ResponseBody, error_response, method_not_allowed};

/// A [`ProxyConfig`](crate::web::config::ProxyConfig) can't be used. The message names the field,
/// its value and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyConfigError {
    /// The path is no path prefix.
    #[error(
        "proxy: path = {0:?} has to begin with / and to have no dots, doubled slashes or encodings to resolve, and none of ? # ; \\, as /api"
    )]
    Path(String),
    /// There is no upstream.
    #[error("proxy {path}: upstreams is empty; name at least one, as http://127.0.0.1:8000")]
    NoUpstreams {
        /// The path of the route.
        path: String,
    },
    /// An upstream is not a valid address.
    #[error(
        "proxy {path}: the upstream {upstream:?} {problem}; write it as http://127.0.0.1:8000 or https://host"
    )]
    Upstream {
        /// The path of the route.
        path: String,
        /// The URL of the upstream, as configured.
        upstream: String,
        /// What is wrong with it.
        problem: UpstreamProblem,
    },
    /// A time is zero.
    #[error("proxy {path}: {field} is 0; give it a time, as 5s")]
    ZeroTime {
        /// The path of the route.
        path: String,
        /// The field of the configuration.
        field: &'static str,
    },
    /// The path of the health check is no path.
    #[error("proxy {path}: health-check.path = {check:?} is no path; it has to begin with /, as /health")]
    HealthCheckPath {
        /// The path of the route.
        path: String,
        /// `health-check.path`, as configured.
        check: String,
    },
    /// The authorities that sign servers' certificates can't be read.
    #[error("proxy {path}: https upstreams can't be verified: {source}")]
    Tls {
        /// The path of the route.
        path: String,
        /// The error of reading or parsing the certificates.
        source: adapters::tls::Error,
    },
}

/// What is wrong with the URL of an upstream.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpstreamProblem {
    /// It can't be parsed.
    #[error("is no URI ({0})")]
    NoUri(#[from] hyper::http::uri::InvalidUri),
    /// Its scheme is another than `http` and `https`.
    #[error("has to begin with http:// or https://")]
    Scheme,
    /// It has no authority.
    #[error("names no host")]
    NoHost,
    /// It has a user, or a user and a password.
    #[error("has a user, which is not supported")]
    User,
    /// What follows the host is not a port.
    #[error("has no valid port")]
    Port,
    /// It has a path, a query or a fragment.
    #[error("has a path, but requests keep their own")]
    Path,
    /// Its authority can't be the value of the header `Host`.
    #[error(transparent)]
    Host(#[from] hyper::header::InvalidHeaderValue),
}

/// Why a request is answered by the proxy itself. The client gets the status only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    BadRequest,
    /// The method is TRACE, which would show a client the headers that proxies add.
    MethodNotAllowed,
    RequestTimeout,
    PayloadTooLarge,
    NotImplemented,
    BadGateway,
    /// All health checks fail.
    ServiceUnavailable,
    GatewayTimeout,
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::PayloadTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotImplemented => StatusCode::NOT_IMPLEMENTED,
            Self::BadGateway => StatusCode::BAD_GATEWAY,
            Self::ServiceUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::GatewayTimeout => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    pub(super) fn response(self) -> Response<ResponseBody> {
        match self {
            Self::MethodNotAllowed => method_not_allowed("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
            _ => error_response(self.status()),
        }
    }
}
