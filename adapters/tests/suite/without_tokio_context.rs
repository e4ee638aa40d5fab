//! A program that leaves tokio's context out (`default-features = false`).

use std::sync::Mutex;
use std::time::Duration;

use adapters::hyper::Client;
use axum::Router;
use axum::routing::get;
use http_body_util::Empty;
use hyper::body::Bytes;

use crate::common::listener;

static MESSAGES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// With the heading of docs/which-crates-work.md that has the substitutes.
#[runtime::test]
async fn a_timer_of_tokios_in_a_handler_panics_and_the_book_has_what_to_do_under_its_message() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let payload = info.payload();
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|&text| text.to_owned()));
        MESSAGES.lock().unwrap().extend(text);
        before(info);
    }));
    let app = Router::new().route("/", get(async || tokio::time::sleep(Duration::from_millis(1)).await));
    let listener = listener();
    let uri = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    let server = adapters::axum::serve(listener, app).start().unwrap();
    assert!(Client::<Empty<Bytes>>::new().get().get(uri).await.is_err());
    server.shutdown(Duration::from_secs(60)).await;
    let page = include_str!("../../../docs/which-crates-work.md");
    let headings: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let messages = MESSAGES.lock().unwrap();
    assert!(messages.iter().any(|message| headings.contains(&message.as_str())), "{messages:?}");
}
