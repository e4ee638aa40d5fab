//! Forwards a request.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::header::{HOST, HeaderValue, MAX_FORWARDS};
use hyper::http::request;
use hyper::http::uri::PathAndQuery;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri};

use super::body::UpstreamBody;
use super::connection::{Connection, SendError, connect};
use super::error::Refusal;
use super::headers::{forward_request, forward_response, requested_upgrade};
use super::own_fault::{is_own_fault, report};
use super::pool::{Lease, WorkerPool};
use super::request_body::{RequestBody, Upload};
use super::route::{ClientInfo, ProxyRoute};
use super::upgrade::{ExtendedConnect, UpgradeLimits, copy_upgraded};
use crate::web::body::{ClientBody, ResponseBody};
use crate::web::chunked_end::ChunkedEnd;

/// How long an upstream may go on in silence after the client has closed its WebSocket over HTTP/2.
const CLOSED_STREAM_LIMIT: Duration = Duration::from_secs(10);

/// What is needed to answer a request, besides the request.
struct Exchange {
    pool: Rc<WorkerPool>,
    /// The client's connection, if it asks for an upgrade.
    upgrade: Option<OnUpgrade>,
    /// The client asks for it by a CONNECT of HTTP/2.
    connect: Option<ExtendedConnect>,
    upload: Option<Rc<Upload>>,
    /// The `Host` of the forwarded request; None for the upstream's.
    host: Option<HeaderValue>,
    /// The request may be sent twice.
    repeatable: bool,
    /// The upstreams that have failed.
    tried: Vec<usize>,
    retries: u32,
    client: Option<IpAddr>,
}

impl Exchange {
    /// Another upstream to try after this one has failed.
    fn retry(&mut self, failed: usize) -> Option<usize> {
        self.retries = self.retries.checked_sub(1)?;
        self.tried.push(failed);
        self.pool.choose(&self.tried)
    }
}

