//! The command line: the server's settings (`Config`), memcached's flags of the process, and Lull's
//! own of the runtime.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser};
use policies::controller::PollInterval;
use policies::{Change, Cpus, GraceTime, Policy};
use runtime::{Builder, DriverKind, WaitStrategy};
use servers::memcached::{ClientCertificates, Config, Protocol, TlsConfig};

/// A memcached-compatible server that reduces the network card's interrupts under load
#[derive(Debug, Parser)]
// As in memcached, the last of several equal flags counts: start scripts add theirs after those of
// a configuration.
#[command(name = "memcached", disable_version_flag = true, args_override_self = true, after_help = extended_help())]
pub struct Flags {
    #[command(flatten)]
    config: Config,
    /// Enable TLS on TCP; needs -o ssl_chain_cert=FILE,ssl_key=FILE
    #[arg(short = 'Z', long = "enable-ssl")]
    tls: bool,
    /// Extended options, separated by commas; see below
    #[arg(short = 'o', long = "extended", value_name = "LIST", value_delimiter = ',')]
    extended_options: Vec<String>,
    /// User to switch to after start; required if started as root (-u root stays root), else
    /// ignored
    #[arg(short = 'u', long = "user", value_name = "USER")]
    pub user: Option<String>,
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
    /// Number of workers; by default one per core, under a policy that polls at most one per receive
    /// queue of the interface
    #[arg(short = 't', long = "threads", value_name = "NUM", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub threads: Option<u16>,

    #[command(flatten, next_help_heading = "Network policy")]
    network: NetworkFlags,

    #[command(flatten, next_help_heading = "Accepted for compatibility")]
    ignored: IgnoredFlags,

    #[command(flatten, next_help_heading = "Refused")]
    refused: RefusedFlags,

    /// What is said about each flag that is accepted without effect, except -W.
    #[arg(skip)]
    pub warnings: Vec<String>,
    #[arg(skip)]
    refusal: Option<String>,
}

// The help of these two, without its first words, is the reason that is given.

