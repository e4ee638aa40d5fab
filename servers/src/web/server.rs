//! Starts a web server, reloads it, and shuts it down.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

#[cfg(feature = "http3")]
use ::hyper::header::HeaderValue;
use adapters::hyper::{self, Peer, serve};
use adapters::tls::{Acceptor, AcceptorBuilder, Certificates};
use futures_util::future::join_all;
use net::{Alignment, ShutdownReport, TcpListener};

use super::access_log::AccessLog;
use super::config::{Config, Limits};
use super::context::{ServerContext, Site};
use super::counters::Totals;
use super::error::StartError;
#[cfg(feature = "http3")]
use super::http3::Http3;
use super::service::connection_service;
use super::static_files::Root;
use crate::listen::bind;

/// What hyper keeps of a response for a stream of HTTP/2: a few of its frames.
const STREAM_SEND_BUFFER: usize = 64 << 10;

/// A running web server. It continues to run when this is dropped; [`Server::shutdown`] ends it.
#[derive(Debug)]
pub struct Server {
    context: Arc<ServerContext>,
    acceptor: Option<Acceptor>,
    config: Config,
    servers: Vec<hyper::Server>,
    #[cfg(feature = "http3")]
    http3: Vec<Http3>,
    addresses: Vec<SocketAddr>,
    tls_addresses: Vec<SocketAddr>,
}

