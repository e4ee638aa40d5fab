//! What a server is started with.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use super::tls::TlsConfig;

/// What clients speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Lines: the classic commands and the meta ones.
    Ascii,
    /// Packets.
    Binary,
}

/// The least memory that a running server's limit can be set to.
pub const LEAST_MEMORY: u64 = 8 << 20;

/// What a server is started with.
#[derive(Debug, Clone)]
pub struct Config {
    /// The addresses to listen on, each with a port of its own or that of `port`; memcached's `-l`.
    pub listen: Vec<(IpAddr, Option<u16>)>,
    /// The port; 0 takes any free one, `None` listens on no TCP port. memcached's `-p`.
    pub port: Option<u16>,
    /// The UDP port, `None` for no UDP; memcached's `-U`.
    pub udp_port: Option<u16>,
    /// A path to listen on instead; memcached's `-s`.
    pub unix_socket: Option<PathBuf>,
    /// Who may use the path, as for `chmod(2)`; memcached's `-a`.
    pub unix_mode: u32,
    /// Connections that may wait to be accepted; memcached's `-b`.
    pub backlog: i32,
    /// Bytes of memory; memcached's `-m`, which counts in MiB.
    pub memory: u64,
    /// Whether items are put out to make room; memcached's `-M` says no.
    pub evict: bool,
    /// Connections at one time; memcached's `-c`.
    pub connections: usize,
    /// Whether one connection too many is told so and closed, rather than wait until there are fewer; so
    /// many as `backlog` may wait. memcached's `-o maxconns_fast`.
    pub refuse_at_once: bool,
    /// Connections that say nothing for so long are closed; memcached's `-o idle_timeout`.
    pub idle_timeout: Option<Duration>,
    /// The size of the largest item, in bytes; memcached's `-I`.
    pub max_item: usize,
    /// What clients speak; `None` tells by the first byte. memcached's `-B`.
    pub protocol: Option<Protocol>,
    /// Requests of one client before others get a turn; memcached's `-R`.
    pub requests_per_turn: u32,
    /// Whether `flush_all` is obeyed; memcached's `-F` says no.
    pub flush_allowed: bool,
    /// Whether keys are listed; memcached's `-X` says no.
    pub dump_allowed: bool,
    /// Whether `shutdown` is obeyed; memcached's `-A`.
    pub shutdown_allowed: bool,
    /// A file of `user:password` lines that clients must know one of; memcached's `-Y`, or `-S` with
    /// `sasl`.
    pub users: Option<PathBuf>,
    /// Whether clients say who they are by SASL, on the binary protocol; memcached's `-S`.
    pub sasl: bool,
    /// TLS on TCP; memcached's `-Z`.
    pub tls: Option<TlsConfig>,
    /// Whether an address that can be reached from anywhere is listened on although clients need not say
    /// who they are.
    pub listen_unauthenticated: bool,
    /// The interface that clients come in by, whose packets `stats policy` tells of.
    pub interface: Option<String>,
    /// How much is logged; memcached's `-v`, `-vv`.
    pub verbosity: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: vec![(IpAddr::V4(Ipv4Addr::LOCALHOST), None)],
            port: Some(11211),
            udp_port: None,
            unix_socket: None,
            unix_mode: 0o700,
            backlog: 1024,
            memory: 64 << 20,
            evict: true,
            connections: 1024,
            refuse_at_once: true,
            idle_timeout: None,
            max_item: 1 << 20,
            protocol: None,
            requests_per_turn: 20,
            flush_allowed: true,
            dump_allowed: true,
            shutdown_allowed: false,
            users: None,
            sasl: false,
            tls: None,
            listen_unauthenticated: false,
            interface: None,
            verbosity: 0,
        }
    }
}

impl Config {
    /// Whether clients are waited for only so long.
    pub(super) fn watches(&self) -> bool {
        self.asks_who() || self.idle_timeout.is_some()
    }

    /// Whether clients have to say who they are.
    pub fn asks_who(&self) -> bool {
        self.users.is_some()
    }
}
