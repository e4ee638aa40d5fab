//! The command line: memcached's flags, and Lull's own.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser};
use servers::memcached::{ClientCertificates, Config, Protocol, TlsConfig};

use crate::extended_options::{self, ExtendedOptions};
use crate::network_flags::NetworkFlags;

/// A memcached-compatible server that reduces the network card's interrupts under load
#[derive(Debug, Parser)]
// As in memcached, the last of several equal flags counts: start scripts add theirs after those of
// a configuration.
#[command(name = "memcached", disable_version_flag = true, args_override_self = true, after_help = AFTER_HELP)]
pub struct Flags {
    /// TCP port to listen on; -1 takes any free port, 0 disables TCP [default: 11211, or the port
    /// of -U]
    #[arg(short = 'p', long = "port", value_name = "NUM", value_parser = parse_port, allow_hyphen_values = true)]
    port: Option<Port>,
    /// UDP port to listen on; -1 takes any free port, 0 disables UDP
    #[arg(short = 'U', long = "udp-port", value_name = "NUM", default_value = "0", value_parser = parse_port, allow_hyphen_values = true)]
    udp_port: Port,
    /// Path of a Unix socket to listen on, instead of TCP and UDP
    #[arg(short = 's', long = "unix-socket", value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Permissions of the Unix socket, in octal
    #[arg(short = 'a', long = "unix-mask", value_name = "MODE", default_value = "700", value_parser = parse_mode)]
    unix_mode: u32,
    /// Enable the "shutdown" command
    #[arg(short = 'A', long = "enable-shutdown")]
    enable_shutdown: bool,
    /// Addresses to listen on, separated by commas, each with an optional port that overrides -p;
    /// may be repeated
    #[arg(short = 'l', long = "listen", value_name = "ADDR", value_delimiter = ',', default_value = "127.0.0.1", value_parser = parse_listen)]
    listen: Vec<(IpAddr, Option<u16>)>,
    /// Run in the background; the command returns once clients can connect
    #[arg(short = 'd', long = "daemon")]
    pub daemon: bool,
    /// Remove the size limit of core files
    #[arg(short = 'r', long = "enable-coredumps")]
    pub coredumps: bool,
    /// User to switch to after start; required if started as root (-u root stays root), else
    /// ignored
    #[arg(short = 'u', long = "user", value_name = "USER")]
    pub user: Option<String>,
    /// Memory limit in MiB, for items, hash tables and other memory of the store
    #[arg(short = 'm', long = "memory-limit", value_name = "MiB", default_value_t = 64, value_parser = parse_memory)]
    memory: u64,
    /// Keep no CAS uniques: "gets" returns 0, and "cas" never replaces an item
    #[arg(short = 'C', long = "disable-cas")]
    disable_cas: bool,
    /// Refuse new items when the memory limit is reached, instead of evicting others
    #[arg(short = 'M', long = "disable-evictions")]
    disable_evictions: bool,
    /// Maximum number of open connections
    #[arg(short = 'c', long = "conn-limit", value_name = "NUM", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// Lock all memory, so that it is never swapped out
    #[arg(short = 'k', long = "lock-memory")]
    pub lock_memory: bool,
    /// Log more: -v policies and failed connections, -vv also host settings, -vvv everything
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count)]
    pub verbose: u8,
    /// Print the licence
    #[arg(short = 'i', long = "license")]
    pub license: bool,
    /// Print the version
    #[arg(short = 'V', long = "version")]
    pub version: bool,
    /// File to write the process ID to
    #[arg(short = 'P', long = "pidfile", value_name = "FILE")]
    pub pidfile: Option<PathBuf>,
    /// Number of workers; by default one per receive queue of the interface, or per core without an
    /// interface
    #[arg(short = 't', long = "threads", value_name = "NUM", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub threads: Option<u16>,
    /// Requests that one connection executes before others run
    #[arg(short = 'R', long = "max-reqs-per-event", value_name = "NUM", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    requests_per_turn: u32,
    /// Length of the queue of connections that wait to be accepted
    #[arg(short = 'b', long = "listen-backlog", value_name = "NUM", default_value_t = 1024, value_parser = clap::value_parser!(i32).range(1..))]
    backlog: i32,
    /// Protocol: ascii, binary or auto, which detects it per connection
    #[arg(short = 'B', long = "protocol", value_name = "NAME", default_value = "auto", value_parser = ["auto", "ascii", "binary"])]
    protocol: String,
    /// Size of the largest item in bytes, with its key; the suffixes k and m are accepted
    #[arg(short = 'I', long = "max-item-size", value_name = "SIZE", default_value = "1m", value_parser = parse_size)]
    max_item: u64,
    /// Require SASL PLAIN authentication, on the binary protocol; $MEMCACHED_SASL_PWDB names a file
    /// of user:password lines
    #[arg(short = 'S', long = "enable-sasl")]
    sasl: bool,
    /// Disable the "flush_all" command
    #[arg(short = 'F', long = "disable-flush-all")]
    disable_flush_all: bool,
    /// Disable commands that list keys
    #[arg(short = 'X', long = "disable-dumping")]
    disable_dumping: bool,
    /// Require authentication, on the text protocol, by a file of user:password lines; reloaded on
    /// SIGHUP
    #[arg(short = 'Y', long = "auth-file", value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Enable TLS on TCP; needs -o ssl_chain_cert=FILE,ssl_key=FILE
    #[arg(short = 'Z', long = "enable-ssl")]
    tls: bool,
    /// Extended options, separated by commas; see below
    #[arg(short = 'o', long = "extended", value_name = "LIST", value_delimiter = ',')]
    extended_options: Vec<String>,
    /// Execute all commands over UDP, not only gets
    #[arg(long)]
    udp_all_commands: bool,
    /// Time without traffic after which the kernel probes whether a client still exists, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u16).range(1..=32_767))]
    keepalive: u16,
    /// Listen on publicly reachable addresses although clients need not authenticate
    #[arg(long)]
    listen_unauthenticated: bool,

    #[command(flatten)]
    pub network: NetworkFlags,

    /// No effect: there are no slab classes
    #[arg(
        short = 'f',
        long = "slab-growth-factor",
        value_name = "NUM",
        help_heading = "Accepted for compatibility"
    )]
    slab_growth_factor: Option<f64>,
    /// No effect: there are no slab classes
    #[arg(
        short = 'n',
        long = "slab-min-size",
        value_name = "BYTES",
        help_heading = "Accepted for compatibility"
    )]
    slab_min_size: Option<u32>,
    /// No effect: requests are not counted by the prefixes of their keys
    #[arg(short = 'D', value_name = "CHAR", help_heading = "Accepted for compatibility")]
    prefix_delimiter: Option<String>,
    /// No effect: there is no log to watch
    #[arg(short = 'W', long = "disable-watch", help_heading = "Accepted for compatibility")]
    disable_watch: bool,
    /// No effect: workers find their NAPI instances themselves
    #[arg(short = 'N', long = "napi_ids", value_name = "NUM", help_heading = "Accepted for compatibility")]
    napi_ids: Option<u32>,

    /// Refused: segments are smaller than large pages
    #[arg(short = 'L', long = "enable-largepages", help_heading = "Refused")]
    large_pages: bool,
    /// Refused: items do not outlive the process
    #[arg(short = 'e', long = "memory-file", value_name = "FILE", help_heading = "Refused")]
    memory_file: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Extended options (-o):
  maxconns_fast, no_maxconns_fast  at the connection limit, close new connections with an error, or let them
                                   wait [maxconns_fast]
  idle_timeout=SECONDS             close connections that are idle for this long [0: never]
  ssl_chain_cert=FILE              certificate chain of the server, in PEM; reloaded on SIGHUP
  ssl_key=FILE                     private key of the server, in PEM
  ssl_ca_cert=FILE                 authorities that sign clients' certificates, in PEM
  ssl_verify_mode=0|1|2|3          clients' certificates: not requested (0), optional (1), required (2, 3) [0]
  ssl_min_version=tlsv1.2|tlsv1.3  oldest version of TLS [tlsv1.2]
