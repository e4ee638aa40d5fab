//! A pool of connections to PostgreSQL by tokio-postgres, with a part for each worker.
//!
//! ```no_run
//! use adapters::postgres::Pool;
//!
//! #[runtime::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let pool = Pool::builder("host=127.0.0.1 user=postgres".parse()?).max_size(16).build();
//!     let client = pool.get().await?;
//!     let seven: i32 = client.query_one("select 7", &[]).await?.get(0);
//!     assert_eq!(seven, 7);
//!     Ok(())
//! }
//! ```
//!
//! [`Pool::get`] opens connections on the worker that calls it, whose later calls get them again:
//! no query crosses to another thread. So a worker may wait while another one has a free
//! connection.

mod connect;
mod error;
#[cfg(feature = "tls")]
mod tls;

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::managed::{self, Manager, Metrics, PoolConfig, PoolError, RecycleError, RecycleResult};
pub use tokio_postgres;
use tokio_postgres::{Client, Config, Statement};

use self::connect::Connector;
pub use self::error::Error;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Sets up a [`Pool`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until the pool is built"]
pub struct Builder {
    config: Config,
    #[cfg(feature = "tls")]
    tls: Option<crate::tls::Connector>,
    max_size: usize,
    timeout: Duration,
}

impl Builder {
    /// The most connections of all workers, at least 1. Each worker may have an equal part of them;
    /// with fewer connections than workers some workers share a part. Default: deadpool's, two for
    /// each core.
    pub fn max_size(mut self, connections: usize) -> Self {
        self.max_size = connections;
        self
    }

    /// How long [`Pool::get`] may take. Default: 30 s.
    ///
    /// It has to exceed the config's `connect_timeout`, or a silent host is never given up. If it
    /// is less than that of all addresses of the hosts together, a call may not try them all: the
    /// next one begins with the others.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// Encrypts connections to servers that offer it, and if the config's `sslmode` is `require`
    /// refuses others. The certificate has to be valid for the config's host. Default: no TLS.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, connector: crate::tls::Connector) -> Self {
        self.tls = Some(connector);
        self
    }

    /// Makes the pool, which opens no connection yet.
    ///
    /// # Panics
    /// Outside of a runtime. If [`max_size`](Self::max_size) is 0.
    #[track_caller]
    pub fn build(self) -> Pool {
        assert!(self.max_size > 0, "a pool has at least one connection");
        let parts = runtime::workers().min(self.max_size);
        let connector = Arc::new(Connector {
            config: self.config,
            #[cfg(feature = "tls")]
            tls: self.tls,
            seen: Mutex::default(),
        });
        let part = |number| {
            let size = self.max_size / parts + usize::from(number < self.max_size % parts);
            let built = managed::Pool::builder(Opener(Arc::clone(&connector))).max_size(size).build();
            built.expect("deadpool has no time-outs here, which would need a runtime")
        };
        Pool { parts: (0..parts).map(part).collect(), timeout: self.timeout }
    }
}

/// Connections to a PostgreSQL server, each on the worker that opened it. Clones share them; it can
/// be axum's state.
///
/// Connections stay open until the last clone is dropped. One that has ended, for example because
/// the server was restarted, is replaced by the next [`get`](Self::get).
#[derive(Clone)]
pub struct Pool {
    /// A worker's is that of its number, modulo the parts.
    parts: Arc<[managed::Pool<Opener>]>,
    timeout: Duration,
}

impl Pool {
    /// Sets up a pool of connections to the config's hosts, of which the first that answers is
    /// taken, at the first of its addresses that does. The one that has answered last comes first,
    /// until it fails; with `load_balance_hosts=random` the order is another one each time. A config
    /// is parsed from a connection string, or made by its methods.
    ///
    /// Of the config's options `connect_timeout` limits the whole opening of a connection at one
    /// address, also its TLS handshake and login, and the lookup of a name. Default: 10 s.
    pub fn builder(config: Config) -> Builder {
        Builder {
            config,
            #[cfg(feature = "tls")]
            tls: None,
            max_size: PoolConfig::default().max_size,
            timeout: TIMEOUT,
        }
    }

