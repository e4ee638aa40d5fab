//! Probes upstreams.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use hyper::header::{CONNECTION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, StatusCode};

use super::connection::{Connection, SendError, connect};
use super::own_fault::{is_own_fault, report};
use super::request_body::RequestBody;
use super::route::ProxyRoute;
use super::upstream::{Counters, OpenConnection, Upstream};

impl ProxyRoute {
    /// Starts the health checks that are configured: a task on the calling worker. What it finds is
    /// shared by all workers. It ends when the route is dropped.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start_health_checks(self: &Arc<Self>) {
        if let Some(check) = &self.config.health_check {
            drop(runtime::spawn(run(Arc::downgrade(self), check.interval)));
        }
    }

    async fn check(&self) {
        let Some((check, target)) = self.config.health_check.as_ref().zip(self.check_target.as_ref()) else {
            return;
        };
        let probes = self.upstreams.iter().map(|upstream| async move {
            let mut request = Request::new(RequestBody::Empty);
            *request.uri_mut() = target.clone();
            let headers = request.headers_mut();
            headers.insert(HOST, upstream.host.clone());
            headers.insert(USER_AGENT, HeaderValue::from_static("lull-health-check"));
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
            let probe = runtime::timeout(check.timeout, self.probe(upstream, request, check.timeout));
            match probe.await.unwrap_or_else(|_| Err(CheckError::TimedOut(check.timeout))) {
                Err(CheckError::Unreachable(error)) if is_own_fault(&error) => report(&error),
                found => upstream.record_check(found),
            }
        });
        join_all(probes).await;
    }

    async fn probe(
        &self,
        upstream: &Upstream,
        request: Request<RequestBody>,
        limit: Duration,
    ) -> Result<(), CheckError> {
        let stream = connect(&self.connector, upstream, limit).await?;
        // It is not one of the pool's.
        let open = OpenConnection::new(&Arc::new(Counters::default()));
        let mut connection = Connection::open(stream, open).await?;
        match connection.send(request, limit, None).await {
            Ok(response) if is_healthy(response.status()) => Ok(()),
            Ok(response) => Err(CheckError::Status(response.status())),
            Err(SendError::Unsent(_, error) | SendError::Broken(error)) => Err(error.into()),
            Err(SendError::TimedOut | SendError::ClientTimedOut) => Err(CheckError::TimedOut(limit)),
        }
    }
}

/// Why a health check has failed.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Unreachable(#[from] io::Error),
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    #[error("the status is {0}")]
    Status(StatusCode),
    #[error("no answer in {0:?}")]
    TimedOut(Duration),
}

fn is_healthy(status: StatusCode) -> bool {
    status.is_success() || status.is_redirection()
}

async fn run(route: Weak<ProxyRoute>, interval: Duration) {
    loop {
        let Some(route) = route.upgrade() else { return };
        route.check().await;
        drop(route);
        runtime::sleep(interval).await;
    }
}