Accepted without effect: hashpower, hash_algorithm, tail_repair_time, lru_crawler*, lru_maintainer, hot_* and
  warm_*, temporary_ttl, slab_reassign, slab_automove*, slab_chunk_max, track_sizes, modern, no_modern,
  no_hashexpand, read_buf_mem_limit, resp_obj_mem_limit, watcher_logbuf_size, worker_logbuf_size,
  ssl_wbuf_size, ssl_session_cache, ssl_kernel_tls, inline_ascii_resp
Refused: ext_... (there is no storage but memory), ssl_ciphers, ssl_keyformat other than PEM, sock_cookie_id,
  drop_privileges (there is no seccomp filter)";

/// The argument of -p and -U.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    /// 0
    None,
    /// 0, written -1, is any.
    Number(u16),
}

impl Port {
    fn number(self) -> Option<u16> {
        match self {
            Self::None => None,
            Self::Number(port) => Some(port),
        }
    }
}

/// memcached's port.
const DEFAULT_PORT: u16 = 11211;

fn parse_port(text: &str) -> Result<Port, String> {
    match text {
        "-1" => Ok(Port::Number(0)),
        "0" => Ok(Port::None),
        _ => text
            .parse()
            .map(Port::Number)
            .map_err(|_| "expected a port from 1 to 65535, -1 for any, or 0 for none".to_owned()),
    }
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "expected permissions in octal, for example 770".to_owned())
}

