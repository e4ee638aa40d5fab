//! Listening, and what becomes of a connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::AsyncWriteExt;
use futures_util::future::join_all;
use futures_util::io::BufReader;
use net::{Alignment, Serving, ShutdownReport, Stream, TcpListener, TcpStream, UnixListener, UnixStream};

use super::settings::Config;
use super::shared::{Place, Shared};
use super::store::Store;
use super::tls::Tls;
use super::{connection, udp};

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address could not be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address or path.
        address: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Everybody could use the server.
    #[error(
        "{0} can be reached from outside, and clients need not say who they are; ask them to (-Y or -S), \
         or listen on a loopback or private address (-l), or give --listen-unauthenticated"
    )]
    Unprotected(IpAddr),
    /// The file of users can't be used.
    #[error("{0}")]
    Users(io::Error),
    /// Certificates or key can't be used.
    #[error("TLS: {0}")]
    Tls(io::Error),
}

/// A running server. Dropping it lets it go on; [`Server::shutdown`] ends it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    serving: Vec<Serving>,
    addresses: Vec<SocketAddr>,
    udp: Vec<udp::Service>,
    unix_socket: Option<PathBuf>,
}

impl Server {
    /// Starts listening, on every worker of the runtime.
    ///
    /// # Errors
    /// Where an address can't be listened on, or must not be, or the file of users can't be read.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let shared = Arc::new(Shared::new(config, runtime::workers())?);
        let (serving, addresses, udp) = (Vec::new(), Vec::new(), Vec::new());
        let mut server = Self { shared, serving, addresses, udp, unix_socket: None };
        match &config.unix_socket {
            Some(path) => server.listen_on_path(path, config)?,
            None => server.listen_on_addresses(config)?,
        }
        drop(runtime::spawn(tend(Arc::downgrade(&server.shared))));
        Ok(server)
    }

    fn listen_on_path(&mut self, path: &Path, config: &Config) -> Result<(), StartError> {
        let failed = |source| StartError::Listen { address: path.display().to_string(), source };
        remove_stale(path).map_err(failed)?;
        let mode = config.unix_mode & 0o777;
        let listener = UnixListener::bind_with_mode(path, config.backlog, mode).map_err(failed)?;
        self.unix_socket = Some(path.to_owned());
        let shared = Arc::clone(&self.shared);
        let name = format!("unix:{}", path.display());
        self.shared.listens(name.clone());
        let serving = listener.serve(move |stream: UnixStream| {
            handle(stream, Arc::clone(&shared), "unix:".to_owned(), name.clone())
        });
        self.serving.push(serving.map_err(failed)?);
        Ok(())
    }

    fn listen_on_addresses(&mut self, config: &Config) -> Result<(), StartError> {
        // All are bound before any is served.
        let mut listeners = Vec::new();
        for &(ip, port) in &config.listen {
            may_listen(config, ip)?;
            if let Some(port) = port.or(config.port) {
                let address = SocketAddr::new(ip, port);
                let failed = |source| StartError::Listen { address: address.to_string(), source };
                let listener = TcpListener::bind_with_backlog(address, config.backlog).map_err(failed)?;
                listeners.push((address, listener));
            }
            if let Some(port) = config.udp_port {
                let address = SocketAddr::new(ip, port);
                let failed = |source| StartError::Listen { address: format!("UDP {address}"), source };
                let service = udp::serve(address, &self.shared).map_err(failed)?;
                self.shared.listens(format!("udp:{}", service.address()));
                self.udp.push(service);
            }
        }
        for (address, listener) in listeners {
            let failed = |source| StartError::Listen { address: address.to_string(), source };
            self.serve(listener).map_err(failed)?;
        }
        Ok(())
    }

    /// Takes over a listening socket, as systemd hands them to services.
    ///
    /// # Errors
    /// Where it can't be served, or must not be.
    pub fn adopt(&mut self, listener: std::net::TcpListener) -> Result<(), StartError> {
        let failed = |source| StartError::Listen { address: "a socket that was passed".to_owned(), source };
        let ip = listener.local_addr().map_err(failed)?.ip();
        may_listen(&self.shared.settings, ip)?;
        TcpListener::from_std(listener).and_then(|listener| self.serve(listener)).map_err(failed)
    }

    fn serve(&mut self, listener: TcpListener) -> io::Result<()> {
        let local = listener.local_addr()?;
        self.addresses.push(local);
        self.shared.listens(format!("tcp:{local}"));
        let shared = Arc::clone(&self.shared);
        let serving = listener.serve(move |stream: TcpStream| {
            let shared = Arc::clone(&shared);
            async move {
                // Answers are whole when they are sent, so there is nothing to wait for. Fails
                // only on a connection that is gone.
                let _ = stream.set_nodelay(true);
                let peer =
                    stream.peer_addr().map_or_else(|_| "tcp:".to_owned(), |peer| format!("tcp:{peer}"));
                handle(stream, shared, peer, format!("tcp:{local}")).await;
            }
        })?;
        self.serving.push(serving);
        Ok(())
    }

    /// The addresses that are listened on, with the ports that were taken.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The UDP addresses.
    pub fn udp_addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.udp.iter().map(udp::Service::address)
    }

    /// Where connections went so far, all listeners together.
    pub fn alignment(&self) -> Alignment {
        self.serving.iter().map(Serving::alignment).sum()
    }

    /// Requests that looked at an item so far.
    pub fn requests(&self) -> u64 {
        let totals = self.shared.stats.totals();
        totals.get_hits + totals.get_misses + totals.cmd_set
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Reads users and certificates again. What there was holds on where they can't be.
    ///
    /// # Errors
    /// Where a file can't be read, or is not what it should be.
    pub fn reload(&self) -> io::Result<()> {
        self.shared.reload()
    }

    /// Waits until a client has sent `shutdown`, where that is allowed.
    pub fn asked_to_stop(&self) -> impl Future<Output = ()> + use<> {
        let shared = Arc::clone(&self.shared);
        async move { shared.asked_to_stop().await }
    }

    /// Stops listening, lets requests at work finish, and ends after `deadline` at the latest.
    pub async fn shutdown(self, deadline: Duration) -> ShutdownReport {
        let mut total = ShutdownReport::default();
        drop(self.udp);
        let ending = self.serving.into_iter().map(|serving| serving.shutdown(deadline));
        for report in join_all(ending).await {
            total += report;
        }
        if let Some(path) = &self.unix_socket {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
        total
    }
}

/// How often expired items are looked for, and how long at a time: about 2 % of a core at the most, and
/// a segment at least.
const TEND_EVERY: Duration = Duration::from_millis(100);
const TEND_FOR: Duration = Duration::from_millis(2);

/// Gives memory of expired items back, for as long as the server lives.
async fn tend(shared: std::sync::Weak<Shared>) {
    loop {
        runtime::sleep(TEND_EVERY).await;
        let Some(shared) = shared.upgrade() else { return };
        shared.store.tend(TEND_FOR);
    }
}

/// Refuses an address where everybody could use the server.
fn may_listen(settings: &Config, ip: IpAddr) -> Result<(), StartError> {
    match settings.asks_who() || settings.listen_unauthenticated || !is_public(ip) {
        true => Ok(()),
        false => Err(StartError::Unprotected(ip)),
    }
}

/// Whether an address can be reached from anywhere.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            // For networks that are measured (RFC 2544): no router of the Internet passes it on.
            let is_benchmarking = first == 198 && second & 0xfe == 18;
            !(ip.is_loopback() || ip.is_private() || ip.is_link_local() || is_benchmarking)
        }
        IpAddr::V6(ip) => !(ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()),
    }
}

