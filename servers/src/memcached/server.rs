//! Starts a server, listens, and shuts it down.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use net::{
    BindOptions, Serving, ShutdownReport, TcpKeepalive, TcpListener, TcpStream, UdpServing, UnixListener,
    UnixStream,
};

use super::config::Config;
use super::context::{Credentials, ReloadError, ServerContext, StartError};
use super::listen::{BoundPath, bind, check_address, remove_stale_socket};
use super::{connection, udp};

/// How often the store is maintained, and for how long: at most about 2 % of a core, and at least
/// one segment.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(100);
const MAINTENANCE_TIME: Duration = Duration::from_millis(2);

/// A running server. It continues to run when this is dropped; [`Server::shutdown`] ends it.
#[derive(Debug)]
pub struct Server {
    context: Arc<ServerContext>,
    serving: Vec<Serving>,
    addresses: Vec<SocketAddr>,
    udp: Vec<UdpServing>,
    unix_socket: Option<BoundPath>,
}

impl Server {
    /// Starts to listen, on every worker of the current runtime. An address that is in use is
    /// waited for, for a second: a killed server's socket stays open for a moment.
    ///
    /// # Errors
    /// If an address cannot be listened on or is not protected, or if the users or the certificates
    /// cannot be read.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        Self::start_with(config, Credentials::read(config)?).await
    }

    /// As [`start`](Self::start), with credentials that were read before: a program may read them as
    /// root, and then give root up.
    ///
    /// # Errors
    /// If an address cannot be listened on or is not protected.
    pub async fn start_with(config: &Config, credentials: Credentials) -> Result<Self, StartError> {
        let context = Arc::new(ServerContext::new(config, credentials, runtime::workers()));
        let (serving, addresses, udp) = (Vec::new(), Vec::new(), Vec::new());
        let mut server = Self { context, serving, addresses, udp, unix_socket: None };
        match &config.unix_socket {
            Some(path) => server.listen_on_path(path, config).await?,
            None => server.listen_on_addresses(config).await?,
        }
        let context = Arc::downgrade(&server.context);
        drop(runtime::spawn(repeat(MAINTENANCE_INTERVAL, context, |context| {
            context.store.maintain(MAINTENANCE_TIME);
        })));
        Ok(server)
    }

    async fn listen_on_path(&mut self, path: &Path, config: &Config) -> Result<(), StartError> {
        let failed = cannot_listen(path.display());
        remove_stale_socket(path).await.map_err(&failed)?;
        let options = BindOptions::new().backlog(config.backlog).mode(config.unix_mode & 0o777);
        let listener = UnixListener::bind_with(path, &options).map_err(&failed)?;
        self.unix_socket = Some(BoundPath::of(path).map_err(&failed)?);
        let (context, name) = self.listed(format!("unix:{}", path.display()));
        let serving = listener.serve(move |stream: UnixStream| {
            connection::handle(stream, Arc::clone(&context), "unix:".into(), Arc::clone(&name))
        });
        self.serving.push(serving.map_err(&failed)?);
        Ok(())
    }

    /// Shows an address as listening. Returns what its connections share.
    fn listed(&self, address: String) -> (Arc<ServerContext>, Arc<str>) {
        let name = Arc::from(&*address);
        self.context.listen_addresses().push(address);
        (Arc::clone(&self.context), name)
    }

    async fn listen_on_addresses(&mut self, config: &Config) -> Result<(), StartError> {
        // All TCP addresses are bound before any is served: where one is in use, nothing has answered.
        let mut listeners = Vec::new();
        for &(ip, port) in &config.listen {
            check_address(config, ip)?;
            if let Some(port) = port.or(config.port) {
                let address = SocketAddr::new(ip, port);
                let listener = bind(address, config.backlog).await.map_err(cannot_listen(address))?;
                listeners.push((address, listener));
            }
        }
        // A UDP address is served as soon as it is bound.
        for (ip, port) in config.listen.iter().filter_map(|&(ip, _)| Some((ip, config.udp_port?))) {
            let address = SocketAddr::new(ip, port);
            let failed = cannot_listen(format!("UDP {address}"));
            let service = udp::serve(address, &self.context).map_err(&failed)?;
            self.listed(format!("udp:{}", service.local_addr()));
            self.udp.push(service);
        }
        for (address, listener) in listeners {
            self.serve(listener).map_err(cannot_listen(address))?;
        }
        Ok(())
    }

    /// Serves a listening socket that the process inherited, as from systemd.
    ///
    /// # Errors
    /// If the socket cannot be served or its address is not protected.
    pub fn add_listener(&mut self, listener: std::net::TcpListener) -> Result<(), StartError> {
        let failed = cannot_listen("an inherited socket");
        let ip = listener.local_addr().map_err(&failed)?.ip();
        check_address(&self.context.config, ip)?;
        TcpListener::from_std(listener).and_then(|listener| self.serve(listener)).map_err(&failed)
    }

    fn serve(&mut self, listener: TcpListener) -> io::Result<()> {
        let local = listener.local_addr()?;
        self.addresses.push(local);
        let (context, local) = self.listed(format!("tcp:{local}"));
        let serving = listener.serve(move |stream: TcpStream| {
            // Replies are written in one piece, so Nagle's algorithm would only delay them. Both
            // fail only if the client has disconnected.
            let _ = stream.set_nodelay(true);
            let _ = stream.set_keepalive(Some(TcpKeepalive::new().with_time(context.config.keepalive)));
            let peer = stream.peer_addr().map_or_else(|_| "tcp:".to_owned(), |peer| format!("tcp:{peer}"));
            // Not `into`: the allocator keeps the place of what the string was made with.
            connection::handle(stream, Arc::clone(&context), Box::from(&*peer), Arc::clone(&local))
        })?;
        self.serving.push(serving);
        Ok(())
    }

    /// The TCP addresses, with the ports that were taken.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The UDP addresses, with the ports that were taken.
    pub fn udp_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.udp.iter().map(UdpServing::local_addr)
    }

    /// Reads users and certificates again.
    ///
    /// # Errors
    /// If a file cannot be read or is invalid. The present users and certificates then stay in use.
    pub fn reload(&self) -> Result<(), ReloadError> {
        self.context.reload()
    }

    /// Waits until a client has sent `shutdown`, if the configuration allows that.
    pub fn shutdown_requested(&self) -> impl Future<Output = ()> + use<> {
        let context = Arc::clone(&self.context);
        async move { drop(context.shutdown.acquire().await) }
    }

    /// Stops listening and waits until connections have finished their current requests.
    /// Connections that have not finished after `deadline` are aborted.
    pub async fn shutdown(self, deadline: Duration) -> ShutdownReport {
        let mut total = ShutdownReport::default();
        // While this server listens, no other takes its path. One that starts later may.
        if let Some(path) = &self.unix_socket {
            path.remove();
        }
        join_all(self.udp.into_iter().map(UdpServing::stop)).await;
        let ending = self.serving.into_iter().map(|serving| serving.shutdown(deadline));
        for report in join_all(ending).await {
            total += report;
        }
        total
    }
}

