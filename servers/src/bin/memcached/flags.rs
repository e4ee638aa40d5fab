//! The command line: memcached's, and what is new behind it.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser};
use policies::{Cpus, GraceTime, Policy};
use runtime::{DriverKind, WaitStrategy};
use servers::memcached::{Config, Protocol, TlsConfig};

use crate::extended::{self, Extended};

/// A server that speaks memcached's protocols and keeps the network card quiet meanwhile
#[derive(Debug, Parser)]
#[command(name = "memcached", disable_version_flag = true, after_help = AFTER_HELP)]
pub struct Flags {
    /// TCP port to listen on; 0 takes any free one, -1 none
    #[arg(short = 'p', long = "port", value_name = "NUM", default_value = "11211", value_parser = parse_port, allow_hyphen_values = true)]
    port: Port,
    /// UDP port to listen on; 0 or -1 is off
    #[arg(short = 'U', long = "udp-port", value_name = "NUM", default_value = "0", value_parser = parse_port, allow_hyphen_values = true)]
    udp_port: Port,
    /// Unix socket to listen on, instead of TCP
    #[arg(short = 's', long = "unix-socket", value_name = "FILE")]
    unix_socket: Option<PathBuf>,
    /// Who may use the Unix socket, in octal
    #[arg(short = 'a', long = "unix-mask", value_name = "MODE", default_value = "700", value_parser = parse_mode)]
    unix_mode: u32,
    /// Enable the "shutdown" command
    #[arg(short = 'A', long = "enable-shutdown")]
    enable_shutdown: bool,
    /// Address to listen on, with its own port or that of -p; several with commas between them or by several -l
    #[arg(short = 'l', long = "listen", value_name = "ADDR", value_delimiter = ',', default_value = "127.0.0.1", value_parser = parse_listen)]
    listen: Vec<(IpAddr, Option<u16>)>,
    /// Run in the background: returns once clients can connect
    #[arg(short = 'd', long = "daemon")]
    pub daemon: bool,
    /// Let core files be of any size
    #[arg(short = 'r', long = "enable-coredumps")]
    pub coredumps: bool,
    /// User to run as, once what needs root is done
    #[arg(short = 'u', long = "user", value_name = "USER")]
    pub user: Option<String>,
    /// Memory, in MiB, all that belongs to items included
    #[arg(short = 'm', long = "memory-limit", value_name = "MiB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    memory: u64,
    /// Refuse new items when memory is full, rather than put others out
    #[arg(short = 'M', long = "disable-evictions")]
    disable_evictions: bool,
    /// Most connections at one time
    #[arg(short = 'c', long = "conn-limit", value_name = "NUM", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub connections: u32,
    /// Keep all memory from being swapped out
    #[arg(short = 'k', long = "lock-memory")]
    pub lock_memory: bool,
    /// Log more: -v what runs and connections that end by an error, -vv also host settings, -vvv all
    #[arg(short = 'v', long = "verbose", action = ArgAction::Count)]
    pub verbose: u8,
    /// Print the licence
    #[arg(short = 'i', long = "license")]
    pub license: bool,
    /// Print the version
    #[arg(short = 'V', long = "version")]
    pub version: bool,
    /// Write the process id there
    #[arg(short = 'P', long = "pidfile", value_name = "FILE")]
    pub pidfile: Option<PathBuf>,
    /// Workers; the receive queues of the interface unless set, else the cores
    #[arg(short = 't', long = "threads", value_name = "NUM", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub threads: Option<u16>,
    /// Requests of one client before others get a turn
    #[arg(short = 'R', long = "max-reqs-per-event", value_name = "NUM", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    requests_per_turn: u32,
    /// Connections that may wait to be accepted
    #[arg(short = 'b', long = "listen-backlog", value_name = "NUM", default_value_t = 1024, value_parser = clap::value_parser!(i32).range(1..))]
    backlog: i32,
    /// What clients speak: ascii, binary or auto
    #[arg(short = 'B', long = "protocol", value_name = "NAME", default_value = "auto", value_parser = ["auto", "ascii", "binary"])]
    protocol: String,
    /// Size of the largest item, with its key; may end in k or m
    #[arg(short = 'I', long = "max-item-size", value_name = "SIZE", default_value = "1m", value_parser = parse_size)]
    max_item: u64,
    /// Ask clients who they are, by SASL PLAIN on the binary protocol; users in the file of $MEMCACHED_SASL_PWDB
    #[arg(short = 'S', long = "enable-sasl")]
    sasl: bool,
    /// Refuse flush_all
    #[arg(short = 'F', long = "disable-flush-all")]
    disable_flush_all: bool,
    /// Refuse to list keys
    #[arg(short = 'X', long = "disable-dumping")]
    disable_dumping: bool,
    /// Ask clients who they are, on the text protocol; a file of user:password lines, read again on SIGHUP
    #[arg(short = 'Y', long = "auth-file", value_name = "FILE")]
    auth_file: Option<PathBuf>,
    /// Speak TLS on TCP, with -o ssl_chain_cert=FILE,ssl_key=FILE
    #[arg(short = 'Z', long = "enable-ssl")]
    tls: bool,
    /// Extended options with commas between them; see below
    #[arg(short = 'o', long = "extended", value_name = "LIST", value_delimiter = ',')]
    extended: Vec<String>,
    /// Listen on an address that can be reached from anywhere, though clients need not say who they are
    #[arg(long)]
    listen_unauthenticated: bool,