impl ProxyRoute {
    /// Answers a request with the response of an upstream.
    ///
    /// Errors are responses, too: 502 if the upstream fails, 503 if all health checks fail or it
    /// has too many requests, 504 if it takes too long, 413 if its body is longer than `body_limit`
    /// bytes, 400 or 405 for requests that are not forwarded.
    ///
    /// `end` is certain as soon as the end of a chunked request was read, unless trailers were
    /// before it.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn forward(
        &self,
        mut request: Request<ClientBody>,
        client: ClientInfo,
        body_limit: u64,
        end: Option<ChunkedEnd>,
    ) -> Response<ResponseBody> {
        // The future of an upgrade is an extension of the request.
        let upgrade = hyper::upgrade::on(&mut request);
        let (mut head, body) = request.into_parts();
        // Refused before anything of it is read.
        if body.size_hint().lower() > body_limit {
            return Refusal::PayloadTooLarge.response();
        }
        match self.prepare(&mut head, &body, upgrade, client) {
            Ok(Prepared::Answer(response)) => response,
            Ok(Prepared::Forward { upgrade, connect, host }) => {
                let (mut body, upload) = RequestBody::new(body, body_limit, end);
                // No upstream waits for a client that sends nothing.
                if let Err(refusal) = body.read_ahead(self.config.response_timeout).await {
                    return refusal.response();
                }
                let exchange = Exchange {
                    pool: self.pool(),
                    repeatable: body.is_empty() && head.method.is_idempotent(),
                    upgrade,
                    connect,
                    upload,
                    host,
                    tried: Vec::new(),
                    retries: self.config.retries,
                    client: client.address.map(|address| address.ip()),
                };
                let answer = self.exchange(Request::from_parts(head, body), exchange).await;
                answer.unwrap_or_else(Refusal::response)
            }
            Err(refusal) => {
                tracing::debug!(?client, method = %head.method, uri = %head.uri, ?refusal, "a request is not forwarded");
                refusal.response()
            }
        }
    }

    fn prepare(
        &self,
        head: &mut request::Parts,
        body: &ClientBody,
        upgrade: OnUpgrade,
        client: ClientInfo,
    ) -> Result<Prepared, Refusal> {
        let (connect, protocol) = match head.method {
            Method::CONNECT => {
                let (connect, protocol) = ExtendedConnect::convert(head)?;
                (Some(connect), Some(protocol))
            }
            Method::TRACE => return Err(Refusal::MethodNotAllowed),
            _ => (None, requested_upgrade(head)),
        };
        if head.method == Method::OPTIONS && !count_forwards(head)? {
            let mut response = Response::new(ResponseBody::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            return Ok(Prepared::Answer(response));
        }
        let upgrade = protocol.is_some().then_some(upgrade);
        let host = forward_request(head, body, client, protocol)?;
        self.set_target(head)?;
        Ok(Prepared::Forward { upgrade, connect, host: host.filter(|_| self.config.preserve_host) })
    }

    /// Makes the request's target one in origin form (RFC 9112, section 3.2.1).
    fn set_target(&self, head: &mut request::Parts) -> Result<(), Refusal> {
        let uri = &mut head.uri;
        let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
        if !target.starts_with('/') {
            let asterisk = target == "*" && head.method == Method::OPTIONS;
            return if asterisk { Ok(()) } else { Err(Refusal::BadRequest) };
        }
        let prefix = self.config.path.trim_end_matches('/');
        let rest = if self.config.strip_path { target.strip_prefix(prefix) } else { None };
        if let Some(rest) = rest.filter(|_| !prefix.is_empty()) {
            let rest = match rest.bytes().next() {
                Some(b'/') => rest.parse::<PathAndQuery>(),
                None | Some(b'?') => format!("/{rest}").parse(),
                // Another path that begins so.
                Some(_) => target.parse(),
            };
            *uri = rest.map(Uri::from).map_err(|_| Refusal::BadRequest)?;
        } else if uri.authority().is_some() {
            let target = uri.path_and_query().cloned().ok_or(Refusal::BadRequest)?;
            *uri = Uri::from(target);
        }
        Ok(())
    }

    async fn exchange(
        &self,
        mut request: Request<RequestBody>,
        mut exchange: Exchange,
    ) -> Result<Response<ResponseBody>, Refusal> {
        // A repeated request does not take an idle connection: those may be closed, too.
        let mut fresh = false;
        let mut index = exchange.pool.choose(&[]).ok_or(Refusal::ServiceUnavailable)?;
        loop {
            let pool = Rc::clone(&exchange.pool);
            let upstream = pool.get(index);
            let host = exchange.host.as_ref().unwrap_or(&upstream.upstream.host);
            request.headers_mut().insert(HOST, host.clone());
            let share = upstream.take_share(exchange.client, self.config.max_connections);
            let idle = if fresh || share.is_none() { None } else { upstream.take_idle() };
            let reused = idle.is_some();
            let connected = match idle {
                Some(connection) => Ok(connection),
                // It has enough to do, or has enough of this client: another may have less.
                None if share.is_none() || upstream.counters.open() >= self.config.max_connections => {
                    exchange.tried.push(index);
                    index = exchange.pool.choose(&exchange.tried).ok_or(Refusal::ServiceUnavailable)?;
                    continue;
                }
                None => self.connect(&pool, index).await,
            };
            let mut failed = match connected {
                Ok(mut connection) => {
                    connection.share = share;
                    let copy = exchange.repeatable.then(|| copy_request(&request));
                    let mut lease = Lease { connection, pool: Rc::clone(&pool), upstream: index };
                    let limit = self.config.response_timeout;
                    upstream.counters.count_request();
                    match lease.connection.send(request, limit, exchange.upload.as_deref()).await {
                        Ok(response) => return self.answer(response, lease, &mut exchange),
                        // The upstream has closed an idle connection.
                        Err(SendError::Unsent(unsent, _)) if reused => {
                            request = *unsent;
                            continue;
                        }
                        Err(error) => Failed::of_request(error, copy, reused),
                    }
                }
                Err(error) if is_own_fault(&error) => {
                    report(&error);
                    return Err(Refusal::ServiceUnavailable);
                }
                Err(error) => {
                    upstream.counters.count_request();
                    Failed::of_connect(&error, request)
                }
            };
            if let Some(refusal) = exchange.upload.as_ref().and_then(|upload| upload.refusal()) {
                failed = Failed { client: true, refusal, ..failed };
            }
            if failed.client {
                tracing::debug!(error = failed.error, "a client has broken its request off");
                return Err(failed.refusal);
            }
            if failed.repeat_here
                && let Some(repeated) = failed.request
            {
                // The upstream has closed the connection, most likely, as if it had been found
                // closed.
                request = repeated;
                fresh = true;
                continue;
            }
            tracing::debug!(
                upstream = upstream.upstream.address,
                error = failed.error,
                "a request has failed"
            );
            if failed.repeat_here {
                upstream.counters.count_failure();
            } else {
                upstream.record_failure(&failed.error);
            }
            let Some(repeated) = failed.request else { return Err(failed.refusal) };
            index = exchange.retry(index).ok_or(failed.refusal)?;
            request = repeated;
            fresh = false;
        }
    }

    async fn connect(&self, pool: &WorkerPool, index: usize) -> io::Result<Box<Connection>> {
        let upstream = pool.get(index);
        // Counted from the beginning: many may be connecting.
        let open = upstream.count_open();
        let stream = connect(&self.connector, &upstream.upstream, self.config.connect_timeout).await?;
        Connection::open(stream, open).await.map_err(io::Error::other)
    }

    fn answer(
        &self,
        mut response: Response<Incoming>,
        lease: Lease,
        exchange: &mut Exchange,
    ) -> Result<Response<ResponseBody>, Refusal> {
        let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        if exchange.connect.is_some() && ExtendedConnect::is_no_websocket(&response) {
            // The client's mistake: no reason to avoid the upstream.
            lease.pool.get(lease.upstream).upstream.record_success();
            return Err(Refusal::BadGateway);
        }
        let checked = match (upgraded, &exchange.upgrade) {
            (true, None) => Err("the upstream has switched protocols unasked"),
            _ => forward_response(&mut response, upgraded && exchange.connect.is_none()),
        };
        let checked = match &exchange.connect {
            Some(connect) => checked.and_then(|()| connect.convert_response(&mut response)),
            None => checked,
        };
        if let Err(error) = checked {
            lease.pool.get(lease.upstream).record_failure(&error);
            return Err(Refusal::BadGateway);
        }
        if let Some(client) = exchange.upgrade.take().filter(|_| upgraded) {
            lease.pool.get(lease.upstream).upstream.record_success();
            let limits = UpgradeLimits {
                silence: self.config.upgrade_timeout,
                // A stream of HTTP/2 that was reset reads as one that has ended.
                after_client: exchange.connect.as_ref().map(|_| CLOSED_STREAM_LIMIT),
            };
            copy_upgraded(client, lease.connection, limits);
            return Ok(response.map(|_| ResponseBody::empty()));
        }
        let (upload, limit) = (exchange.upload.take(), self.config.response_timeout);
        Ok(response.map(|body| ResponseBody::Upstream(UpstreamBody::new(body, lease, upload, limit))))
    }
}

