//! tower's services and layers.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use adapters::hyper::{BoxError, Client};
use adapters::tower::{RateLimitLayer, TimedOut, TimeoutLayer};
use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::routing::get;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use tower::limit::ConcurrencyLimitLayer;
use tower::{ServiceBuilder, service_fn};

use crate::common::listener;

async fn get_text(client: &Client<Empty<Bytes>>, uri: &str) -> Result<(StatusCode, String), BoxError> {
    let response = client.get().get(uri.parse()?).await?;
    let status = response.status();
    Ok((status, String::from_utf8(response.into_body().collect().await?.to_bytes().to_vec())?))
}

#[runtime::test]
async fn a_tower_service_with_futures_that_are_not_send_is_served() {
    let listener = listener();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let service = service_fn(async |request: Request<Incoming>| {
        let local = Rc::new(Cell::new(request.uri().path().len()));
        runtime::sleep(Duration::from_millis(1)).await;
        Ok::<_, BoxError>(Response::new(local.get().to_string()))
    });
    let server = adapters::tower::serve(listener, service).start().unwrap();
    assert_eq!(get_text(&Client::new(), &uri).await.unwrap(), (StatusCode::OK, "1".to_owned()));
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn towers_concurrency_limit_makes_requests_wait() {
    let listener = listener();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let slow = service_fn(async |_: Request<Incoming>| {
        runtime::sleep(Duration::from_millis(50)).await;
        Ok::<_, BoxError>(Response::new(String::new()))
    });
    let service = ServiceBuilder::new().layer(ConcurrencyLimitLayer::new(2)).service(slow);
    let server = adapters::tower::serve(listener, service).start().unwrap();
    let client = Client::http2();
    let begin = Instant::now();
    let requests = (0..8).map(|_| get_text(&client, &uri));
    for answer in futures_util::future::join_all(requests).await {
        assert_eq!(answer.unwrap().0, StatusCode::OK);
    }
    // Four rounds of two.
    assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_timeout_layer_ends_slow_handlers_of_a_router() {
    let late = async |error: BoxError| match error.downcast_ref::<TimedOut>() {
        Some(timed_out) => (StatusCode::GATEWAY_TIMEOUT, timed_out.to_string()),
        None => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let layer = ServiceBuilder::new()
        .layer(HandleErrorLayer::new(late))
        .layer(TimeoutLayer::new(Duration::from_millis(50)));
    let app = Router::new()
        .route("/fast", get(async || "fast"))
        .route("/slow", get(async || std::future::pending::<String>().await))
        .layer(layer);
    let listener = listener();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let server = adapters::axum::serve(listener, app).start().unwrap();
    let client = Client::new();
    let answer = get_text(&client, &format!("{uri}/fast")).await.unwrap();
    assert_eq!(answer, (StatusCode::OK, "fast".to_owned()));
    let answer = get_text(&client, &format!("{uri}/slow")).await.unwrap();
    let text = "the service has not answered within 50ms";
    assert_eq!(answer, (StatusCode::GATEWAY_TIMEOUT, text.to_owned()));
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test]
async fn a_timeout_layer_with_a_status_needs_no_handler_of_errors() {
    let app = Router::new()
        .route("/fast", get(async || "fast"))
        .route("/slow", get(async || std::future::pending::<String>().await))
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_millis(50)));
    let listener = listener();
    let uri = format!("http://{}", listener.local_addr().unwrap());
    let server = adapters::axum::serve(listener, app).start().unwrap();
    let client = Client::new();
    for (path, answer) in [("/fast", (StatusCode::OK, "fast")), ("/slow", (StatusCode::REQUEST_TIMEOUT, ""))]
    {
        let (status, text) = get_text(&client, &format!("{uri}{path}")).await.unwrap();
        assert_eq!((status, &*text), answer);
    }
    server.shutdown(Duration::from_secs(60)).await;
}

#[runtime::test(workers = 2)]
async fn a_rate_limit_is_shared_by_all_workers_and_lets_the_others_wait() {
    let span = Duration::from_millis(200);
    let app = Router::new().route("/", get(async || "hello")).layer(RateLimitLayer::new(3, span));
    let listener = listener();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let server = adapters::axum::serve(listener, app).start().unwrap();
    let begin = Instant::now();
    let requests: Vec<_> = (0..7)
        .map(|number| {
            let uri = uri.clone();
            runtime::spawn_on(number % 2, move || async move {
                get_text(&Client::new(), &uri).await.unwrap();
                begin.elapsed()
            })
        })
        .collect();
    let mut times = Vec::new();
    for request in requests {
        times.push(request.await.unwrap());
    }
    times.sort();
    // Three in each span; a span begins with its first call.
    assert!(times[3] >= span && times[6] >= 2 * span, "{times:?}");
    server.shutdown(Duration::from_secs(60)).await;
}
