//! hyper-util's pooled client on [`net`]'s sockets, one for each worker.

mod connector;
#[cfg(feature = "tls")]
mod https;
mod stream;

use std::sync::{Arc, OnceLock};

use ::hyper::body::Body;
use hyper_util::client::legacy;

#[cfg(feature = "tonic")]
pub(crate) use self::connector::NEEDS_TLS;
pub use self::connector::{Connecting, Connector};
pub use self::stream::HttpStream;
use super::listen::BoxError;
use super::rt::{Executor, Timer};

/// hyper-util's client with this crate's [`Connector`].
pub type HttpClient<B> = legacy::Client<Connector, B>;

/// A pooled HTTP client for each worker.
///
/// A pooled connection belongs to the worker that opened it. This handle can be shared by all
/// workers, for example as axum's state; [`get`](Self::get) gives the calling worker's client, so
/// that no request crosses to another thread.
///
/// ```
/// use adapters::hyper::Client;
/// use http_body_util::{BodyExt, Empty};
/// use hyper::body::Bytes;
/// # use hyper::{Request, Response};
///
/// #[runtime::main(workers = 1)]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     # let listener = net::TcpListener::bind("127.0.0.1:0")?;
///     # let address = listener.local_addr()?;
///     # let hello = |_: Request<_>| async { Ok::<_, std::io::Error>(Response::new("hello".to_owned())) };
///     # let _server = adapters::hyper::serve(listener, move |_: &_| hyper::service::service_fn(hello)).start()?;
///     let client = Client::<Empty<Bytes>>::new();
///     let response = client.get().get(format!("http://{address}/").parse()?).await?;
///     let body = response.into_body().collect().await?.to_bytes();
///     assert_eq!(&body[..], b"hello");
///     Ok(())
/// }
/// ```
pub struct Client<B> {
    workers: Arc<[OnceLock<HttpClient<B>>]>,
    make: Arc<dyn Fn() -> HttpClient<B> + Send + Sync>,
}

impl<B> Client<B>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// Clients with hyper-util's defaults: HTTP/1, any number of connections, each closed when it
    /// was idle for 90 s. With an `https` server that offers HTTP/2 (ALPN), one connection of
    /// HTTP/2 instead.
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    /// Clients for HTTP/2 only: one connection a host. `http` servers have to know that beforehand,
    /// `https` servers to offer it by ALPN.
    pub fn http2() -> Self {
        Self::http2_with_connector(Connector::new())
    }

    /// As [`http2`](Self::http2), with another connector.
    pub fn http2_with_connector(connector: Connector) -> Self {
        #[cfg(feature = "tls")]
        let connector = connector.http2_only();
        Self::with_connector(connector, |builder| {
            builder.http2_only(true);
        })
    }

    /// Clients that `configure` sets up. The executor and the timers are set before.
    pub fn with(configure: impl Fn(&mut legacy::Builder) + Send + Sync + 'static) -> Self {
        Self::with_connector(Connector::new(), configure)
    }

    /// As [`with`](Self::with), with another connector: one that trusts other authorities, for
    /// example.
    pub fn with_connector(
        connector: Connector,
        configure: impl Fn(&mut legacy::Builder) + Send + Sync + 'static,
    ) -> Self {
        let make = move || {
            let mut builder = legacy::Client::builder(Executor::new());
            builder.timer(Timer::new()).pool_timer(Timer::new());
            configure(&mut builder);
            builder.build(connector.clone())
        };
        Self { workers: (0..runtime::workers()).map(|_| OnceLock::new()).collect(), make: Arc::new(make) }
    }

    /// The calling worker's client, which is made by its first call.
    ///
    /// # Panics
    /// Outside of the runtime in which the client was made.
    pub fn get(&self) -> &HttpClient<B> {
        let worker = runtime::current_worker();
        let client = self.workers.get(worker).expect("a client of a runtime with fewer workers");
        client.get_or_init(|| (self.make)())
    }
}

impl<B> Default for Client<B>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<B> Clone for Client<B> {
    fn clone(&self) -> Self {
        Self { workers: Arc::clone(&self.workers), make: Arc::clone(&self.make) }
    }
}

impl<B> std::fmt::Debug for Client<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}