/// A socket that nobody listens on any more, as a killed server leaves it, makes room; anything else
/// at the path stays.
fn remove_stale(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is something else than a socket"))
        }
        Ok(_) => {
            let give_up = Instant::now() + DEAD_WITHIN;
            while std::os::unix::net::UnixStream::connect(path).is_ok() {
                if Instant::now() >= give_up {
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server listens on it"));
                }
                std::thread::sleep(DEAD_STEP);
            }
            std::fs::remove_file(path)
        }
    }
}

/// For so long after its death a server may still seem to listen: its socket lives on in its ring.
const DEAD_WITHIN: Duration = Duration::from_millis(100);
const DEAD_STEP: Duration = Duration::from_millis(5);

/// A client has so long to agree on keys.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

async fn handle<K: 'static>(mut stream: Stream<K>, shared: Arc<Shared>, peer: String, local: String) {
    let stats = shared.stats.worker(runtime::current_worker());
    let mut place = match Place::take(&shared) {
        Some(place) => place,
        None => {
            shared.count_full();
            let waited = if shared.settings.refuse_at_once { None } else { Place::wait(&shared).await };
            let Some(place) = waited else {
                stats.rejected_connections.add(1);
                // The client may be gone already.
                let _ = stream.write_all(b"ERROR Too many open connections\r\n").await;
                return;
            };
            place
        }
    };
    stats.total_connections.add(1);
    match stream.incoming_napi_id() {
        0 => stats.without_napi.add(1),
        napi if napi == runtime::io::own_napi() => stats.aligned.add(1),
        _ => stats.misaligned.add(1),
    }
    place.list(peer, local);
    let result = match shared.tls() {
        None => {
            let (reader, writer) = stream.split();
            connection::serve(reader, writer, &shared, &place).await
        }
        // By itself, or each connection without TLS would keep room for its state.
        Some(tls) => Box::pin(encrypted(stream, tls, &shared, &place)).await,
    };
    if let Err(error) = result {
        super::logging::connection_ended(place.peer(), &error);
    }
}

async fn encrypted<K>(stream: Stream<K>, tls: &Tls, shared: &Arc<Shared>, place: &Place) -> io::Result<()> {
    let accepted = runtime::timeout(HANDSHAKE_WITHIN, tls.acceptor().accept(stream)).await;
    let stream = match accepted.map_err(io::Error::from).and_then(|accepted| accepted) {
        Ok(stream) => stream,
        Err(error) => {
            shared.stats.worker(runtime::current_worker()).handshake_errors.add(1);
            return Err(error);
        }
    };
    let (reader, writer) = futures_util::AsyncReadExt::split(stream);
    let reader = BufReader::with_capacity(TLS_BUFFER, reader);
    connection::serve(reader, writer, shared, place).await
}

/// TLS carries up to 16 KiB at a time.
const TLS_BUFFER: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_anybody_can_reach_are_told_from_others() {
        for public in ["0.0.0.0", "8.8.8.8", "198.20.0.1", "::", "2001:4860:4860::8888"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for private in
            ["127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.1.1", "198.18.0.1", "::1", "fd00::1", "fe80::1"]
        {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
    }
}