    /// vanilla, packing, suppression or kernel-polling [env: RUNTIME_POLICY]
    #[arg(long, help_heading = "Network policy")]
    pub policy: Option<Policy>,
    /// Interface that clients come in by; the one that has the -l address unless set
    #[arg(long, value_name = "NAME", help_heading = "Network policy")]
    pub interface: Option<String>,
    /// How workers wait: block, spin, spin-then-block or spin-then-block:50us [env: RUNTIME_WAIT]
    #[arg(long, help_heading = "Network policy")]
    pub wait: Option<WaitStrategy>,
    /// Driver: auto, epoll, uring or hybrid [env: RUNTIME_DRIVER]
    #[arg(long, help_heading = "Network policy")]
    pub driver: Option<DriverKind>,
    /// What workers and interrupts have to do with each other: pin (interrupts go to their workers'
    /// cores, and are put back there), follow (workers move to their interrupts' cores) or none [env: RUNTIME_AFFINITY]
    #[arg(long, value_name = "HOW", help_heading = "Network policy")]
    pub affinity: Option<policies::Affinity>,
    /// Pin workers to these cores, for example 0-3
    #[arg(long, help_heading = "Network policy")]
    pub cores: Option<Cpus>,
    /// Cores that the packing policy gathers network work on
    #[arg(long, value_name = "CORES", help_heading = "Network policy")]
    pub packing_cores: Option<Cpus>,
    /// Grace time after an empty poll: microseconds, or auto:MIN-MAX, which finds the best for the load
    /// and is the default under kernel-polling (auto:50-400)
    #[arg(long, value_name = "US", help_heading = "Network policy")]
    pub gro_flush_timeout: Option<GraceTime>,

