//! What a server is started with. Each setting is declared once, here, with its flag and its
//! default: the command fills a [`Config`] from its arguments, and a program from no arguments.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use adapters::tls::{Acceptor, Certificates, ClientCertificates};
use clap::builder::TypedValueParser;
use clap::{ArgAction, Parser, value_parser};

/// The reply to `version`: the memcached version whose protocols the server implements, followed by
/// the crate's version. Clients parse the leading number to detect features.
pub const VERSION: &str = concat!("1.6.45-lull-", env!("CARGO_PKG_VERSION"));

/// A port to listen on: 0 takes any free one, `None` disables the transport.
pub type Port = Option<u16>;

/// The protocol of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[non_exhaustive]
pub enum Protocol {
    /// It is detected from the first byte of each connection.
    Auto,
    /// Text: the classic commands and the meta commands.
    Ascii,
    /// The binary protocol.
    Binary,
}

/// What a server is started with. Each field has the default of memcached's flag for it.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// The TCP port. Default: 11211.
    #[arg(short = 'p', long, value_name = "NUM", default_value = "11211", hide_default_value = true,
        value_parser = parse_port, allow_hyphen_values = true, help = "TCP port to listen on; -1 takes any free \
            port, 0 disables TCP [default: 11211, or the port of -U]")]
    pub port: Port,
    /// The UDP port. Default: `None`.
    #[arg(short = 'U', long, value_name = "NUM", default_value = "0", value_parser = parse_port,
        allow_hyphen_values = true, help = "UDP port to listen on; -1 takes any free port, 0 disables UDP")]
    pub udp_port: Port,
    /// Path of a Unix socket to listen on, instead of TCP and UDP
    #[arg(short = 's', long, value_name = "FILE")]
    pub unix_socket: Option<PathBuf>,
    /// Permissions of the Unix socket, in octal
    #[arg(short = 'a', long = "unix-mask", value_name = "MODE", default_value = "700",
        value_parser = parse_mode)]
    pub unix_mode: u32,
    /// Enable the "shutdown" command
    #[arg(short = 'A', long = "enable-shutdown")]
    pub shutdown_allowed: bool,
    /// Addresses to listen on, separated by commas, each with an optional port that overrides -p;
    /// may be repeated
    #[arg(short = 'l', long, value_name = "ADDR", value_delimiter = ',', default_value = "127.0.0.1",
        value_parser = parse_listen)]
    pub listen: Vec<(IpAddr, Option<u16>)>,
    /// The memory limit, in bytes. Default: 64 MiB.
    #[arg(short = 'm', long = "memory-limit", value_name = "MiB", default_value = "64",
        value_parser = parse_memory,
        help = "Memory limit in MiB, for items, hash tables and other memory of the store")]
    pub memory: u64,
    /// Whether items have a CAS unique. Default: true.
    #[arg(short = 'C', long = "disable-cas", action = ArgAction::SetFalse,
        help = "Keep no CAS uniques: \"gets\" returns 0, and \"cas\" never replaces an item")]
    pub cas: bool,
    /// Whether items are evicted to make room. Default: true.
    #[arg(short = 'M', long = "disable-evictions", action = ArgAction::SetFalse,
        help = "Refuse new items when the memory limit is reached, instead of evicting others")]
    pub evict: bool,
    /// Maximum number of open connections; others receive an error
    #[arg(short = 'c', long = "conn-limit", value_name = "NUM", default_value = "1024",
        value_parser = value_parser!(u32).range(1..).map(|number| number as usize))]
    pub max_connections: usize,
    /// Requests that one connection executes before others run; of a get, 50 keys are as much as
    /// one
    #[arg(short = 'R', long = "max-reqs-per-event", value_name = "NUM", default_value = "20",
        value_parser = value_parser!(u32).range(1..))]
    pub requests_per_turn: u32,
    /// Length of the queue of connections that wait to be accepted
    #[arg(short = 'b', long = "listen-backlog", value_name = "NUM", default_value = "1024",
        value_parser = value_parser!(i32).range(1..))]
    pub backlog: i32,
    /// Protocol: ascii, binary or auto, which detects it per connection
    #[arg(short = 'B', long, value_name = "NAME", default_value = "auto", hide_possible_values = true)]
    pub protocol: Protocol,
    /// The size of the largest item with its key, in bytes. Default: 1 MiB.
    #[arg(short = 'I', long = "max-item-size", value_name = "SIZE", default_value = "1m",
        value_parser = parse_size,
        help = "Size of the largest item in bytes, with its key; the suffixes k and m are accepted")]
    pub max_item: usize,
    /// Require SASL PLAIN authentication, on the binary protocol; $MEMCACHED_SASL_PWDB names a file
    /// of user:password lines
    #[arg(short = 'S', long = "enable-sasl")]
    pub sasl: bool,
    /// Whether `flush_all` is allowed. Default: true.
    #[arg(short = 'F', long = "disable-flush-all", action = ArgAction::SetFalse,
        help = "Disable the \"flush_all\" command")]
    pub flush_allowed: bool,
    /// Whether commands that list keys are allowed. Default: true.
    #[arg(short = 'X', long = "disable-dumping", action = ArgAction::SetFalse,
        help = "Disable commands that list keys")]
    pub dump_allowed: bool,
    /// Require authentication, on the text protocol, by a file of user:password lines; reloaded on
    /// SIGHUP
    #[arg(short = 'Y', long = "auth-file", value_name = "FILE")]
    pub users_file: Option<PathBuf>,
    /// Execute all commands over UDP, not only gets, although anybody can forge a datagram's sender
    #[arg(long)]
    pub udp_all_commands: bool,
    /// Time without traffic after which the kernel probes whether a client still exists, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "300",
        value_parser = value_parser!(u16).range(1..=32_767).map(|time| Duration::from_secs(time.into())))]
    pub keepalive: Duration,
    /// Listen on publicly reachable addresses although clients need not authenticate
    #[arg(long)]
    pub listen_unauthenticated: bool,
    /// The interface of the clients, whose packets `stats policy` counts. Default: `None`.
    #[arg(
        long,
        value_name = "NAME",
        help_heading = "Network policy",
        help = "Network interface of the clients; by default the one that has the first address"
    )]
    pub interface: Option<String>,

    /// How long a connection may be idle before it is closed (`-o idle_timeout`). Default: forever.
    #[arg(skip)]
    pub idle_timeout: Option<Duration>,
    /// TLS on all TCP connections (`-Z`). Default: `None`.
    #[arg(skip)]
    pub tls: Option<TlsConfig>,
}

