//! Crates that need tokio's runtime, in its context.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::listener;

#[runtime::test(workers = 2)]
async fn tokios_timers_tasks_and_sockets_work_on_each_worker_and_end_with_the_context() {
    let context = adapters::tokio_context::start().await.unwrap();
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
            let here = std::thread::current().id();
            let there = tokio::spawn(async { std::thread::current().id() }).await.unwrap();
            assert_ne!(here, there);
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).await.unwrap();
            stream.shutdown().await.ok();
            text
        };
        assert_eq!(runtime::spawn_on(worker, work).await.unwrap(), "hello");
    }
    drop(context);
    runtime::yield_now().await;
    runtime::sleep(Duration::from_millis(20)).await;
    assert!(tokio::runtime::Handle::try_current().is_err());
}

#[runtime::test(workers = 2)]
async fn two_workers_that_start_a_context_at_the_same_time_share_it() {
    use adapters::tokio_context::start;
    for _ in 0..10 {
        let there = runtime::spawn_on(1, || async { start().await.unwrap() });
        let (here, there) = (start().await.unwrap(), there.await.unwrap());
        let threads =
            [&here, &there].map(|context| context.handle().spawn(async { std::thread::current().id() }));
        let [first, second] = threads;
        assert_eq!(first.await.unwrap(), second.await.unwrap());
        drop((here, there));
        runtime::sleep(Duration::from_millis(20)).await;
        assert!(tokio::runtime::Handle::try_current().is_err());
    }
}

#[runtime::test(workers = 2)]
async fn reqwest_gets_pages_of_an_axum_application_from_each_worker() {
    let _tokio = adapters::tokio_context::start().await.unwrap();
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

/// How often tokio has panicked because of it. The runtime catches panics of a future that is
/// dropped.
static OUT_OF_ORDER: AtomicUsize = AtomicUsize::new(0);

fn count_guards_that_are_dropped_out_of_order() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_of_guard =
                info.payload().downcast_ref::<&str>().is_some_and(|message| message.contains("EnterGuard"));
            OUT_OF_ORDER.fetch_add(usize::from(is_of_guard), Ordering::Relaxed);
            before(info);
        }));
    });
}

#[runtime::test(workers = 2)]
async fn a_second_context_shares_the_first_and_they_end_in_any_order() {
    count_guards_that_are_dropped_out_of_order();
    let first = adapters::tokio_context::start().await.unwrap();
    let second = adapters::tokio_context::start().await.unwrap();
    drop(first);
    let slept = || tokio::time::sleep(Duration::from_millis(1));
    slept().await;
    runtime::spawn_on(1, move || async move { slept().await }).await.unwrap();
    drop(second);
    let third = adapters::tokio_context::start().await.unwrap();
    runtime::spawn_on(1, move || async move { slept().await }).await.unwrap();
    drop(third);
    runtime::yield_now().await;
    assert_eq!(OUT_OF_ORDER.load(Ordering::Relaxed), 0, "a worker has left tokio's contexts out of order");
}