#[derive(Debug, clap::Args)]
struct RefusedFlags {
    /// Refused: let a service manager run the server, as contrib/memcached.service does
    #[arg(short = 'd', long = "daemon")]
    daemon: bool,
    /// Refused: let systemd keep its memory from being swapped out, by MemorySwapMax=0
    #[arg(short = 'k', long = "lock-memory")]
    lock_memory: bool,
    /// Refused: segments are smaller than large pages
    #[arg(short = 'L', long = "enable-largepages")]
    large_pages: bool,
    /// Refused: items do not outlive the process
    #[arg(short = 'e', long = "memory-file", value_name = "FILE")]
    memory_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct IgnoredFlags {
    /// No effect: there are no slab classes
    #[arg(short = 'f', long = "slab-growth-factor", value_name = "NUM")]
    slab_growth_factor: Option<f64>,
    /// No effect: there are no slab classes
    #[arg(short = 'n', long = "slab-min-size", value_name = "BYTES")]
    slab_min_size: Option<u32>,
    /// No effect: there is no stats detail
    #[arg(short = 'D', value_name = "CHAR")]
    prefix_delimiter: Option<String>,
    /// No effect: let systemd raise the limit of core files, by LimitCORE=infinity
    #[arg(short = 'r', long = "enable-coredumps")]
    coredumps: bool,
    /// There is no log to watch
    #[arg(short = 'W', long = "disable-watch")]
    disable_watch: bool,
    /// No effect: workers find their NAPI instances themselves
    #[arg(short = 'N', long = "napi_ids", value_name = "NUM")]
    napi_ids: Option<u32>,
}

/// Extended options that are accepted without effect, also with the prefix `no_`.
const IGNORED: &str = "
  hashpower hash_algorithm hashexpand tail_repair_time lru_crawler lru_crawler_sleep lru_crawler_tocrawl
  lru_maintainer lru_segmented hot_lru_pct warm_lru_pct hot_max_factor warm_max_factor temporary_ttl
  slab_reassign slab_automove slab_automove_ratio slab_automove_window slab_automove_freeratio
  slab_chunk_max track_sizes modern read_buf_mem_limit resp_obj_mem_limit watcher_logbuf_size
  worker_logbuf_size ssl_wbuf_size ssl_session_cache ssl_kernel_tls inline_ascii_resp";

fn extended_help() -> String {
    format!(
        "\
Extended options (-o):
  idle_timeout=SECONDS             close connections that are idle for this long [0: never]
  ssl_chain_cert=FILE              certificate chain of the server, in PEM; reloaded on SIGHUP
  ssl_key=FILE                     private key of the server, in PEM
  ssl_ca_cert=FILE                 authorities that sign clients' certificates, in PEM
  ssl_verify_mode=0|1|2|3          clients' certificates: not requested (0), optional (1), required (2, 3) [0]
  ssl_min_version=tlsv1.2|tlsv1.3  oldest version of TLS [tlsv1.2]
Accepted without effect, also with the prefix no_:{IGNORED}
Refused: ext_... (there is no storage but memory), ssl_ciphers, ssl_keyformat other than PEM, sock_cookie_id,
  drop_privileges (there is no seccomp filter), no_maxconns_fast"
    )
}

fn is_ignored(name: &str) -> bool {
    let name = name.strip_prefix("no_").unwrap_or(name);
    IGNORED.split_whitespace().any(|ignored| ignored == name)
}

/// Applies one of the values of `-o`.
fn set_extended(option: &str, config: &mut Config) -> Result<(), String> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    let required = || match value {
        "" => Err(format!("-o {option}: expected {name}=VALUE")),
        value => Ok(value),
    };
    let refused = |reason: &str| Err(format!("-o {option} is refused: {reason}"));
    let is_tls = name.starts_with("ssl_") && !is_ignored(name);
    let mut unused = TlsConfig::default();
    let tls = if is_tls { config.tls.get_or_insert_default() } else { &mut unused };
    match name {
        "no_maxconns_fast" => return refused("a connection above the limit (-c) gets an error"),
        "idle_timeout" => {
            let seconds = required()?.parse().ok();
            let seconds = seconds.ok_or_else(|| format!("-o {option}: expected a number of seconds"))?;
            config.idle_timeout = (seconds > 0).then(|| Duration::from_secs(seconds));
        }
        "ssl_chain_cert" => tls.certificates = required()?.into(),
        "ssl_key" => tls.key = required()?.into(),
        "ssl_ca_cert" => tls.authorities = Some(required()?.into()),
        "ssl_verify_mode" => {
            tls.client_certificates = match required()?.parse::<u8>() {
                Ok(0) => None,
                Ok(1) => Some(ClientCertificates::Optional),
                Ok(2 | 3) => Some(ClientCertificates::Required),
                _ => return Err(format!("-o {option}: expected 0, 1, 2 or 3")),
            };
        }
        "ssl_min_version" => match required()? {
            "tlsv1.2" => tls.require_tls13 = false,
            "tlsv1.3" => tls.require_tls13 = true,
            "tlsv1.0" | "tlsv1.1" => return refused("versions before TLS 1.2 are not secure"),
            _ => return Err(format!("-o {option}: expected tlsv1.2 or tlsv1.3")),
        },
        "ssl_keyformat" if required()?.eq_ignore_ascii_case("PEM") => {}
        "ssl_keyformat" => return refused("only PEM keys are supported"),
        "ssl_ciphers" => return refused("the cipher suites are fixed, and all of them are secure"),
        "drop_privileges" => return refused("there is no seccomp filter; -u USER gives up root"),
        "maxconns_fast" | "no_drop_privileges" => {}
        "sock_cookie_id" => return refused("sockets are not marked, so a packet filter would not match"),
        _ if name.starts_with("ext_") => return refused("there is no storage but memory"),
        _ if is_ignored(name) => {}
        _ => return Err(format!("-o {option}: no such option; see --help")),
    }
    Ok(())
}