impl Default for Config {
    /// The settings of a command without flags.
    fn default() -> Self {
        #[derive(Parser)]
        struct NoFlags {
            #[command(flatten)]
            config: Config,
        }
        NoFlags::parse_from([""]).config
    }
}

impl Config {
    /// Whether clients must authenticate: there is a file of users.
    pub fn requires_authentication(&self) -> bool {
        self.users_file.is_some()
    }

    pub(super) fn has_time_limits(&self) -> bool {
        self.requires_authentication() || self.idle_timeout.is_some()
    }
}

/// Certificates, private key and client authentication of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsConfig {
    /// The server's certificate chain, a PEM file (`-o ssl_chain_cert`).
    pub certificates: PathBuf,
    /// The private key, a PEM file (`-o ssl_key`).
    pub key: PathBuf,
    /// The authorities that sign clients' certificates, a PEM file (`-o ssl_ca_cert`). Without it
    /// clients are not asked for a certificate.
    pub authorities: Option<PathBuf>,
    /// Whether clients present a certificate (`-o ssl_verify_mode`). `None`: they are not asked for one.
    pub client_certificates: Option<ClientCertificates>,
    /// Whether TLS 1.2 is refused (`-o ssl_min_version=tlsv1.3`).
    pub require_tls13: bool,
}

impl TlsConfig {
    /// Reads certificates and key, which can be loaded again.
    pub(super) fn open(&self) -> Result<Acceptor, adapters::tls::Error> {
        let mut builder = Acceptor::builder(Certificates::new(&self.certificates, &self.key));
        if let (Some(authorities), Some(wanted)) = (&self.authorities, self.client_certificates) {
            builder = builder.client_certificates(authorities, wanted);
        }
        if self.require_tls13 {
            builder = builder.require_tls13();
        }
        builder.open()
    }
}

fn parse_port(text: &str) -> Result<Port, String> {
    match text {
        "-1" => Ok(Some(0)),
        "0" => Ok(None),
        _ => text
            .parse()
            .map(Some)
            .map_err(|_| "expected a port from 1 to 65535, -1 for any, or 0 for none".to_owned()),
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected permissions in octal, for example 770".to_owned())
}

fn parse_listen(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if let Ok(ip) = text.parse() {
        return Ok((ip, None));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok((address.ip(), Some(address.port())));
    }
    let hint = "expected an address, for example 127.0.0.1, 127.0.0.1:11212, ::1 or [::1]:11212";
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().map_err(|_| hint.to_owned())?)),
        None => (text, None),
    };
    match (host, 0).to_socket_addrs() {
        Ok(mut found) => found.next().map(|address| (address.ip(), port)).ok_or_else(|| hint.to_owned()),
        Err(error) => Err(format!("{error}; {hint}")),
    }
}

/// Parses a number of MiB to bytes. It may say so: memcached ignores what follows the digits, and
/// means the same.
fn parse_memory(text: &str) -> Result<u64, String> {
    let mebibytes = text.strip_suffix(['m', 'M']).unwrap_or(text).parse().ok();
    mebibytes
        .filter(|mebibytes| (1..=1 << 24).contains(mebibytes))
        .map(|mebibytes: u64| mebibytes << 20)
        .ok_or_else(|| "expected a number of MiB from 1 to 16777216, for example 1024".to_owned())
}

/// Parses an item size, from 1 KiB to 1 GiB as in memcached.
fn parse_size(text: &str) -> Result<usize, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 1 << 10),
        Some(b'm') => (&lower[..lower.len() - 1], 1 << 20),
        _ => (lower.as_str(), 1),
    };
    let size = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    match size {
        Some(size) if ((1 << 10)..=(1 << 30)).contains(&size) => Ok(size),
        _ => Err("expected a size from 1k to 1024m".to_owned()),
    }
}
