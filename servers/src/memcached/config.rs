//! What a server is started with.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// Text: the classic commands and the meta commands.
    Ascii,
    Binary,
}

/// The least memory limit that the `cache_memlimit` command accepts, in bytes.
pub const MIN_MEMORY_LIMIT: u64 = 8 << 20;

/// When the kernel probes a silent client, by default.
const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(300);

/// What a server is started with. Each field names memcached's flag for it.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses to listen on, each with an optional port that overrides `port` (`-l`). Default:
    /// 127.0.0.1.
    pub listen: Vec<(IpAddr, Option<u16>)>,
    /// The TCP port (`-p`); 0 takes any free port, `None` disables TCP. Default: 11211.
    pub port: Option<u16>,
    /// The UDP port (`-U`). Default: `None`, which disables UDP.
    pub udp_port: Option<u16>,
    /// Whether all commands are executed over UDP, not only gets (`--udp-all-commands`). Anybody
    /// can forge the sender of a datagram. Default: false.
    pub udp_all_commands: bool,
    /// The path of a Unix socket to listen on instead of TCP and UDP (`-s`).
    pub unix_socket: Option<PathBuf>,
    /// The Unix socket's permissions, as for `chmod(2)` (`-a`). Default: 0700.
    pub unix_mode: u32,
    /// Connections that may wait to be accepted (`-b`). Default: 1024.
    pub backlog: i32,
    /// The memory limit in bytes; `-m` takes MiB. Default: 64 MiB.
    pub memory: u64,
    /// Whether items are evicted to make room (`-M` disables it). Default: true.
    pub evict: bool,
    /// Whether items have a CAS unique (`-C` disables it). Default: true.
    pub cas: bool,
    /// Open connections at one time (`-c`). Default: 1024.
    pub max_connections: usize,
    /// Whether a connection beyond `max_connections` receives an error and is closed
    /// (`-o maxconns_fast`). If not, up to `backlog` connections wait for others to close. Default:
    /// true.
    pub refuse_when_full: bool,
    /// How long a connection may be idle before it is closed (`-o idle_timeout`). Default: forever.
    pub idle_timeout: Option<Duration>,
    /// The kernel probes a client after this time without traffic, as it may have vanished without
    /// closing the connection; 1 s or more. How often it repeats that is the host's setting
    /// (`tcp(7)`, `tcp_keepalive_intvl` and `tcp_keepalive_probes`, by default 11 minutes in all)
    /// (`--keepalive`). Default: 300 s.
    pub keepalive: Duration,
    /// The size of the largest item, in bytes, with its key (`-I`). Default: 1 MiB.
    pub max_item: usize,
    /// The protocol of all connections (`-B`). Default: `None`, which detects it from the first
    /// byte.
    pub protocol: Option<Protocol>,
    /// Requests that one connection executes before others run (`-R`); of a get, 50 keys are as
    /// much as one. Default: 20.
    pub requests_per_turn: u32,
    /// Whether `flush_all` is allowed (`-F` disables it). Default: true.
    pub flush_allowed: bool,
    /// Whether commands that list keys are allowed (`-X` disables them). Default: true.
    pub dump_allowed: bool,
    /// Whether the `shutdown` command is allowed (`-A`). Default: false.
    pub shutdown_allowed: bool,
    /// A file of `user:password` lines (`-Y`, or `-S` with `sasl`). If set, clients must
    /// authenticate.
    pub users_file: Option<PathBuf>,
    /// Whether clients authenticate by SASL on the binary protocol (`-S`). Default: false.
    pub sasl: bool,
    /// TLS on all TCP connections (`-Z`). Needs the cargo feature `tls`. Default: `None`.
    pub tls: Option<TlsConfig>,
    /// Whether to listen on publicly reachable addresses although clients need not authenticate.
    /// Default: false.
    pub listen_unauthenticated: bool,
    /// The network interface whose packet counters `stats policy` reports.
    pub interface: Option<String>,
    /// The verbosity that `stats settings` reports at first (`-v`, `-vv`), 0 to 3. Default: 0.
    pub verbosity: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![(IpAddr::V4(Ipv4Addr::LOCALHOST), None)],
            port: Some(11211),
            udp_port: None,
            udp_all_commands: false,
            unix_socket: None,
            unix_mode: 0o700,
            backlog: 1024,
            memory: 64 << 20,
            evict: true,
            cas: true,
            max_connections: 1024,
            refuse_when_full: true,
            idle_timeout: None,
            keepalive: DEFAULT_KEEPALIVE,
            max_item: 1 << 20,
            protocol: None,
            requests_per_turn: 20,
            flush_allowed: true,
            dump_allowed: true,
            shutdown_allowed: false,
            users_file: None,
            sasl: false,
            tls: None,
            listen_unauthenticated: false,
            interface: None,
            verbosity: 0,
        }
    }
}

impl Config {
    pub fn requires_authentication(&self) -> bool {
        self.users_file.is_some()
    }

    pub(super) fn has_time_limits(&self) -> bool {
        self.requires_authentication() || self.idle_timeout.is_some()
    }
}

/// Certificates, private key and client authentication of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The server's certificate chain, a PEM file (`-o ssl_chain_cert`).
    pub certificates: PathBuf,
    /// The private key, a PEM file (`-o ssl_key`).
    pub key: PathBuf,
    /// The authorities that sign clients' certificates, a PEM file (`-o ssl_ca_cert`). Without it
    /// clients are not asked for a certificate.
    pub authorities: Option<PathBuf>,
    /// Whether clients present a certificate (`-o ssl_verify_mode`).
    pub client_certificates: ClientCertificates,
    /// Whether TLS 1.2 is refused (`-o ssl_min_version=tlsv1.3`).
    pub require_tls13: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// Clients are not asked for a certificate.
    #[default]
    Ignored,
    /// Clients are asked for a certificate, which is verified if they present one.
    Optional,
    /// Clients without a valid certificate are refused.
    Required,
}