fn parse_listen(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if text.starts_with("proto[") || text.starts_with("tag[") {
        return Err("the protocol is the same for all addresses (-B); expected an address".to_owned());
    }
    for prefix in ["notls:", "btls:", "mtls:"] {
        if text.starts_with(prefix) {
            return Err(format!("{prefix} is not supported: TLS applies to all addresses (-Z) or to none"));
        }
    }
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

/// Parses a number of MiB, which may say so: memcached ignores what follows the digits, and means
/// the same.
fn parse_memory(text: &str) -> Result<u64, String> {
    let mebibytes = text.strip_suffix(['m', 'M']).unwrap_or(text).parse().ok();
    mebibytes
        .filter(|mebibytes| (1..=1 << 24).contains(mebibytes))
        .ok_or_else(|| "expected a number of MiB from 1 to 16777216, for example 1024".to_owned())
}

/// Parses an item size, from 1 KiB to 1 GiB as in memcached.
fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 1 << 10),
        Some(b'm') => (&lower[..lower.len() - 1], 1 << 20),
        _ => (lower.as_str(), 1),
    };
    let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    match size {
        Some(size) if ((1 << 10)..=(1 << 30)).contains(&size) => Ok(size),
        _ => Err("expected a size from 1k to 1024m".to_owned()),
    }
}

impl Flags {
    /// A warning for each flag that is accepted without effect, except -W.
    pub fn warnings(&self) -> Vec<String> {
        let ignored = [
            (self.slab_growth_factor.is_some(), "-f has no effect: there are no slab classes"),
            (self.slab_min_size.is_some(), "-n has no effect: there are no slab classes"),
            (self.prefix_delimiter.is_some(), "-D has no effect: there is no stats detail"),
            (self.napi_ids.is_some(), "-N has no effect: workers find their NAPI instances themselves"),
        ];
        let mut warnings: Vec<String> =
            ignored.iter().filter(|(given, _)| *given).map(|(_, warning)| (*warning).to_owned()).collect();
        let options = self.extended_options.iter();
        warnings.extend(options.filter_map(|option| extended_options::ignored_warning(option)));
        warnings
    }

