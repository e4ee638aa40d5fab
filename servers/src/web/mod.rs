//! A web server: static files and a reverse proxy, by HTTP/1.1 and HTTP/2, with and without TLS,
//! and by HTTP/3 with the feature `http3`.
//!
//! ```
//! use adapters::hyper::Client;
//! use http_body_util::{BodyExt, Empty};
//! use hyper::body::Bytes;
//! use servers::web::{Config, FilesConfig, Server};
//!
//! #[runtime::main(workers = 1)]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let folder = tempfile::tempdir()?;
//!     std::fs::write(folder.path().join("index.html"), "<h1>hello</h1>")?;
//!     let config = Config {
//!         listen: vec!["127.0.0.1:0".parse()?],
//!         files: Some(FilesConfig::new(folder.path())),
//!         ..Config::default()
//!     };
//!     let server = Server::start(&config).await?;
//!     let uri = format!("http://{}/", server.addresses()[0]);
//!     let response = Client::<Empty<Bytes>>::new().get().get(uri.parse()?).await?;
//!     assert_eq!(response.headers()["content-type"], "text/html; charset=utf-8");
//!     assert_eq!(response.into_body().collect().await?.to_bytes(), "<h1>hello</h1>");
//!     Ok(())
//! }
//! ```
//!
//! The `web` command of this crate runs it.

mod access_log;
mod body;
mod chunked_end;
mod config;
mod context;
mod counters;
mod error;
#[cfg(feature = "http3")]
mod http3;
#[cfg(feature = "http3")]
mod http3_body;
#[cfg(feature = "http3")]
mod http3_frames;
mod proxy;
mod request_check;
mod routing;
mod server;
mod service;
mod static_files;
mod stats;
mod tracked_body;

pub use self::config::{
    Config, ConfigError, FilesConfig, HealthCheckConfig, Limits, NamedCertificate, ProxyConfig, TlsConfig,
};
pub use self::counters::Totals;
pub use self::error::StartError;
pub use self::proxy::{ProxyConfigError, UpstreamProblem};
pub use self::server::Server;
pub use self::static_files::RootError;
#[cfg(fuzzing)]
pub use self::static_files::fuzzing;
