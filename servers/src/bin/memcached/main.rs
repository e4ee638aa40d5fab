//! The `memcached` command: a memcached-compatible server on Lull's runtime.

#![deny(unsafe_code)]

mod flags;
mod guardian;
mod process;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::future::{Either, select};
use runtime::signal::SignalKind;
use servers::memcached::{Config, Credentials, Server, VERSION, logging};

use flags::{Flags, interface_of};
use process::{PidFile, RunAsUser, inherited_listeners, raise_descriptor_limit};

type Error = Box<dyn std::error::Error>;

/// Connections that have not finished their requests after this time are aborted at shutdown.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);
/// memcached's environment variable for the file that the ports are written to.
const PORT_FILE: &str = "MEMCACHED_PORT_FILENAME";

fn main() -> ExitCode {
    if guardian::is_requested() {
        return guardian::run();
    }
    process::fix_mmap_threshold();
    let flags = Flags::of_process();
    if flags.version {
        println!("memcached {VERSION}");
        return ExitCode::SUCCESS;
    }
    if flags.license {
        println!("Lull is licensed under the MIT licence or the Apache License 2.0, at your choice.");
        return ExitCode::SUCCESS;
    }
    log_to_stderr(flags.verbose.into());
    let config = match flags.config() {
        Ok(config) => config,
        Err(error) => return fail(&error),
    };
    if let Err(refusal) = RunAsUser::require(flags.user.as_deref()) {
        return fail(&refusal);
    }
    match run(&flags, config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("memcached: {error}");
    ExitCode::FAILURE
}

fn log_to_stderr(verbosity: u32) {
    use tracing_subscriber::filter::filter_fn;
    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;
    use tracing_subscriber::{Layer, fmt, registry};

    logging::set_verbosity(verbosity);
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false).without_time().with_ansi(false);
    // Evaluated for each message: clients may change the level while the server runs.
    let enabled = filter_fn(|metadata| *metadata.level() <= logging::level());
    registry().with(lines.with_filter(enabled)).init();
}

fn run(flags: &Flags, mut config: Config) -> Result<(), Error> {
    flags.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let user = flags.user.as_deref().map(RunAsUser::look_up).transpose()?;
    // By default there is at most one worker per core.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let workers = flags.threads.map_or(cores, u64::from);
    raise_descriptor_limit(config.max_connections as u64, workers, config.listen.len() as u64);
    config.interface = match &config.interface {
        Some(name) => Some(policies::host::interface_name(name)),
        None => serving_interface(&config),
    };
    let interface = config.interface.clone();
    let mut builder = flags.builder(interface.as_deref());
    // A process that gives up root can't restore the interface's settings.
    let gives_up_root = user.as_ref().is_some_and(RunAsUser::gives_up_root);
    let guardian = match gives_up_root && interface.is_some() {
        true => Some(guardian::start()?),
        false => None,
    };
    if let Some(guardian) = &guardian {
        builder = builder.queue_delegate(guardian.delegate());
    }
    let runtime = builder.build()?;
    runtime.applied().iter().for_each(|step| tracing::debug!("{step}"));
    runtime.block_on(serve(flags, config, user))?;
    drop(runtime);
    if let Some(guardian) = guardian {
        guardian.release();
    }
    Ok(())
}

async fn serve(flags: &Flags, mut config: Config, user: Option<RunAsUser>) -> Result<(), Error> {
    let terminated = runtime::signal::terminated();
    let mut hangups = runtime::signal::signal(SignalKind::hangup())?;
    // memcached's signal for a graceful stop.
    let mut graceful = runtime::signal::signal(SignalKind::user_defined1())?;
    let mut inherited = inherited_listeners()?;
    if !inherited.is_empty() {
        // systemd defines the addresses.
        config.port = None;
        config.unix_socket = None;
    }
    // A key may be root's alone. Otherwise only the policy needs root, and it is applied. Drop root
    // before anything is written or served.
    let credentials = Credentials::read(&config)?;
    user.as_ref().map_or(Ok(()), RunAsUser::switch)?;
    let mut server = Server::start_with(&config, credentials).await?;
    for listener in inherited.drain(..) {
        server.add_listener(listener)?;
    }
    if server.addresses().is_empty() && config.unix_socket.is_none() && config.udp_port.is_none() {
        return Err("nothing to listen on: give -p, -s or -U".into());
    }
    write_ports(&server)?;
    let pidfile = flags.pidfile.as_deref().map(PidFile::write).transpose()?;
    for report in runtime::reports() {
        // What limits the requested policy is logged at every level.
        match report.steps_down.is_empty() && report.notes.is_empty() {
            true => tracing::info!("{report}"),
            false => tracing::warn!("{report}"),
        }
    }
    server.addresses().iter().for_each(|address| tracing::info!("listening on {address}"));
    server.udp_addresses().for_each(|address| tracing::info!("listening on UDP {address}"));
    // Fails without consequence if systemd does not supervise the process.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let asked = select(Box::pin(graceful.recv()), Box::pin(server.shutdown_requested()));
    let mut stop = std::pin::pin!(select(terminated, asked));
    loop {
        let hangup = std::pin::pin!(hangups.recv());
        match select(&mut stop, hangup).await {
            Either::Left((Either::Left((signalled, _)), _)) => {
                signalled?;
                break;
            }
            Either::Left(_) => break,
            Either::Right(_) => match server.reload() {
                Ok(()) => tracing::info!("reloaded users and certificates"),
                Err(error) => tracing::warn!(
                    "cannot reload users and certificates, the present ones stay in use: {error}"
                ),
            },
        }
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let report = server.shutdown(SHUTDOWN_DEADLINE).await;
    drop(pidfile);
    match report.aborted {
        0 => tracing::info!("stopped; {} connections closed", report.finished),
        aborted => tracing::warn!("stopped; {} connections closed, {aborted} aborted", report.finished),
    }
    Ok(())
}

/// Writes the ports to the file that `MEMCACHED_PORT_FILENAME` names, as memcached does.
fn write_ports(server: &Server) -> Result<(), Error> {
    let Some(path) = std::env::var_os(PORT_FILE) else { return Ok(()) };
    let family = |address: &SocketAddr| if address.is_ipv4() { "INET" } else { "INET6" };
    let tcp =
        server.addresses().iter().map(|address| format!("TCP {}: {}\n", family(address), address.port()));
    let udp = server.udp_addresses().map(|address| format!("UDP {}: {}\n", family(&address), address.port()));
    let lines: String = tcp.chain(udp).collect();
    // Renamed, so that a process that waits for the file never reads a part of it.
    let path = PathBuf::from(path);
    let temporary = path.with_extension("lck");
    std::fs::write(&temporary, lines)
        .and_then(|()| std::fs::rename(&temporary, &path))
        .map_err(|error| format!("cannot write the ports to {}: {error}", path.display()).into())
}

/// The interface of the first address, except loopback, which has no queues to configure.
fn serving_interface(config: &Config) -> Option<String> {
    let (address, _) = *config.listen.first().filter(|_| config.unix_socket.is_none())?;
    interface_of(address)
}
