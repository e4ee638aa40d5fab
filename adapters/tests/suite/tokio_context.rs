//! Tokio's context on the workers.

use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;

use crate::common::listener;

#[runtime::test(workers = 2)]
async fn tokios_timers_tasks_and_sockets_work_on_each_worker() {
    adapters::tokio_context::enter().unwrap();
    let listener = listener();
    let address = listener.local_addr().unwrap();
    let _serving = listener
        .serve(async |mut stream: net::TcpStream| {
            let _ = futures_util::AsyncWriteExt::write_all(&mut stream, b"hello").await;
        })
        .unwrap();
    for worker in 0..2 {
        let work = move || async move {
            assert_eq!(runtime::current_worker(), worker);
            let begin = Instant::now();
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(begin.elapsed() >= Duration::from_millis(20));
            let slack = || rustix::thread::current_timer_slack().unwrap();
            let there =
                tokio::spawn(async move { (std::thread::current().name().unwrap().to_owned(), slack()) });
            let (name, slack_there) = there.await.unwrap();
            // Not a worker's, whose timers are precise at the cost of wake-ups.
            assert!(name == "tokio" && slack_there > slack(), "{name}: {slack_there} ns");
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            stream.shutdown().await.ok();
            text
        };
        assert_eq!(runtime::spawn_on(worker, work).await.unwrap(), "hello");
    }
}

#[runtime::test(workers = 2)]
async fn reqwest_gets_pages_of_an_axum_application_from_each_worker() {
    let listener = listener();
    let uri = format!("http://{}/", listener.local_addr().unwrap());
    let app = Router::new().route("/", get(async || "x".repeat(100_000)));
    let server = adapters::axum::serve(listener, app).start().unwrap();
    // Both workers share its connections, which are the tokio thread's.
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for worker in 0..2 {
        let (client, uri) = (client.clone(), uri.clone());
        let get = move || async move {
            let page = client.get(uri).timeout(Duration::from_secs(60)).send().await.unwrap();
            page.error_for_status().unwrap().text().await.unwrap().len()
        };
        assert_eq!(runtime::spawn_on(worker, get).await.unwrap(), 100_000);
    }
    drop(client);
    assert_eq!(server.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

#[runtime::test(workers = 2)]
async fn a_server_enters_the_context_on_each_worker_until_the_runtime_ends() {
    assert!(Handle::try_current().is_err());
    let app = Router::new().route("/", get(async || "hello"));
    let server = adapters::axum::serve(listener(), app).start().unwrap();
    for worker in 0..2 {
        let slept = runtime::spawn_on(worker, || tokio::time::sleep(Duration::from_millis(1)));
        slept.await.unwrap();
    }
    server.shutdown(Duration::from_secs(60)).await;
}

#[test]
fn the_context_ends_with_the_runtime() {
    for _ in 0..2 {
        let runtime = runtime::Builder::new().ignore_environment().workers(1).build().unwrap();
        runtime.block_on(async { adapters::tokio_context::enter().unwrap() });
        assert!(Handle::try_current().is_ok());
        drop(runtime);
        assert!(Handle::try_current().is_err());
    }
}

#[test]
fn a_context_of_the_callers_stays_and_is_left_when_the_caller_leaves_it() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let runtime = runtime::Builder::new().ignore_environment().workers(2).build().unwrap();
    let entered = tokio.enter();
    runtime.block_on(async {
        adapters::tokio_context::enter().unwrap();
        assert_eq!(Handle::current().id(), tokio.handle().id());
        let of_other = runtime::spawn_on(1, || async { Handle::current().id() });
        assert_ne!(of_other.await.unwrap(), tokio.handle().id());
    });
    // Panics if another context was entered meanwhile.
    drop(entered);
    drop(runtime);
    assert!(Handle::try_current().is_err());
}