    /// Taken, without effect: items are not kept by classes of size
    #[arg(
        short = 'f',
        long = "slab-growth-factor",
        value_name = "NUM",
        help_heading = "Taken for compatibility"
    )]
    slab_growth_factor: Option<f64>,
    /// Taken, without effect: items are not kept by classes of size
    #[arg(
        short = 'n',
        long = "slab-min-size",
        value_name = "BYTES",
        help_heading = "Taken for compatibility"
    )]
    slab_min_size: Option<u32>,
    /// Taken, without effect: nothing is counted by prefix
    #[arg(short = 'D', value_name = "CHAR", help_heading = "Taken for compatibility")]
    prefix_delimiter: Option<char>,
    /// Taken, without effect: each item has its number
    #[arg(short = 'C', long = "disable-cas", help_heading = "Taken for compatibility")]
    disable_cas: bool,
    /// Taken, without effect: there is no live log to watch
    #[arg(short = 'W', long = "disable-watch", help_heading = "Taken for compatibility")]
    disable_watch: bool,
    /// Taken, without effect: workers find the NAPIs themselves
    #[arg(short = 'N', long = "napi_ids", value_name = "NUM", help_heading = "Taken for compatibility")]
    napi_ids: Option<u32>,

    /// Refused: items lie in segments that are smaller than large pages
    #[arg(short = 'L', long = "enable-largepages", help_heading = "Refused")]
    large_pages: bool,
    /// Refused: what is stored does not outlive the process
    #[arg(short = 'e', long = "memory-file", value_name = "FILE", help_heading = "Refused")]
    memory_file: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Extended options (-o), honoured:
  maxconns_fast, no_maxconns_fast  tell one connection too many so and close it, or have it wait [maxconns_fast]
  idle_timeout=SECONDS             close connections that say nothing for so long [0: never]
  ssl_chain_cert=FILE              the server's certificate and those behind it, in PEM; read again on SIGHUP
  ssl_key=FILE                     its private key, in PEM
  ssl_ca_cert=FILE                 who signs clients' certificates, in PEM
  ssl_verify_mode=0|1|2|3          ask clients for a certificate: no, if they have one, always (2 and 3) [0]
  ssl_min_version=tlsv1.2|tlsv1.3  the oldest version of TLS [tlsv1.2]
Taken, without effect here: hashpower, hash_algorithm, tail_repair_time, lru_crawler and its kin,
  lru_maintainer and its kin, slab_reassign, slab_automove and its kin, slab_chunk_max, track_sizes, modern,
  no_modern, no_hashexpand, read_buf_mem_limit, resp_obj_mem_limit, watcher_logbuf_size,
  worker_logbuf_size, ssl_wbuf_size, ssl_session_cache, ssl_kernel_tls, inline_ascii_resp
Refused: ext_path (there is no storage but memory), ssl_ciphers, ssl_keyformat other than PEM, sock_cookie_id";

/// -1, 0 or a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Port {
    None,
    Number(u16),
}

fn parse_port(text: &str) -> Result<Port, String> {
    if text == "-1" {
        return Ok(Port::None);
    }
    text.parse().map(Port::Number).map_err(|_| "write a port from 0 to 65535, or -1 for none".to_owned())
}

fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "write a mode in octal, for example 770".to_owned())
}

fn parse_listen(text: &str) -> Result<(IpAddr, Option<u16>), String> {
    if text.starts_with("proto[") || text.starts_with("tag[") {
        return Err("all addresses speak the protocol of -B; write addresses only".to_owned());
    }
    for prefix in ["notls:", "btls:", "mtls:"] {
        if text.starts_with(prefix) {
            return Err(format!("{prefix} is not supported: TLS is for all addresses (-Z) or for none"));
        }
    }
    if let Ok(ip) = text.parse() {
        return Ok((ip, None));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok((address.ip(), Some(address.port())));
    }
    let hint = "write an address, for example 127.0.0.1, 127.0.0.1:11212, ::1 or [::1]:11212";
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().map_err(|_| hint.to_owned())?)),
        None => (text, None),
    };
    match (host, 0).to_socket_addrs() {
        Ok(mut found) => found.next().map(|address| (address.ip(), port)).ok_or_else(|| hint.to_owned()),
        Err(error) => Err(format!("{error}; {hint}")),
    }
}

/// memcached's limits: an item may have from 1 KiB to 1 GiB.
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
        _ => Err("write a size from 1k to 1024m".to_owned()),
    }
}

impl Flags {
    /// What was taken and has no effect, a sentence each.
    pub fn notes(&self) -> Vec<String> {
        let taken = [
            (self.slab_growth_factor.is_some(), "-f has no effect: items are not kept by classes of size"),
            (self.slab_min_size.is_some(), "-n has no effect: items are not kept by classes of size"),
            (self.prefix_delimiter.is_some(), "-D has no effect: nothing is counted by prefix"),
            (self.disable_cas, "-C has no effect: each item has its number"),
            (self.napi_ids.is_some(), "-N has no effect: workers find the NAPIs themselves"),
        ];
        let mut notes: Vec<String> =
            taken.iter().filter(|(given, _)| *given).map(|(_, note)| (*note).to_owned()).collect();
        notes.extend(self.extended.iter().filter_map(|option| extended::note(option)));
        notes
    }