impl Flags {
    /// Parses the command's arguments. Ends the process if they are not valid.
    pub fn of_process() -> Self {
        let command = Self::command();
        let matches = command.clone().get_matches();
        let mut flags = Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
        let is_given = |argument: &&clap::Arg| {
            matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        for argument in command.get_arguments().filter(is_given) {
            let (Some(flag), Some(help)) = (argument.get_short(), argument.get_help()) else { continue };
            let help = help.to_string();
            if let Some(reason) = help.strip_prefix("Refused: ") {
                flags.refusal = Some(format!("-{flag} is refused: {reason}"));
            } else if let Some(reason) = help.strip_prefix("No effect: ") {
                flags.warnings.push(format!("-{flag} has no effect: {reason}"));
            }
        }
        let names = flags.extended_options.iter().map(|option| option.split('=').next().unwrap_or(option));
        let ignored = names.filter(|name| is_ignored(name));
        flags.warnings.extend(ignored.map(|name| format!("-o {name} has no effect in this server")));
        // As in memcached, -U alone names both ports.
        if matches.value_source("port") == Some(ValueSource::DefaultValue) && flags.config.udp_port.is_some()
        {
            flags.config.port = flags.config.udp_port;
        }
        flags
    }

    /// The server's configuration, or what is wrong with the flags.
    pub fn config(&self) -> Result<Config, String> {
        let mut config = self.config.clone();
        if let Some(refusal) = &self.refusal {
            return Err(refusal.clone());
        }
        if config.max_item as u64 > config.memory / 2 {
            let most = config.memory / 2048;
            return Err(format!("-I: an item may take at most half of the memory limit (-m), {most}k"));
        }
        for option in self.extended_options.iter().filter(|option| !option.is_empty()) {
            set_extended(option, &mut config)?;
        }
        configure_authentication(&mut config)?;
        self.configure_tls(&mut config)?;
        Ok(config)
    }

    fn configure_tls(&self, config: &mut Config) -> Result<(), String> {
        if !self.tls {
            return match &config.tls {
                Some(_) => Err("-o ssl_... needs -Z".to_owned()),
                None => Ok(()),
            };
        }
        if config.unix_socket.is_some() {
            return Err("-Z is for TCP: omit -s".to_owned());
        }
        if config.udp_port.is_some() {
            return Err("-Z is for TCP: UDP would not be encrypted; omit -U".to_owned());
        }
        let tls = config.tls.get_or_insert_default();
        if tls.certificates.as_os_str().is_empty() {
            return Err("-Z needs -o ssl_chain_cert=FILE".to_owned());
        }
        if tls.key.as_os_str().is_empty() {
            tls.key.clone_from(&tls.certificates);
        }
        if tls.client_certificates.is_some() && tls.authorities.is_none() {
            return Err("-o ssl_verify_mode needs -o ssl_ca_cert=FILE".to_owned());
        }
        Ok(())
    }

    /// A builder of the runtime, for the interface that was found if none was named. Changes of the
    /// host's settings are logged.
    pub fn builder(&self, interface: Option<&str>) -> Builder {
        let network = &self.network;
        let mut builder = Builder::new().on_host_change(|change| match change {
            Change::QueueSettings { .. } => tracing::info!("{change}"),
            _ => tracing::warn!("{change}"),
        });
        macro_rules! set {
            ($($method:ident: $value:expr),* $(,)?) => {
                $(if let Some(value) = $value { builder = builder.$method(value); })*
            };
        }
        set! {
            workers: self.threads.map(usize::from),
            interface: interface,
            policy: network.policy,
            wait: network.wait,
            driver: network.driver,
            cores: network.cores.clone(),
            affinity: network.affinity,
            packing_cores: network.packing_cores.clone(),
            grace_time: network.gro_flush_timeout,
            poll_interval: network.poll_interval,
        }
        builder
    }
}

fn configure_authentication(config: &mut Config) -> Result<(), String> {
    match (config.sasl, &config.users_file) {
        (true, Some(_)) => {
            return Err(
                "-S and -Y exclude each other: -S is for the binary protocol, -Y for the text protocol"
                    .to_owned(),
            );
        }
        (true, None) => {
            if config.protocol == Protocol::Ascii {
                return Err("-S needs the binary protocol: omit -B, or give -B binary".to_owned());
            }
            let file = std::env::var_os("MEMCACHED_SASL_PWDB");
            let file = file.ok_or("-S: set MEMCACHED_SASL_PWDB to a file of user:password lines")?;
            config.users_file = Some(file.into());
            config.protocol = Protocol::Binary;
        }
        (false, Some(_)) => {
            if config.protocol == Protocol::Binary {
                return Err("-Y needs the text protocol: omit -B, or give -B ascii".to_owned());
            }
            config.protocol = Protocol::Ascii;
        }
        (false, None) => {}
    }
    if config.requires_authentication() && config.udp_port.is_some() {
        return Err("-U is refused with -S or -Y: clients cannot authenticate over UDP".to_owned());
    }
    Ok(())
}

/// How packets reach the workers.
#[derive(Debug, clap::Args)]
struct NetworkFlags {
    #[arg(long, help = format!("Policy: {} [env: RUNTIME_POLICY]", Policy::names()))]
    policy: Option<Policy>,
    /// How idle workers wait: block, spin or adaptive [env: RUNTIME_WAIT]
    #[arg(long)]
    wait: Option<WaitStrategy>,
    /// Driver: auto, epoll or uring [env: RUNTIME_DRIVER]
    #[arg(long)]
    driver: Option<DriverKind>,
    /// Affinity of interrupts and workers: pin (move interrupts to their workers' cores and keep
    /// them there), follow (move workers to their interrupts' cores) or none [env:
    /// RUNTIME_AFFINITY]
    #[arg(long, value_name = "HOW")]
    affinity: Option<policies::Affinity>,
    /// Cores to pin workers to, for example 0-3
    #[arg(long)]
    cores: Option<Cpus>,
    /// Cores that packing concentrates network processing on, and on which the threads of
    /// kernel-thread poll
    #[arg(long, value_name = "CORES")]
    packing_cores: Option<Cpus>,
    /// The longest time for which a packet waits until a sleeping worker looks, while kernel-polling
    /// polls its queue, in microseconds from 10 to 1000; 0 never sleeps [env: RUNTIME_POLL_INTERVAL]
    /// [default: 30]
    #[arg(long, value_name = "US")]
    poll_interval: Option<PollInterval>,
    /// Time from an empty busy poll to the timer's poll, in microseconds, or auto: under
    /// kernel-polling the controller chooses it, with the queue's mode [env: RUNTIME_GRACE_TIME]
    /// [default: auto]
    #[arg(long, value_name = "US")]
    gro_flush_timeout: Option<GraceTime>,
}

/// The interface that has an address, except loopback, which has no queues to configure.
pub fn interface_of(address: IpAddr) -> Option<String> {
    let interface = policies::host::interface_of_address(address).ok().flatten()?;
    (interface.name != "lo").then_some(interface.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(option: &str) -> Result<Config, String> {
        let mut config = Config::default();
        set_extended(option, &mut config).map(|()| config)
    }

    #[test]
    fn options_are_applied_ignored_or_refused() {
        assert_eq!(set("idle_timeout=30").unwrap().idle_timeout, Some(Duration::from_secs(30)));
        assert_eq!(set("idle_timeout=0").unwrap().idle_timeout, None);
        for accepted in ["hashpower=20", "no_lru_crawler", "no_drop_privileges", "maxconns_fast"] {
            set(accepted).unwrap();
        }
        assert!(is_ignored("no_lru_crawler") && !is_ignored("idle_timeout"));
        for wrong in [
            "idle_timeout",
            "idle_timeout=x",
            "ext_path=/tmp/x:1G",
            "bogus",
            "ssl_min_version=tlsv1.0",
            "ssl_ciphers=x",
            "drop_privileges",
            "no_maxconns_fast",
        ] {
            let error = set(wrong).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn a_server_has_the_defaults_of_the_flags() {
        Flags::command().debug_assert();
        let flags = Flags::parse_from(["memcached"]).config().unwrap();
        assert_eq!(format!("{flags:?}"), format!("{:?}", Config::default()));
    }
}
