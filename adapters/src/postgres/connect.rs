//! Opens connections.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_io::{AsyncBufRead, AsyncWrite};
use net::{TcpKeepalive, TcpStream, UnixStream};
use rand::seq::SliceRandom;
use runtime::AbortHandle;
use tokio_postgres::config::{Host, LoadBalanceHosts, TargetSessionAttrs};
use tokio_postgres::tls::TlsConnect;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use super::error::{BoxError, Error, WithCause};
use crate::Io;

/// How long a host may take, unless the config says.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) struct Connector {
    config: Config,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<crate::tls::Connector>,
}

impl Connector {
    pub(super) fn new(config: Config) -> Self {
        Self {
            config,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// A connection of the calling worker to the first host that answers.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Client, Error> {
        let mut failed = (String::new(), "the config names no host".into());
        for endpoint in self.endpoints() {
            let (connector, host) = (Arc::clone(self), endpoint.to_string());
            // A task, because a pool's future has to be `Send`, and that of a socket is not.
            let task = runtime::spawn(async move { connector.open_in_time(&endpoint).await });
            let _given_up = AbortOnDrop(task.abort_handle());
            match task.await.unwrap_or_else(|error| Err(error.into())) {
                Ok(client) => return Ok(client),
                Err(error) => failed = (host, error),
            }
        }
        let (host, source) = failed;
        Err(Error::Connect { host, source })
    }

    /// In the order in which they are tried.
    fn endpoints(&self) -> Vec<Endpoint> {
        let config = &self.config;
        let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
        let endpoint = |index: usize| {
            let port = *ports.get(index).or(ports.first()).unwrap_or(&5432);
            let address = addresses.get(index).map(ToString::to_string);
            match (hosts.get(index), address) {
                (Some(Host::Unix(folder)), None) => Endpoint::Unix { folder: folder.clone(), port },
                (Some(Host::Tcp(name)), address) => Endpoint::Tcp {
                    address: address.unwrap_or_else(|| name.clone()),
                    name: name.clone(),
                    port,
                },
                (_, address) => {
                    let address = address.unwrap_or_default();
                    Endpoint::Tcp { name: address.clone(), address, port }
                }
            }
        };
        let mut endpoints: Vec<_> = (0..hosts.len().max(addresses.len())).map(endpoint).collect();
        if config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            endpoints.shuffle(&mut rand::rng());
        }
        endpoints
    }

    async fn open_in_time(&self, endpoint: &Endpoint) -> Result<Client, BoxError> {
        let limit = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        let opened = runtime::timeout(limit, self.open_at(endpoint)).await;
        opened.unwrap_or_else(|_| Err(format!("no answer within {limit:?}").into()))
    }

    async fn open_at(&self, endpoint: &Endpoint) -> Result<Client, BoxError> {
        let client = match endpoint {
            Endpoint::Unix { folder, port } => {
                let stream = UnixStream::connect(folder.join(format!(".s.PGSQL.{port}"))).await?;
                self.log_in(stream, NoTls).await?
            }
            Endpoint::Tcp { name, address, port } => {
                let stream = TcpStream::connect((address.as_str(), *port)).await?;
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

/// Where a server may be.
enum Endpoint {
    /// A socket in a folder.
    Unix { folder: PathBuf, port: u16 },
    /// A host, of whom the certificate has to be valid for `name`. `address` is connected to, which
    /// is a name unless the config has an address for it.
    Tcp { name: String, address: String, port: u16 },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { folder, port } => write!(f, "{}:{port}", folder.display()),
            Self::Tcp { address, port, .. } if address.contains(':') => write!(f, "[{address}]:{port}"),
            Self::Tcp { address, port, .. } => write!(f, "{address}:{port}"),
        }
    }
}

/// Gives up what nobody waits for any more.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