    /// What the server is started with, or why it can't be.
    pub fn config(&self) -> Result<Config, String> {
        if self.large_pages {
            return Err("-L is refused: items lie in segments that are smaller than large pages".to_owned());
        }
        if self.memory_file.is_some() {
            return Err("-e is refused: what is stored does not outlive the process".to_owned());
        }
        let memory = self.memory << 20;
        if self.max_item > memory / 2 {
            let most = memory / 2048;
            return Err(format!("-I: an item may have at most half of the memory (-m), {most}k"));
        }
        let extended = Extended::parse(&self.extended)?;
        let mut config = Config {
            listen: self.listen.clone(),
            port: match self.port {
                Port::None => None,
                Port::Number(port) => Some(port),
            },
            udp_port: match self.udp_port {
                Port::None | Port::Number(0) => None,
                Port::Number(port) => Some(port),
            },
            unix_socket: self.unix_socket.clone(),
            unix_mode: self.unix_mode,
            backlog: self.backlog,
            memory,
            evict: !self.disable_evictions,
            connections: self.connections as usize,
            refuse_at_once: extended.maxconns_fast,
            idle_timeout: extended.idle_timeout.map(Duration::from_secs),
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
        self.authentication(&mut config)?;
        config.tls = self.tls_config(extended)?;
        // A daemon's working directory is another one.
        let tls = config
            .tls
            .iter_mut()
            .flat_map(|tls| [Some(&mut tls.certificates), Some(&mut tls.key), tls.authorities.as_mut()]);
        for path in [config.unix_socket.as_mut(), config.users.as_mut()].into_iter().chain(tls).flatten() {
            *path = std::path::absolute(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(config)
    }

    fn authentication(&self, config: &mut Config) -> Result<(), String> {
        config.sasl = self.sasl;
        match (self.sasl, &self.auth_file) {
            (true, Some(_)) => {
                return Err(
                    "-S and -Y exclude each other: one asks on the binary protocol, the other on text"
                        .to_owned(),
                );
            }
            (true, None) => {
                if config.protocol == Some(Protocol::Ascii) {
                    return Err("-S needs the binary protocol: leave -B away, or give -B binary".to_owned());
                }
                let file: Option<OsString> = std::env::var_os("MEMCACHED_SASL_PWDB");
                let file = file.ok_or("-S: name a file of user:password lines in MEMCACHED_SASL_PWDB")?;
                config.users = Some(file.into());
                config.protocol = Some(Protocol::Binary);
            }
            (false, Some(file)) => {
                if config.protocol == Some(Protocol::Binary) {
                    return Err("-Y needs the text protocol: leave -B away, or give -B ascii".to_owned());
                }
                config.users = Some(file.clone());
                config.protocol = Some(Protocol::Ascii);
            }
            (false, None) => {}
        }
        if config.asks_who() && config.udp_port.is_some() {
            return Err("-U is refused with -S or -Y: by UDP nobody can say who they are".to_owned());
        }
        Ok(())
    }

    fn tls_config(&self, extended: Extended) -> Result<Option<TlsConfig>, String> {
        if !self.tls {
            return match extended.tls_option {
                Some(option) => Err(format!("-o {option} needs -Z")),
                None => Ok(None),
            };
        }
        if self.unix_socket.is_some() {
            return Err("-Z is for TCP: leave -s away".to_owned());
        }
        if self.udp_port != Port::Number(0) && self.udp_port != Port::None {
            return Err("-Z is for TCP: UDP would go unencrypted; leave -U away".to_owned());
        }
        let certificates = extended.chain.ok_or("-Z needs -o ssl_chain_cert=FILE")?;
        let key = extended.key.unwrap_or_else(|| certificates.clone());
        if extended.verify_mode > 0 && extended.authorities.is_none() {
            return Err("-o ssl_verify_mode needs -o ssl_ca_cert=FILE".to_owned());
        }
        Ok(Some(TlsConfig {
            certificates,
            key,
            authorities: extended.authorities,
            ask_clients: extended.verify_mode > 0,
            require_clients: extended.verify_mode > 1,
            only_1_3: extended.only_1_3,
        }))
    }
}
