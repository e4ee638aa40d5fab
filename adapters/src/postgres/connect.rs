//! Opens connections.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_io::{AsyncBufRead, AsyncWrite};
use net::{TcpKeepalive, TcpStream, UnixStream};
use rand::seq::SliceRandom;
use runtime::task::JoinSet;
use tokio_postgres::config::{self, LoadBalanceHosts, TargetSessionAttrs};
use tokio_postgres::tls::TlsConnect;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use super::error::{BoxError, Error, WithCause};
use crate::Io;

/// How long an address may take, unless the config says.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Connector {
    pub(super) config: Config,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<crate::tls::Connector>,
    pub(super) seen: Mutex<Seen>,
}

impl Connector {
    /// A connection of the calling worker to the first address of a host that answers.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Client, Error> {
        let mut hosts =
            self.hosts().map_err(|text| Error::Connect { host: String::new(), source: text.into() })?;
        self.sort(&mut hosts);
        let mut failed = None;
        for host in hosts {
            match self.open_at_host(&host).await {
                Ok(client) => return Ok(client),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.expect("there is at least one host"))
    }

    /// In the config's order. A text if tokio-postgres refuses the config.
    fn hosts(&self) -> Result<Vec<Host>, String> {
        let config = &self.config;
        let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
        let count = hosts.len().max(addresses.len());
        if count == 0 {
            return Err("the config names no host".to_owned());
        }
        if !hosts.is_empty() && !addresses.is_empty() && hosts.len() != addresses.len() {
            return Err(format!("the config has hosts: {}, but addresses: {}", hosts.len(), addresses.len()));
        }
        if ports.len() > 1 && ports.len() != count {
            return Err(format!("the config has hosts: {count}, but ports: {}", ports.len()));
        }
        let host = |index: usize| {
            let port = *ports.get(index).or(ports.first()).unwrap_or(&5432);
            let address = addresses.get(index).map(ToString::to_string);
            match (hosts.get(index), address) {
                (Some(config::Host::Unix(folder)), None) => Host::Unix { folder: folder.clone(), port },
                (Some(config::Host::Tcp(name)), address) => {
                    Host::Tcp { address: address.unwrap_or_else(|| name.clone()), name: name.clone(), port }
                }
                (_, address) => {
                    let address = address.unwrap_or_default();
                    Host::Tcp { name: address.clone(), address, port }
                }
            }
        };
        Ok((0..count).map(host).collect())
    }

    /// In the order in which they are tried.
    fn sort<T: ToString>(&self, places: &mut [T]) {
        if self.config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            return places.shuffle(&mut rand::rng());
        }
        let seen = self.seen();
        places.sort_by_cached_key(|place| seen.rank(&place.to_string()));
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last failure, unless a connection was opened since.
    pub(super) fn last_failure(&self) -> Option<String> {
        self.seen().failed.last().map(|(place, error)| format!("{place}: {error}"))
    }

    async fn open_at_host(self: &Arc<Self>, host: &Host) -> Result<Client, Error> {
        let name = host.to_string();
        let has_failed = |place: String, source: BoxError| {
            self.seen().has_failed([&name, &place], &source);
            Error::Connect { host: place, source }
        };
        let looked_up = self.in_time(host.look_up(), "the name was not looked up").await;
        let mut endpoints = looked_up.map_err(|error| has_failed(name.clone(), error))?;
        self.sort(&mut endpoints);
        let mut failed = None;
        for endpoint in endpoints {
            let (connector, place) = (Arc::clone(self), endpoint.to_string());
            let open = async move { connector.in_time(connector.open_at(&endpoint), "no answer").await };
            // A task, because a pool's future has to be `Send`, and that of a socket is not.
            // The set aborts it when it is dropped: nobody waits for the connection any more.
            let mut opening = JoinSet::new();
            opening.spawn(open);
            let opened = opening.join_next().await.expect("it has one task");
            match opened.unwrap_or_else(|error| Err(error.into())) {
                Ok(client) => {
                    self.seen().has_answered([name, place]);
                    return Ok(client);
                }
                Err(error) => failed = Some(has_failed(place, error)),
            }
        }
        Err(failed.unwrap_or_else(|| has_failed(name.clone(), "the name has no address".into())))
    }

