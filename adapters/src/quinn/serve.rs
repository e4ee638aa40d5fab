//! A server with an endpoint on each worker.

use std::future::{pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use ::quinn::{Endpoint, EndpointConfig, Incoming, ServerConfig, VarInt};
use net::{BindOptions, ShutdownReport, UdpSocket};
use runtime::JoinHandle;
use runtime::task::JoinSet;
use tokio::sync::watch;

use super::group::Member;
use super::home::Runtime;
use super::socket::Socket;

/// How long a shutdown waits until clients know that their connections are closed.
const CLOSING: Duration = Duration::from_secs(1);

/// Serves QUIC on every worker of the runtime, each with another endpoint on the same address
/// (`SO_REUSEPORT`). `handler` is called for each connection, on its worker: await the [`Incoming`]
/// to accept it. Its future need not be `Send`. A connection stays on its worker when the client's
/// address changes. `[::]` takes IPv6 only: serve `0.0.0.0`, too.
///
/// # Errors
/// `AddrInUse` if another socket has the address, or the error of another system call.
pub fn serve<H, F>(config: ServerConfig, address: SocketAddr, handler: H) -> io::Result<Server>
where
    H: Fn(Incoming) -> F + Clone + Send + 'static,
    F: Future<Output = ()> + 'static,
{
    #[cfg(feature = "tokio-context")]
    crate::tokio_context::enter()?;
    let workers = runtime::workers();
    let sockets = UdpSocket::bind_group(address, &BindOptions::new().only_v6(true), workers)?;
    // One worker has nobody to hand datagrams over to.
    let members = Member::new(if workers > 1 { workers } else { 0 });
    let mut members = members.into_iter();
    let mut endpoints = Vec::new();
    for (worker, socket) in sockets.into_iter().enumerate() {
        let home = Runtime::of_worker(worker);
        let member = members.next();
        let mut settings = EndpointConfig::default();
        if let Some(member) = &member {
            let ids = member.ids();
            settings.cid_generator(move || Box::new(ids.clone()));
        }
        let socket = Arc::new(Socket::new(socket, home.clone(), member)?);
        let (config, home) = (Some(config.clone()), Arc::new(home));
        endpoints.push(Endpoint::new_with_abstract_socket(settings, config, socket, home)?);
    }
    let (stop, stopped) = watch::channel(false);
    let open = Arc::new(AtomicUsize::new(0));
    let accept = |(worker, endpoint): (usize, &Endpoint)| {
        let (handler, endpoint) = (handler.clone(), endpoint.clone());
        let accepting = Accepting { endpoint, handler, stopped: stopped.clone(), open: Arc::clone(&open) };
        Runtime::of_worker(worker).spawn_with(move || accepting.run())
    };
    let accepting = endpoints.iter().enumerate().map(accept).collect();
    Ok(Server { endpoints, accepting, stop, open })
}

/// A server that runs in the background. Dropping it doesn't stop it.
#[derive(Debug)]
#[must_use = "keep it for its graceful shutdown"]
pub struct Server {
    endpoints: Vec<Endpoint>,
    accepting: Vec<JoinHandle<()>>,
    stop: watch::Sender<bool>,
    /// The number of handlers that have not ended.
    open: Arc<AtomicUsize>,
}

impl Server {
    /// The address that all endpoints are bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoints[0].local_addr()
    }

    /// The endpoints, in the order of the workers: for their statistics, and for another
    /// configuration.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// The number of handlers that have not ended.
    pub fn connections(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Refuses new connections, and lets handlers finish. Those that have not after `limit` are
    /// dropped. Then it closes the connections that are left, with the error code 0.
    pub async fn shutdown(self, limit: Duration) -> ShutdownReport {
        let open = self.connections();
        self.stop.send_replace(true);
        let mut accepting = self.accepting;
        let ended = runtime::timeout(limit, async {
            for task in &mut accepting {
                let _ = task.await;
            }
        });
        let mut report = ShutdownReport::default();
        if ended.await.is_err() {
            report.aborted = self.open.load(Ordering::Relaxed);
            // Their handlers are dropped with them. A task that was awaited already has ended.
            for task in accepting.iter().filter(|task| !task.is_finished()) {
                task.abort();
            }
        }
        report.finished = open.saturating_sub(report.aborted);
        for endpoint in &self.endpoints {
            endpoint.close(VarInt::from_u32(0), b"");
        }
        let _ = runtime::timeout(CLOSING, async {
            for endpoint in &self.endpoints {
                endpoint.wait_idle().await;
            }
        })
        .await;
        report
    }
}

struct Accepting<H> {
    endpoint: Endpoint,
    handler: H,
    stopped: watch::Receiver<bool>,
    open: Arc<AtomicUsize>,
}

impl<H, F> Accepting<H>
where
    H: Fn(Incoming) -> F,
    F: Future<Output = ()> + 'static,
{
    async fn run(self) {
        let mut handlers = JoinSet::new();
        let mut stopped = self.stopped;
        let mut stopped = pin!(async {
            if stopped.wait_for(|is_stopped| *is_stopped).await.is_err() {
                // The server was dropped, not shut down.
                pending::<()>().await;
            }
        });
        let mut is_stopping = false;
        loop {
            let mut accept = pin!(self.endpoint.accept());
            let accepted = poll_fn(|context| {
                // Those that have ended are forgotten.
                while let Poll::Ready(Some(_)) = handlers.poll_join_next(context) {}
                is_stopping = is_stopping || stopped.as_mut().poll(context).is_ready();
                if is_stopping && handlers.is_empty() {
                    return Poll::Ready(None);
                }
                accept.as_mut().poll(context)
            });
            let Some(incoming) = accepted.await else { return };
            if is_stopping {
                incoming.refuse();
                continue;
            }
            let open = Open::new(&self.open);
            let handled = (self.handler)(incoming);
            handlers.spawn(async move {
                let _open = open;
                handled.await;
            });
        }
    }
}

struct Open(Arc<AtomicUsize>);

impl Open {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
