//! A web server within a program: it serves a folder, and forwards `/api` to another server of the
//! same program.
//!
//! ```sh
//! cargo run -p lull-servers --example embedded_web
//! ```

use std::convert::Infallible;
use std::error::Error;

use adapters::hyper::{Client, Peer, serve};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use net::TcpListener;
use servers::web::{Config, FilesConfig, ProxyConfig, Server};

#[runtime::main(workers = 1)]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let upstream = format!("http://{}", listener.local_addr()?);
    let echo_path = |request: Request<Incoming>| async move {
        Ok::<_, Infallible>(Response::new(format!("upstream: {}", request.uri())))
    };
    let _upstream = serve(listener, move |_: &Peer| service_fn(echo_path)).start()?;

    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("index.html"), "<h1>hello</h1>\n")?;
    let config = Config {
        listen: vec!["127.0.0.1:0".parse()?],
        files: Some(FilesConfig::new(folder.path())),
        proxy: vec![ProxyConfig::new("/api", upstream)],
        ..Config::default()
    };
    let server = Server::start(&config).await?;
    let client = Client::<Empty<Bytes>>::new();
    for path in ["/", "/api/users?id=7"] {
        let uri = format!("http://{}{path}", server.addresses()[0]);
        let response = client.get().get(uri.parse()?).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        println!("{path}: {status}, {}", String::from_utf8_lossy(&body).trim());
    }
    server.shutdown().await;
    Ok(())
}