fn cannot_listen(address: impl std::fmt::Display) -> impl Fn(io::Error) -> StartError {
    let address = address.to_string();
    move |source| StartError::Listen { address: address.clone(), source }
}

/// Calls `work` at intervals for as long as the server exists, also after a panic in it: without
/// maintenance the store's clock stands still, and nothing expires.
async fn repeat<T>(interval: Duration, context: Weak<T>, mut work: impl FnMut(&T)) {
    loop {
        runtime::sleep(interval).await;
        let Some(context) = context.upgrade() else { return };
        // The panic hook has reported it. A part of the store that it left inconsistent is emptied
        // when it is locked next. The payload is leaked, as it may panic when it is dropped.
        if let Err(payload) = std::panic::catch_unwind(AssertUnwindSafe(|| work(&context))) {
            std::mem::forget(payload);
            tracing::error!("the maintenance of the store panicked; it goes on");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[runtime::test(workers = 1)]
    async fn maintenance_goes_on_after_a_panic() {
        let calls = std::rc::Rc::new(std::cell::Cell::new(0));
        let (context, counted) = (Arc::new(()), std::rc::Rc::clone(&calls));
        let task = runtime::spawn(repeat(Duration::from_millis(1), Arc::downgrade(&context), move |()| {
            counted.set(counted.get() + 1);
            assert!(counted.get() != 2, "the second call fails");
        }));
        while calls.get() < 4 && !task.is_finished() {
            runtime::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(calls.get(), 4, "it ended");
        drop(context);
        task.await.unwrap();
    }
}