    /// A free connection of the calling worker's part, or a new one. If the part has its most
    /// connections already, waits until one is dropped.
    ///
    /// # Errors
    /// [`Error::Connect`] if none can be opened, [`Error::TimedOut`] after the
    /// [limit](Builder::timeout).
    ///
    /// # Panics
    /// Outside of a runtime's workers.
    pub async fn get(&self) -> Result<PooledClient, Error> {
        let part = &self.parts[runtime::current_worker() % self.parts.len()];
        match runtime::timeout(self.timeout, part.get()).await {
            Ok(Ok(object)) => Ok(PooledClient(object)),
            Ok(Err(PoolError::Backend(error))) => Err(error),
            Ok(Err(error)) => {
                unreachable!("{error}: the pool has neither hooks nor limits, nor is it closed")
            }
            Err(_) => Err(Error::TimedOut {
                limit: self.timeout,
                open: part.status().size,
                failed: part.manager().0.last_failure(),
            }),
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let status: Vec<_> = self.parts.iter().map(managed::Pool::status).collect();
        f.debug_struct("Pool").field("parts", &status).finish_non_exhaustive()
    }
}

/// A connection of a [`Pool`], which gets it back when this is dropped. It derefs to tokio-postgres'
/// client, also mutably, for transactions.
///
/// What a session has set (`set`, `listen`, temporary tables) is still there when it is lent again.
/// So is a query whose future was dropped: the next one waits until the server has ended it. The
/// config's `options` can limit it, `-c statement_timeout=30s`.
pub struct PooledClient(managed::Object<Opener>);

impl PooledClient {
    /// The prepared statement of a query: the connection prepares it once and keeps it. For queries
    /// whose text is one of a few, since all are kept as long as the connection, or until
    /// [`clear_statements`](Self::clear_statements). In a transaction use what was prepared before
    /// it began.
    ///
    /// # Errors
    /// As [`Client::prepare`].
    pub async fn prepare_cached(&self, query: &str) -> Result<Statement, tokio_postgres::Error> {
        if let Some(statement) = self.0.statements().get(query) {
            return Ok(statement.clone());
        }
        let statement = self.0.client.prepare(query).await?;
        self.0.statements().insert(query.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Forgets the statements of [`prepare_cached`](Self::prepare_cached) on this connection, for
    /// example after the server's error `cached plan must not change result type`: a table has other
    /// columns now.
    pub fn clear_statements(&self) {
        self.0.statements().clear();
    }

    /// Closes the connection instead of giving it back, once a query has ended whose future was
    /// dropped. The pool may open another one at once, so that the server may have more than
    /// [`max_size`](Builder::max_size) until then: cancel the query before, or limit its time.
    pub fn discard(self) {
        drop(managed::Object::take(self.0));
    }
}

impl Deref for PooledClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.0.client
    }
}

impl DerefMut for PooledClient {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.0.client
    }
}

impl std::fmt::Debug for PooledClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PooledClient").finish_non_exhaustive()
    }
}

struct Session {
    client: Client,
    statements: Mutex<HashMap<String, Statement>>,
}

impl Session {
    fn statements(&self) -> std::sync::MutexGuard<'_, HashMap<String, Statement>> {
        self.statements.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a part's connections.
struct Opener(Arc<Connector>);

impl Manager for Opener {
    type Type = Session;
    type Error = Error;

    async fn create(&self) -> Result<Session, Error> {
        let client = Connector::open(&self.0).await?;
        Ok(Session { client, statements: Mutex::default() })
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<Error> {
        match session.client.is_closed() {
            true => Err(RecycleError::message("the connection has ended")),
            false => Ok(()),
        }
    }
}
