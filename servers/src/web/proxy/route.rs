//! A route of the proxy: a path prefix and its upstreams.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adapters::hyper::Connector;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::PathAndQuery;

use super::connection::connector;
use super::error::{ProxyConfigError, UpstreamProblem};
use super::pool::WorkerPool;
use super::upstream::{Upstream, UpstreamStatus};
use crate::web::config::ProxyConfig;
use crate::web::static_files::is_plain;

thread_local! {
    /// This worker's pools, by the number of their route.
    static POOLS: RefCell<Vec<(u64, Weak<WorkerPool>)>> = const { RefCell::new(Vec::new()) };
}

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// Where a request comes from.
#[derive(Debug, Clone, Copy)]
pub struct ClientInfo {
    /// The client's address; `None` on a Unix domain socket.
    pub address: Option<SocketAddr>,
    /// Whether its connection has TLS.
    pub encrypted: bool,
}

/// Forwards the requests below a path. All workers share it, but no upstream connection: each
/// worker opens its own.
#[derive(Debug)]
pub struct ProxyRoute {
    pub(super) config: ProxyConfig,
    pub(super) upstreams: Box<[Arc<Upstream>]>,
    pub(super) connector: Connector,
    /// The request of the health check.
    pub(super) check_target: Option<Uri>,
    number: u64,
    /// Dropped with the route, which ends the pools.
    alive: Arc<()>,
}

impl ProxyRoute {
    /// Checks the configuration. If an upstream is `https`, it reads the authorities that sign
    /// servers' certificates (`SSL_CERT_FILE`'s or the system's), which blocks for as long as the
    /// file takes.
    ///
    /// # Errors
    /// The error names the field that is wrong, its value, and what to do.
    pub fn new(config: &ProxyConfig) -> Result<Self, ProxyConfigError> {
        let path = &config.path;
        let unusual = path.contains(['?', '#', ';', '\\']) || !is_plain(path);
        if unusual || path.parse::<PathAndQuery>().is_err() {
            return Err(ProxyConfigError::Path(path.clone()));
        }
        if config.upstreams.is_empty() {
            return Err(ProxyConfigError::NoUpstreams { path: path.clone() });
        }
        check_times(config)?;
        let check_target = config.health_check.as_ref().map(|check| check_target(path, &check.path));
        let check_target = check_target.transpose()?;
        let upstreams = config.upstreams.iter().map(|upstream| {
            parse_upstream(upstream).map(Arc::new).map_err(|problem| ProxyConfigError::Upstream {
                path: path.clone(),
                upstream: upstream.clone(),
                problem,
            })
        });
        let upstreams = upstreams.collect::<Result<Box<[_]>, _>>()?;
        let encrypted = upstreams.iter().any(|upstream| upstream.uri.scheme_str() == Some("https"));
        let connector = connector(encrypted, config.connect_timeout)
            .map_err(|source| ProxyConfigError::Tls { path: path.clone(), source })?;
        Ok(Self {
            config: config.clone(),
            upstreams,
            connector,
            check_target,
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            alive: Arc::new(()),
        })
    }

    /// The path prefix, as configured.
    pub fn path(&self) -> &str {
        &self.config.path
    }

    /// The state of each upstream, in the order of the configuration.
    pub fn statuses(&self) -> Vec<UpstreamStatus> {
        self.upstreams.iter().map(|upstream| upstream.status()).collect()
    }

    /// The calling worker's pool, which is made by the first call.
    pub(super) fn pool(&self) -> Rc<WorkerPool> {
        POOLS.with_borrow_mut(|pools| {
            let pool = pools.iter().find(|(number, _)| *number == self.number);
            if let Some(pool) = pool.and_then(|(_, pool)| pool.upgrade()) {
                return pool;
            }
            pools.retain(|(_, pool)| pool.strong_count() > 0);
            let config = &self.config;
            let route = Arc::downgrade(&self.alive);
            let pool =
                WorkerPool::start(&self.upstreams, config.idle_connections, config.idle_timeout, route);
            pools.push((self.number, Rc::downgrade(&pool)));
            pool
        })
    }
}

fn check_times(config: &ProxyConfig) -> Result<(), ProxyConfigError> {
    let times = [
        ("connect-timeout", Some(config.connect_timeout)),
        ("response-timeout", Some(config.response_timeout)),
        ("idle-timeout", Some(config.idle_timeout)),
        ("upgrade-timeout", Some(config.upgrade_timeout)),
        ("health-check.interval", config.health_check.as_ref().map(|check| check.interval)),
        ("health-check.timeout", config.health_check.as_ref().map(|check| check.timeout)),
    ];
    match times.into_iter().find(|(_, time)| *time == Some(Duration::ZERO)) {
        Some((field, _)) => Err(ProxyConfigError::ZeroTime { path: config.path.clone(), field }),
        None => Ok(()),
    }
}

fn check_target(path: &str, check: &str) -> Result<Uri, ProxyConfigError> {
    let wrong = || ProxyConfigError::HealthCheckPath { path: path.to_owned(), check: check.to_owned() };
    if !check.starts_with('/') || check.contains('#') {
        return Err(wrong());
    }
    check.parse::<PathAndQuery>().map(Uri::from).map_err(|_| wrong())
}

fn parse_upstream(upstream: &str) -> Result<Upstream, UpstreamProblem> {
    let uri: Uri = upstream.parse()?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(UpstreamProblem::Scheme);
    }
    let authority = uri.authority().ok_or(UpstreamProblem::NoHost)?;
    if authority.as_str().contains('@') {
        return Err(UpstreamProblem::User);
    }
    if authority.port_u16().is_none() && authority.as_str() != authority.host() {
        return Err(UpstreamProblem::Port);
    }
    if uri.path() != "/" || uri.query().is_some() || upstream.contains('#') {
        return Err(UpstreamProblem::Path);
    }
    let host = HeaderValue::from_str(authority.as_str())?;
    Ok(Upstream::new(upstream.to_owned(), uri, host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(change: impl FnOnce(&mut ProxyConfig)) -> String {
        let mut config = ProxyConfig::new("/api", "http://127.0.0.1:1");
        change(&mut config);
        ProxyRoute::new(&config).unwrap_err().to_string()
    }

    #[test]
    fn a_wrong_configuration_is_refused_with_the_field_and_its_value() {
        assert!(problem(|config| config.path = "api".into()).contains("\"api\""));
        assert!(problem(|config| config.path = "/a?b".into()).contains("/a?b"));
        assert!(problem(|config| config.upstreams.clear()).contains("upstreams is empty"));
        for (upstream, expected) in [
            ("127.0.0.1:80", "http://"),
            ("ftp://a", "has to begin with"),
            ("http://", "is no URI"),
            ("http://me@a", "has a user"),
            ("http://a/path", "has a path"),
            ("http://a:99999", "port"),
        ] {
            let problem = problem(|config| config.upstreams = vec![upstream.into()]);
            assert!(problem.contains(expected) && problem.contains(upstream), "{problem}");
        }
        assert!(problem(|config| config.idle_timeout = Duration::ZERO).contains("idle-timeout"));
        let check = crate::web::config::HealthCheckConfig {
            path: "health".into(),
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
        };
        assert!(problem(|config| config.health_check = Some(check)).contains("\"health\""));
    }

    #[test]
    fn addresses_and_names_with_and_without_a_port_are_upstreams() {
        for upstream in ["http://127.0.0.1:80", "http://a", "http://[::1]", "http://[::1]:80/"] {
            parse_upstream(upstream).unwrap();
        }
        assert_eq!(parse_upstream("http://[::1]:80").unwrap().host, "[::1]:80");
    }
}
