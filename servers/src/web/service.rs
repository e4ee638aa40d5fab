//! Answers requests.

use std::convert::Infallible;
use std::sync::Arc;

use adapters::hyper::Peer;
use hyper::body::{Body, Incoming};
use hyper::header::{ALT_SVC, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};
use hyper::service::{Service, service_fn};
use hyper::{Method, Request, Response, StatusCode, Version};

use super::access_log::LogLine;
use super::body::{ClientBody, ResponseBody, error_response, method_not_allowed};
use super::chunked_end::ChunkedEnd;
use super::context::{ServerContext, Site};
use super::proxy::ClientInfo;
use super::request_check::refusal;
use super::routing::Routing;
use super::tracked_body::TrackedBody;

/// The service of one connection. `alt_svc` tells clients where HTTP/3 is served.
pub fn connection_service(
    context: &Arc<ServerContext>,
    peer: &Peer,
    alt_svc: Option<&HeaderValue>,
) -> impl Service<Request<Incoming>, Response = Response<TrackedBody>, Error = Infallible, Future: 'static>
+ 'static
+ use<> {
    let connection = Arc::new(Connection::new(context, peer, alt_svc));
    service_fn(move |request: Request<Incoming>| {
        let connection = Arc::clone(&connection);
        async move { Ok(connection.handle(request.map(ClientBody::Hyper)).await) }
    })
}

/// Answers the requests of one connection.
pub struct Connection {
    context: Arc<ServerContext>,
    site: Arc<Site>,
    peer: Peer,
    alt_svc: Option<HeaderValue>,
}

impl Connection {
    pub fn new(context: &Arc<ServerContext>, peer: &Peer, alt_svc: Option<&HeaderValue>) -> Self {
        context.counters.worker().count_connection();
        let (site, context) = (context.site(), Arc::clone(context));
        Self { context, site, peer: *peer, alt_svc: alt_svc.cloned() }
    }

    pub async fn handle(&self, request: Request<ClientBody>) -> Response<TrackedBody> {
        let log = self.site.access_log.as_ref();
        let mut line = log.map(|log| Box::new((Arc::clone(log), LogLine::of(&request, self.peer.address()))));
        let is_head = *request.method() == Method::HEAD;
        let end = ChunkedEnd::of(&request);
        let mut response = self.respond(request, end.clone()).await;
        // No request follows an upgrade.
        if end.is_some_and(|end| !end.is_certain()) && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response = closing(response);
        }
        if is_head {
            response = without_body(response);
        }
        if let Some(alt_svc) = &self.alt_svc {
            response.headers_mut().insert(ALT_SVC, alt_svc.clone());
        }
        self.context.counters.worker().count_response(response.status());
        if let Some(line) = &mut line {
            line.1.status = response.status();
        }
        response.map(|body| TrackedBody::new(body, Arc::clone(&self.context), line))
    }

    async fn respond(&self, request: Request<ClientBody>, end: Option<ChunkedEnd>) -> Response<ResponseBody> {
        if let Some(status) = refusal(&request) {
            let response = error_response(status);
            return if request.version() <= Version::HTTP_11 { closing(response) } else { response };
        }
        let path = request.uri().path();
        if self.site.stats.as_deref().is_some_and(|stats| stats == path) {
            return self.stats(request.method());
        }
        match (self.site.routes.find(path), &self.site.files) {
            (Routing::Ambiguous, _) => error_response(StatusCode::BAD_REQUEST),
            (Routing::Proxy(route), _) => {
                let client = ClientInfo { address: self.peer.address(), encrypted: self.peer.is_encrypted() };
                let body_limit = self.site.limits.body_size;
                // Boxed, so that the requests for files don't move its state about.
                Box::pin(route.forward(request, client, body_limit, end)).await
            }
            (Routing::Files, Some(files)) => files.respond(&request, &self.peer).await,
            (Routing::Files, None) => error_response(StatusCode::NOT_FOUND),
        }
    }

    fn stats(&self, method: &Method) -> Response<ResponseBody> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return method_not_allowed("GET, HEAD");
        }
        let mut text = self.context.prometheus(&self.site);
        text.push_str(&runtime::metrics::Snapshot::take().prometheus());
        let mut response = Response::new(text.into_bytes().into());
        let content_type = HeaderValue::from_static(runtime::metrics::PROMETHEUS_CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response
    }
}

/// Takes the body away, as HTTP/2 has it sent otherwise, and leaves its length. An upstream has
/// sent none.
fn without_body(response: Response<ResponseBody>) -> Response<ResponseBody> {
    if matches!(response.body(), ResponseBody::Upstream(_)) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
        parts.headers.entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    Response::from_parts(parts, ResponseBody::empty())
}

/// Closes the connection after a response of HTTP/1.
fn closing(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
