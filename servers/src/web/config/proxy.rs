//! Where requests are forwarded to.

use std::time::Duration;

use serde::Deserialize;

/// Requests below a path go to a group of servers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ProxyConfig {
    /// Requests whose path begins with this are forwarded, whole segments of it: `/api` takes
    /// `/api` and `/api/users`, not `/apis`. It stays in the forwarded path, unless `strip_path` is
    /// set.
    pub path: String,
    /// The servers, as `http://10.0.0.1:8000` or `https://api.internal`. Requests go to them in
    /// turns.
    pub upstreams: Vec<String>,
    /// Whether `path` is taken off the forwarded path. Default: false.
    #[serde(default)]
    pub strip_path: bool,
    /// Whether the client's `Host` is forwarded; otherwise it is the upstream's. Default: false, as
    /// nginx's.
    #[serde(default)]
    pub preserve_host: bool,
    /// How long a connect may take. Default: 5 s.
    #[serde(default = "connect_timeout", with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// How long the head of a response may take after the last part of the request, and how long
    /// each part of its body. A client that sends no part of its body for as long gets 408.
    /// Default: 60 s.
    #[serde(default = "response_timeout", with = "humantime_serde")]
    pub response_timeout: Duration,
    /// How often a request that may be sent twice (RFC 9110, section 9.2.2) goes to another server
    /// after an error. Default: 1.
    #[serde(default = "retries")]
    pub retries: u32,
    /// Idle connections that each worker keeps open to each server. Default: 64.
    #[serde(default = "idle_connections")]
    pub idle_connections: usize,
    /// How long an idle connection is kept. Default: 60 s.
    #[serde(default = "idle_timeout", with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// Open connections of each worker to each server, of which each carries one request; requests
    /// beyond them get 503. Default: 1024.
    #[serde(default = "max_connections")]
    pub max_connections: usize,
    /// How long nothing may come from either side of an upgraded connection, as a WebSocket, before
    /// it is closed. Default: 10 min.
    #[serde(default = "upgrade_timeout", with = "humantime_serde")]
    pub upgrade_timeout: Duration,
    /// A request that each server is probed with. Default: none; then only errors of requests
    /// count.
    pub health_check: Option<HealthCheckConfig>,
}

/// A periodic request that says whether a server is healthy.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct HealthCheckConfig {
    /// The path of the request. A status of 200 to 399 is healthy; two others in a row are not.
    pub path: String,
    /// The time between two requests. Default: 5 s.
    #[serde(default = "health_interval", with = "humantime_serde")]
    pub interval: Duration,
    /// How long an answer may take. Default: 2 s.
    #[serde(default = "health_timeout", with = "humantime_serde")]
    pub timeout: Duration,
}

fn connect_timeout() -> Duration {
    Duration::from_secs(5)
}

fn response_timeout() -> Duration {
    Duration::from_secs(60)
}

fn retries() -> u32 {
    1
}

fn idle_connections() -> usize {
    64
}

fn idle_timeout() -> Duration {
    Duration::from_secs(60)
}

fn max_connections() -> usize {
    1024
}

fn upgrade_timeout() -> Duration {
    Duration::from_secs(600)
}

fn health_interval() -> Duration {
    Duration::from_secs(5)
}

fn health_timeout() -> Duration {
    Duration::from_secs(2)
}

impl ProxyConfig {
    /// Forwards requests below `path` to one server, with the defaults.
    pub fn new(path: impl Into<String>, upstream: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            upstreams: vec![upstream.into()],
            strip_path: false,
            preserve_host: false,
            connect_timeout: connect_timeout(),
            response_timeout: response_timeout(),
            retries: retries(),
            idle_connections: idle_connections(),
            idle_timeout: idle_timeout(),
            max_connections: max_connections(),
            upgrade_timeout: upgrade_timeout(),
            health_check: None,
        }
    }
}
