//! Listening, and the state that connections share.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::AsyncWriteExt;
use net::{Alignment, Serving, ShutdownReport, Stream, TcpListener, TcpStream, UnixListener};

use super::connection;
use super::stats::Stats;
use super::store::Store;

/// What a server is started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// The addresses to listen on; memcached's `-l`.
    pub listen: Vec<IpAddr>,
    /// The port; 0 takes any free one. memcached's `-p`.
    pub port: u16,
    /// A path to listen on instead; memcached's `-s`.
    pub unix_socket: Option<PathBuf>,
    /// Bytes for items; memcached's `-m`, which counts in MiB.
    pub memory: u64,
    /// Connections at one time; memcached's `-c`.
    pub connections: usize,
    /// The size of the largest item, in bytes; memcached's `-I`.
    pub max_item: usize,
    /// How much is logged; memcached's `-v`, `-vv`.
    pub verbosity: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            port: 11211,
            unix_socket: None,
            memory: 64 << 20,
            connections: 1024,
            max_item: 1 << 20,
            verbosity: 0,
        }
    }
}

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
}

/// What all connections share.
#[derive(Debug)]
pub struct Shared {
    pub store: Store,
    pub stats: Stats,
    pub max_connections: usize,
    open: AtomicUsize,
    verbosity: AtomicU32,
}

impl Shared {
    pub fn new(config: &Config, workers: usize) -> Self {
        Self {
            store: Store::new(config.memory, config.max_item),
            stats: Stats::new(workers),
            max_connections: config.connections,
            open: AtomicUsize::new(0),
            verbosity: AtomicU32::new(config.verbosity),
        }
    }

    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub fn set_verbosity(&self, level: u32) {
        self.verbosity.store(level, Ordering::Relaxed);
    }
}

/// Counts a connection as open while it lives.
struct Open<'a>(&'a Shared);

impl<'a> Open<'a> {
    /// `None` where there are as many as there may be.
    fn new(shared: &'a Shared) -> Option<Self> {
        let open = Self(shared);
        let before = shared.open.fetch_add(1, Ordering::Relaxed);
        (before < shared.max_connections).then_some(open)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A running server. Dropping it lets it go on; [`Server::shutdown`] ends it.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    serving: Vec<Serving>,
    addresses: Vec<SocketAddr>,
    unix_socket: Option<PathBuf>,
}

impl Server {
    /// Starts listening, on every worker of the runtime.
    ///
    /// # Errors
    /// Where an address can't be listened on.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start(config: &Config) -> Result<Self, StartError> {
        let shared = Arc::new(Shared::new(config, runtime::workers()));
        let mut server = Self { shared, serving: Vec::new(), addresses: Vec::new(), unix_socket: None };
        if let Some(path) = &config.unix_socket {
            let failed = |source| StartError::Listen { address: path.display().to_string(), source };
            remove_stale(path).map_err(failed)?;
            let listener = UnixListener::bind(path).map_err(failed)?;
            server.unix_socket = Some(path.clone());
            let shared = Arc::clone(&server.shared);
            let serving = listener.serve(move |stream| handle(stream, Arc::clone(&shared)));
            server.serving.push(serving.map_err(failed)?);
            return Ok(server);
        }
        for &ip in &config.listen {
            let address = SocketAddr::new(ip, config.port);
            let failed = |source| StartError::Listen { address: address.to_string(), source };
            let listener = TcpListener::bind(address).map_err(failed)?;
            server.addresses.push(listener.local_addr().map_err(failed)?);
            let shared = Arc::clone(&server.shared);
            let serving = listener.serve(move |stream: TcpStream| {
                let shared = Arc::clone(&shared);
                async move {
                    // Answers are whole when they are sent, so there is nothing to wait for. Fails
                    // only on a connection that is gone.
                    let _ = stream.set_nodelay(true);
                    handle(stream, shared).await;
                }
            });
            server.serving.push(serving.map_err(failed)?);
        }
        Ok(server)
    }

    /// The addresses that are listened on, with the ports that were taken.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where connections went so far, all listeners together.
    pub fn alignment(&self) -> Alignment {
        self.serving.iter().map(Serving::alignment).fold(Alignment::default(), |sum, one| Alignment {
            accepted: sum.accepted + one.accepted,
            aligned: sum.aligned + one.aligned,
            misaligned: sum.misaligned + one.misaligned,
            without_napi: sum.without_napi + one.without_napi,
            rehomed: sum.rehomed + one.rehomed,
        })
    }

    /// Requests that looked at an item so far.
    pub fn requests(&self) -> u64 {
        let totals = self.shared.stats.totals();
        totals.cmd_get + totals.cmd_set
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    /// Stops listening, lets requests at work finish, and ends after `deadline` at the latest.
    pub async fn shutdown(self, deadline: Duration) -> ShutdownReport {
        let mut total = ShutdownReport { finished: 0, aborted: 0 };
        for serving in self.serving {
            let report = serving.shutdown(deadline).await;
            total.finished += report.finished;
            total.aborted += report.aborted;
        }
        if let Some(path) = &self.unix_socket {
            // Gone already is as good.
            let _ = std::fs::remove_file(path);
        }
        total
    }
}

/// A socket that nobody listens on any more, as a killed server leaves it, makes room; anything else
/// at the path stays.
fn remove_stale(path: &std::path::Path) -> io::Result<()> {
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

async fn handle<K: 'static>(mut stream: Stream<K>, shared: Arc<Shared>) {
    let stats = shared.stats.worker(runtime::current_worker());
    let Some(_open) = Open::new(&shared) else {
        stats.rejected_connections.add(1);
        // As memcached does with maxconns_fast, its default. The client may be gone already.
        let _ = stream.write_all(b"ERROR Too many open connections\r\n").await;
        return;
    };
    stats.total_connections.add(1);
    let (reader, writer) = stream.split();
    if let Err(error) = connection::run(reader, writer, Arc::clone(&shared)).await
        && shared.verbosity.load(Ordering::Relaxed) > 0
    {
        eprintln!("memcached: connection ended: {error}");
    }
}