    /// Limits a lookup, and the opening at one address.
    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, BoxError>>,
        problem: &str,
    ) -> Result<T, BoxError> {
        let limit = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        let done = runtime::timeout(limit, work).await;
        done.unwrap_or_else(|_| Err(format!("{problem} within {limit:?}").into()))
    }

    async fn open_at(&self, endpoint: &Endpoint) -> Result<Client, BoxError> {
        let client = match endpoint {
            Endpoint::Unix { folder, port } => {
                let stream = UnixStream::connect(folder.join(format!(".s.PGSQL.{port}"))).await?;
                self.log_in(stream, NoTls).await?
            }
            Endpoint::Tcp { name, address } => {
                let stream = TcpStream::connect(*address).await?;
                self.set_options(&stream)?;
                self.log_in_over_tcp(stream, name).await?
            }
        };
        self.check_session(&client).await?;
        Ok(client)
    }

    fn set_options(&self, stream: &TcpStream) -> std::io::Result<()> {
        let config = &self.config;
        stream.set_nodelay(true)?;
        if let Some(&limit) = config.get_tcp_user_timeout() {
            stream.set_user_timeout(Some(limit))?;
        }
        if config.get_keepalives() {
            let mut probes = TcpKeepalive::new().with_time(config.get_keepalives_idle());
            if let Some(interval) = config.get_keepalives_interval() {
                probes = probes.with_interval(interval);
            }
            if let Some(retries) = config.get_keepalives_retries() {
                probes = probes.with_retries(retries);
            }
            stream.set_keepalive(Some(probes))?;
        }
        Ok(())
    }

    #[cfg(feature = "tls")]
    async fn log_in_over_tcp(&self, stream: TcpStream, name: &str) -> Result<Client, BoxError> {
        match &self.tls {
            Some(tls) => self.log_in(stream, super::tls::Tls::new(tls.clone(), name)).await,
            None => self.log_in(stream, NoTls).await,
        }
    }

    #[cfg(not(feature = "tls"))]
    async fn log_in_over_tcp(&self, stream: TcpStream, _name: &str) -> Result<Client, BoxError> {
        self.log_in(stream, NoTls).await
    }

    /// The connection becomes a task of this worker's, which ends when the client is dropped.
    async fn log_in<S, T>(&self, stream: S, tls: T) -> Result<Client, BoxError>
    where
        S: AsyncBufRead + AsyncWrite + Unpin + 'static,
        T: TlsConnect<Io<S>, Stream: 'static>,
    {
        let (client, connection) = self.config.connect_raw(Io::new(stream), tls).await?;
        drop(runtime::spawn(async move {
            if let Err(error) = connection.await {
                let error = error.into();
                tracing::debug!(error = %WithCause(&error), "a connection to PostgreSQL has failed");
            }
        }));
        Ok(client)
    }

    /// As libpq checks `target_session_attrs`.
    async fn check_session(&self, client: &Client) -> Result<(), BoxError> {
        let (unwanted, problem) = match self.config.get_target_session_attrs() {
            TargetSessionAttrs::ReadWrite => ("on", "the session allows no writes"),
            TargetSessionAttrs::ReadOnly => ("off", "the session allows writes"),
            _ => return Ok(()),
        };
        let answer = client.simple_query("show transaction_read_only").await?;
        let is_unwanted =
            |message: &_| matches!(message, SimpleQueryMessage::Row(row) if row.get(0) == Some(unwanted));
        if answer.iter().any(is_unwanted) { Err(problem.into()) } else { Ok(()) }
    }
}

/// A host of the config. Its text is a name for it.
enum Host {
    /// A socket in a folder.
    Unix { folder: PathBuf, port: u16 },
    /// The certificate has to be valid for `name`. `address` is looked up: it is a name unless the
    /// config has an address for it.
    Tcp { name: String, address: String, port: u16 },
}

impl Host {
    async fn look_up(&self) -> Result<Vec<Endpoint>, BoxError> {
        match self {
            Self::Unix { folder, port } => Ok(vec![Endpoint::Unix { folder: folder.clone(), port: *port }]),
            Self::Tcp { name, address, port } => {
                let addresses = net::lookup_host((address.as_str(), *port)).await?;
                let endpoint = |address| Endpoint::Tcp { name: name.clone(), address };
                Ok(addresses.into_iter().map(endpoint).collect())
            }
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { folder, port } => write!(f, "{}:{port}", folder.display()),
            Self::Tcp { name, address, port } if name != address => write!(f, "{name}:{port} ({address})"),
            Self::Tcp { name, port, .. } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self::Tcp { name, port, .. } => write!(f, "{name}:{port}"),
        }
    }
}

/// Where one connection is opened. Its text is a name for it.
enum Endpoint {
    Unix { folder: PathBuf, port: u16 },
    Tcp { name: String, address: SocketAddr },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { folder, port } => write!(f, "{}:{port}", folder.display()),
            Self::Tcp { name, address } if name.parse() == Ok(address.ip()) => write!(f, "{address}"),
            Self::Tcp { name, address } => write!(f, "{name}:{} ({})", address.port(), address.ip()),
        }
    }
}

/// What is known of hosts and endpoints, by their texts.
#[derive(Default)]
pub(super) struct Seen {
    /// The host and the endpoint that a connection was opened at last.
    answered: Option<[String; 2]>,
    /// Those that have failed since, in this order, with the errors.
    failed: Vec<(String, String)>,
}

impl Seen {
    /// Those with a low rank are tried first: who has answered, then who was not tried since, then
    /// who failed the longest time ago. So time that is too short for all of them is not spent on
    /// the same ones again.
    fn rank(&self, place: &str) -> (Option<usize>, bool) {
        let has_answered = self.answered.iter().flatten().any(|answered| answered == place);
        (self.failed.iter().position(|(failed, _)| failed == place), !has_answered)
    }

    fn has_answered(&mut self, places: [String; 2]) {
        *self = Self { answered: Some(places), failed: Vec::new() };
    }

    fn has_failed(&mut self, places: [&str; 2], error: &BoxError) {
        self.failed.retain(|(failed, _)| !places.contains(&failed.as_str()));
        self.failed.extend(places.map(|place| (place.to_owned(), WithCause(error).to_string())));
    }
}