/// What becomes of a request.
enum Prepared {
    Forward { upgrade: Option<OnUpgrade>, connect: Option<ExtendedConnect>, host: Option<HeaderValue> },
    Answer(Response<ResponseBody>),
}

/// A request without a response.
struct Failed {
    error: String,
    /// What the client is answered unless it is repeated.
    refusal: Refusal,
    /// The request, if it may be repeated.
    request: Option<Request<RequestBody>>,
    /// The upstream may have closed the idle connection before it got the request: no reason to
    /// avoid it.
    repeat_here: bool,
    /// The client is to blame.
    client: bool,
}

impl Failed {
    fn of_connect(error: &io::Error, request: Request<RequestBody>) -> Self {
        let timed_out = error.kind() == io::ErrorKind::TimedOut;
        let refusal = if timed_out { Refusal::GatewayTimeout } else { Refusal::BadGateway };
        let error = format!("cannot connect: {error}");
        Self { error, refusal, request: Some(request), repeat_here: false, client: false }
    }

    fn of_request(error: SendError, copy: Option<Request<RequestBody>>, reused: bool) -> Self {
        let (error, refusal, request) = match error {
            SendError::Unsent(request, error) => (describe(&error), Refusal::BadGateway, Some(*request)),
            SendError::Broken(error) => {
                let repeat_here = reused && !error.is_parse();
                let error = describe(&error);
                let refusal = Refusal::BadGateway;
                return Self { error, refusal, request: copy, repeat_here, client: false };
            }
            // It may be at work still: the next upstream would only have more.
            SendError::TimedOut => ("no response in time".to_owned(), Refusal::GatewayTimeout, None),
            SendError::ClientTimedOut => {
                let error = "the client has not sent its body in time".to_owned();
                let refusal = Refusal::RequestTimeout;
                return Self { error, refusal, request: None, repeat_here: false, client: true };
            }
        };
        Self { error, refusal, request, repeat_here: false, client: false }
    }
}

fn describe(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// A copy of a request without a body. It shares the bytes of the headers.
fn copy_request(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::Empty);
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    copy
}

/// Counts `Max-Forwards` down (RFC 9110, section 7.6.2). Returns whether the request may be
/// forwarded.
fn count_forwards(head: &mut request::Parts) -> Result<bool, Refusal> {
    let Some(value) = head.headers.get(MAX_FORWARDS) else { return Ok(true) };
    let number: Option<u64> = value.to_str().ok().and_then(|value| value.parse().ok());
    match number {
        None => Err(Refusal::BadRequest),
        Some(0) => Ok(false),
        Some(number) => {
            head.headers.insert(MAX_FORWARDS, HeaderValue::from(number - 1));
            Ok(true)
        }
    }
}