impl Server {
    /// Starts to listen, on every worker of the current runtime.
    ///
    /// # Errors
    /// If an address cannot be listened on, or something that the configuration names cannot be
    /// used.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        let server = Self::start_paused(config, Vec::new())?;
        server.resume().await?;
        Ok(server)
    }

    /// As [`start`](Self::start), but connections are not accepted until [`resume`](Self::resume)
    /// is called: between the two the process can drop the privileges that ports and keys need.
    ///
    /// It takes listening sockets that the process inherited, as from systemd, if there are any.
    /// They take the place of the configuration's addresses. TLS is spoken on those whose port is
    /// 443 or one of [`TlsConfig::listen`](super::TlsConfig::listen).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn start_paused(config: &Config, inherited: Vec<std::net::TcpListener>) -> Result<Self, StartError> {
        let acceptor = acceptor(config)?;
        let context = Arc::new(ServerContext::new(config)?);
        let mut server = Self {
            context,
            acceptor,
            config: config.clone(),
            servers: Vec::new(),
            #[cfg(feature = "http3")]
            http3: Vec::new(),
            addresses: Vec::new(),
            tls_addresses: Vec::new(),
        };
        if !inherited.is_empty() {
            let failed = |source| StartError::Listen { address: "an inherited socket".to_owned(), source };
            inherited
                .into_iter()
                .try_for_each(|listener| server.serve_inherited(listener))
                .map_err(failed)?;
            return Ok(server);
        }
        let encrypted = config.tls.iter().flat_map(|tls| &tls.listen).map(|address| (*address, true));
        // All addresses are bound before any is served.
        let mut listeners = Vec::new();
        for (address, encrypted) in config.listen.iter().map(|address| (*address, false)).chain(encrypted) {
            let failed = |source| StartError::Listen { address: address.to_string(), source };
            listeners.push((address, bind(address, config.backlog).map_err(failed)?, encrypted));
        }
        for (address, listener, encrypted) in listeners {
            let failed = |source| StartError::Listen { address: address.to_string(), source };
            server.serve(listener, encrypted).map_err(failed)?;
        }
        Ok(server)
    }

    /// Begins to accept connections, after [`start_paused`](Self::start_paused).
    ///
    /// # Errors
    /// If the folder cannot be used, or the access log not be opened, as the user that the process
    /// runs as now.
    pub async fn resume(&self) -> Result<(), StartError> {
        Self::check_access(&self.config)?;
        self.context.site().start(None).await?;
        self.servers.iter().for_each(hyper::Server::resume);
        #[cfg(feature = "http3")]
        self.http3.iter().for_each(Http3::resume);
        Ok(())
    }

    /// Reads and opens everything that the configuration names, except addresses and the access
    /// log.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn check(config: &Config) -> Result<(), StartError> {
        acceptor(config)?;
        Site::new(config, None).map(drop)
    }

    /// Whether the user that the process runs as now may use the folder and the access log.
    ///
    /// # Errors
    /// What it may not use.
    pub fn check_access(config: &Config) -> Result<(), StartError> {
        if let Some(files) = &config.files {
            Root::check_access(&files.root)?;
        }
        if let Some(path) = &config.access_log {
            let failed = |source| StartError::AccessLog { path: path.clone(), source };
            AccessLog::check_access(path).map_err(failed)?;
        }
        Ok(())
    }

    fn serve_inherited(&mut self, listener: std::net::TcpListener) -> io::Result<()> {
        let port = listener.local_addr()?.port();
        let mut tls_ports = self.config.tls.iter().flat_map(|tls| &tls.listen).map(SocketAddr::port);
        let encrypted = self.acceptor.is_some() && (port == 443 || tls_ports.any(|it| it == port));
        self.serve(TcpListener::from_std(listener)?, encrypted)
    }

    fn serve(&mut self, listener: TcpListener, encrypted: bool) -> io::Result<()> {
        let address = listener.local_addr()?;
        #[cfg(feature = "http3")]
        let alt_svc = self.serve_http3(address, encrypted)?;
        #[cfg(not(feature = "http3"))]
        let alt_svc = None;
        let context = Arc::clone(&self.context);
        let Limits { header_timeout, stall_timeout, header_size, streams, .. } = self.config.limits;
        let header_size = u32::try_from(header_size).unwrap_or(u32::MAX);
        let server = serve(listener, move |peer: &Peer| connection_service(&context, peer, alt_svc.as_ref()))
            .header_read_timeout(Some(header_timeout))
            .idle_timeout(Some(header_timeout))
            .stall_timeout(Some(stall_timeout))
            .connection_limit(self.context.connections.clone())
            .request_window(Limits::CONNECTION_WINDOW)
            .configure(|builder| {
                builder.http1().max_buf_size(header_size as usize);
                builder
                    .http2()
                    .max_concurrent_streams(streams)
                    .max_header_list_size(header_size)
                    .max_send_buf_size(STREAM_SEND_BUFFER)
                    .initial_stream_window_size(Limits::STREAM_WINDOW);
            });
        let server = match self.acceptor.as_ref().filter(|_| encrypted) {
            Some(acceptor) => server.tls(acceptor.clone()),
            None => server,
        };
        let server = server.start_paused()?;
        self.context.accept_errors().push(server.accept_errors());
        self.servers.push(server);
        if encrypted { &mut self.tls_addresses } else { &mut self.addresses }.push(address);
        Ok(())
    }

    /// Serves HTTP/3 beside an address with TLS, if it is asked for. Returns what the others are
    /// told about it.
    #[cfg(feature = "http3")]
    fn serve_http3(&mut self, address: SocketAddr, encrypted: bool) -> io::Result<Option<HeaderValue>> {
        let wanted = encrypted && self.config.tls.as_ref().is_some_and(|tls| tls.http3);
        let Some(acceptor) = self.acceptor.as_ref().filter(|_| wanted) else { return Ok(None) };
        self.http3.push(Http3::start_paused(&self.context, acceptor, address, &self.config.limits)?);
        let told = format!("h3=\":{}\"; ma=86400", address.port());
        HeaderValue::try_from(told).map(Some).map_err(io::Error::other)
    }

    /// The addresses without TLS, with the ports that were taken.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The addresses with TLS, with the ports that were taken.
    pub fn tls_addresses(&self) -> &[SocketAddr] {
        &self.tls_addresses
    }

    /// How many connections were accepted and which of them are aligned, summed over all listeners.
    pub fn alignment(&self) -> Alignment {
        self.servers.iter().map(hyper::Server::alignment).sum()
    }

    /// What was counted since the start.
    pub fn totals(&self) -> Totals {
        self.context.totals()
    }

    /// Takes a new configuration: reads its certificates, opens the access log again, and uses the
    /// other values for later connections.
    ///
    /// # Errors
    /// If it cannot be used, or has other addresses or limits of the listeners. Then the present
    /// one stays in use.
    pub async fn reload(&mut self, config: &Config) -> Result<(), StartError> {
        let listeners = |config: &Config| {
            let tls = config.tls.as_ref().map(|tls| (tls.listen.clone(), tls.http3));
            (config.listen.clone(), tls, config.backlog)
        };
        if listeners(config) != listeners(&self.config) {
            return Err(StartError::NeedsRestart("listen, tls.listen, tls.http3 or backlog"));
        }
        let of_listeners = |limits: &Limits| {
            (
                limits.connections,
                limits.header_timeout,
                limits.stall_timeout,
                limits.header_size,
                limits.streams,
            )
        };
        if of_listeners(&config.limits) != of_listeners(&self.config.limits) {
            return Err(StartError::NeedsRestart(
                "limits.connections, header-timeout, stall-timeout, header-size or streams",
            ));
        }
        // Both are ready before one is used.
        let loaded = acceptor_builder(config).map(AcceptorBuilder::load).transpose()?;
        let present = self.context.site();
        let site = Site::new(config, Some(&present))?;
        site.start(Some(&present)).await?;
        if let (Some(acceptor), Some(loaded)) = (&self.acceptor, loaded) {
            acceptor.replace(loaded);
        }
        self.context.replace_site(site);
        self.config = config.clone();
        Ok(())
    }

    /// Opens the access log again, after it was moved away.
    ///
    /// # Errors
    /// Those of `open(2)`. The file that is open stays in use.
    pub async fn reopen_log(&self) -> io::Result<()> {
        match &self.context.site().access_log {
            Some(log) => log.reopen().await,
            None => Ok(()),
        }
    }

    /// Accepts no more, answers the requests in progress, and ends. What has not ended after
    /// [`Limits::shutdown_timeout`](super::Limits) is aborted.
    pub async fn shutdown(self) -> ShutdownReport {
        let limit = self.config.limits.shutdown_timeout;
        let servers = join_all(self.servers.into_iter().map(|server| server.shutdown(limit)));
        #[cfg(feature = "http3")]
        let reports = {
            let http3 = join_all(self.http3.into_iter().map(|server| server.shutdown(limit)));
            let (servers, http3) = futures_util::future::join(servers, http3).await;
            [servers, http3].concat()
        };
        #[cfg(not(feature = "http3"))]
        let reports = servers.await;
        let mut total = ShutdownReport::default();
        reports.into_iter().for_each(|report| total += report);
        if let Some(log) = self.context.site().access_log.clone() {
            // A panic is in the log already.
            let _ = runtime::spawn_blocking(move || log.write_all()).await;
        }
        total
    }
}

fn acceptor(config: &Config) -> Result<Option<Acceptor>, StartError> {
    Ok(acceptor_builder(config).map(AcceptorBuilder::open).transpose()?)
}

fn acceptor_builder(config: &Config) -> Option<AcceptorBuilder> {
    let tls = config.tls.as_ref()?;
    let mut builder = Acceptor::builder(Certificates::new(&tls.certificate, &tls.key)).http();
    builder = builder.handshake_timeout(config.limits.header_timeout);
    for named in &tls.names {
        builder = builder.server_name(&named.name, Certificates::new(&named.certificate, &named.key));
    }
    if tls.require_tls13 { Some(builder.require_tls13()) } else { Some(builder) }
}