    /// The server's configuration, or what is wrong with the flags.
    pub fn config(&self) -> Result<Config, String> {
        if self.large_pages {
            return Err("-L is refused: segments are smaller than large pages".to_owned());
        }
        if self.memory_file.is_some() {
            return Err("-e is refused: items do not outlive the process".to_owned());
        }
        let memory = self.memory << 20;
        if self.max_item > memory / 2 {
            let most = memory / 2048;
            return Err(format!("-I: an item may take at most half of the memory limit (-m), {most}k"));
        }
        let options = ExtendedOptions::parse(&self.extended_options)?;
        let mut config = Config {
            listen: self.listen.clone(),
            // As in memcached, -U alone names both ports.
            port: match (self.port, self.udp_port) {
                (Some(port), _) => port.number(),
                (None, Port::None) => Some(DEFAULT_PORT),
                (None, udp_port) => udp_port.number(),
            },
            udp_port: self.udp_port.number(),
            cas: !self.disable_cas,
            udp_all_commands: self.udp_all_commands,
            unix_socket: self.unix_socket.clone(),
            unix_mode: self.unix_mode,
            backlog: self.backlog,
            memory,
            evict: !self.disable_evictions,
            max_connections: self.connections as usize,
            refuse_when_full: options.maxconns_fast,
            idle_timeout: options.idle_timeout.map(Duration::from_secs),
            keepalive: Duration::from_secs(self.keepalive.into()),
            max_item: self.max_item as usize,
            protocol: match self.protocol.as_str() {
                "ascii" => Some(Protocol::Ascii),
                "binary" => Some(Protocol::Binary),
                _ => None,
            },
            requests_per_turn: self.requests_per_turn,
            flush_allowed: !self.disable_flush_all,
            dump_allowed: !self.disable_dumping,
            shutdown_allowed: self.enable_shutdown,
            listen_unauthenticated: self.listen_unauthenticated,
            verbosity: self.verbose.into(),
            ..Config::default()
        };
        self.configure_authentication(&mut config)?;
        config.tls = self.tls_config(options)?;
        // Paths are made absolute because a daemon changes its working directory.
        let tls = config
            .tls
            .iter_mut()
            .flat_map(|tls| [Some(&mut tls.certificates), Some(&mut tls.key), tls.authorities.as_mut()]);
        for path in [config.unix_socket.as_mut(), config.users_file.as_mut()].into_iter().chain(tls).flatten()
        {
            *path = std::path::absolute(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(config)
    }

    fn configure_authentication(&self, config: &mut Config) -> Result<(), String> {
        config.sasl = self.sasl;
        match (self.sasl, &self.auth_file) {
            (true, Some(_)) => {
                return Err(
                    "-S and -Y exclude each other: -S is for the binary protocol, -Y for the text protocol"
                        .to_owned(),
                );
            }
            (true, None) => {
                if config.protocol == Some(Protocol::Ascii) {
                    return Err("-S needs the binary protocol: omit -B, or give -B binary".to_owned());
                }
                let file: Option<OsString> = std::env::var_os("MEMCACHED_SASL_PWDB");
                let file = file.ok_or("-S: set MEMCACHED_SASL_PWDB to a file of user:password lines")?;
                config.users_file = Some(file.into());
                config.protocol = Some(Protocol::Binary);
            }
            (false, Some(file)) => {
                if config.protocol == Some(Protocol::Binary) {
                    return Err("-Y needs the text protocol: omit -B, or give -B ascii".to_owned());
                }
                config.users_file = Some(file.clone());
                config.protocol = Some(Protocol::Ascii);
            }
            (false, None) => {}
        }
        if config.requires_authentication() && config.udp_port.is_some() {
            return Err("-U is refused with -S or -Y: clients cannot authenticate over UDP".to_owned());
        }
        Ok(())
    }

    fn tls_config(&self, options: ExtendedOptions) -> Result<Option<TlsConfig>, String> {
        if !self.tls {
            return match options.tls_option {
                Some(option) => Err(format!("-o {option} needs -Z")),
                None => Ok(None),
            };
        }
        if !cfg!(feature = "tls") {
            return Err(
                "-Z: this build has no TLS; build lull-servers with its cargo feature `tls`".to_owned()
            );
        }
        if self.unix_socket.is_some() {
            return Err("-Z is for TCP: omit -s".to_owned());
        }
        if self.udp_port != Port::None {
            return Err("-Z is for TCP: UDP would not be encrypted; omit -U".to_owned());
        }
        let certificates = options.tls_chain.ok_or("-Z needs -o ssl_chain_cert=FILE")?;
        let key = options.tls_key.unwrap_or_else(|| certificates.clone());
        if options.client_certificates != ClientCertificates::Ignored && options.tls_authorities.is_none() {
            return Err("-o ssl_verify_mode needs -o ssl_ca_cert=FILE".to_owned());
        }
        Ok(Some(TlsConfig {
            certificates,
            key,
            authorities: options.tls_authorities,
            client_certificates: options.client_certificates,
            require_tls13: options.require_tls13,
        }))
    }
}
