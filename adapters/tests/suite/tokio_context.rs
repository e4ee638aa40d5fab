//! Tokio's context on the workers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use adapters::hyper::Client;
use adapters::tls::Acceptor;
use adapters::tls::rustls::pki_types::CertificateDer;
use adapters::tls::rustls::pki_types::pem::PemObject;
use adapters::tls::rustls::{self, ClientConfig, RootCertStore};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;

use crate::authority::Authority;
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
    // It may be that another test has done so.
    let _ = rustls::crypto::ring::default_provider().install_default();
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

/// A service that asks another one, as most do: its clients' connections are Lull's, its own are
/// reqwest's.
#[runtime::test(workers = 2)]
async fn handlers_ask_a_server_with_tls_by_reqwest_which_refuses_certificates_of_strangers() {
    let authority = Authority::new();
    let upstream_listener = listener();
    let upstream_uri = format!("https://localhost:{}/", upstream_listener.local_addr().unwrap().port());
    let acceptor = Acceptor::builder(authority.certificates("server", "localhost")).http().open().unwrap();
    let page = Router::new().route("/", get(async || "x".repeat(100_000)));
    let upstream = adapters::axum::serve(upstream_listener, page).tls(acceptor).start().unwrap();

    let client = |authority: &Authority| {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority.path()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let tls = tls.with_root_certificates(roots).with_no_client_auth();
        reqwest::Client::builder().no_proxy().tls_backend_preconfigured(tls).build().unwrap()
    };
    let ask = |client: reqwest::Client| {
        let uri = upstream_uri.clone();
        get(async move || {
            let page = client.get(uri).timeout(Duration::from_secs(60)).send().await.map_err(refused)?;
            page.text().await.map_err(refused)
        })
    };
    let (known, stranger) = (client(&authority), client(&Authority::named("stranger")));
    let app = Router::new().route("/", ask(known)).route("/stranger", ask(stranger));
    let front_listener = listener();
    let address = front_listener.local_addr().unwrap();
    let front = adapters::axum::serve(front_listener, app).start().unwrap();
    let client = Client::<Empty<Bytes>>::new();
    for worker in 0..2 {
        let client = client.clone();
        let ask = move || async move {
            let page = client.get().get(format!("http://{address}/").parse().unwrap()).await.unwrap();
            assert_eq!(page.status(), StatusCode::OK);
            assert_eq!(page.into_body().collect().await.unwrap().to_bytes().len(), 100_000);
            let uri = format!("http://{address}/stranger").parse().unwrap();
            let refused = client.get().get(uri).await.unwrap();
            assert_eq!(refused.status(), StatusCode::BAD_GATEWAY);
            let text = refused.into_body().collect().await.unwrap().to_bytes();
            String::from_utf8(text.to_vec()).unwrap()
        };
        let text = runtime::spawn_on(worker, ask).await.unwrap();
        assert!(text.contains("UnknownIssuer") || text.contains("BadSignature"), "{text}");
    }
    assert_eq!(front.shutdown(Duration::from_secs(60)).await.aborted, 0);
    assert_eq!(upstream.shutdown(Duration::from_secs(60)).await.aborted, 0);
}

fn refused(error: reqwest::Error) -> (StatusCode, String) {
    (StatusCode::BAD_GATEWAY, format!("{error:?}"))
}
