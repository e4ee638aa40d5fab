//! The `web` command: a web server and reverse proxy on Lull's runtime.

#![deny(unsafe_code)]

mod flags;
#[path = "../shared/mod.rs"]
mod shared;

use std::process::ExitCode;

use clap::Parser;
use futures_util::future::{Either, select};
use runtime::signal::{SignalKind, hangups, signal, terminated};
use servers::web::{Config, Server};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use flags::Flags;
use shared::network_flags::interface_of;
use shared::process::{PidFile, RunAsUser, inherited_listeners, raise_descriptor_limit};
use shared::{guardian, serving};

type Error = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    if guardian::is_requested() {
        return guardian::run();
    }
    let flags = Flags::parse();
    log_to_stderr(flags.verbose);
    match flags.config().map_err(Error::from).and_then(|config| run(&flags, config)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("web: {error}");
            ExitCode::FAILURE
        }
    }
}

fn log_to_stderr(verbosity: u8) {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    // h2 warns of what clients do, as often as they do it.
    let h2 = if verbosity == 0 { LevelFilter::ERROR } else { level };
    let enabled = Targets::new().with_default(level).with_target("h2", h2);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let lines = lines.without_time().with_ansi(false);
    tracing_subscriber::registry().with(lines.with_filter(enabled)).init();
}

fn run(flags: &Flags, config: Config) -> Result<(), Error> {
    if !flags.check {
        RunAsUser::require(flags.user.as_deref())?;
    }
    let user = flags.user.as_deref().map(RunAsUser::look_up).transpose()?;
    let first = config.listen.iter().chain(config.tls.iter().flat_map(|tls| &tls.listen)).next();
    let interface =
        flags.network.interface.clone().or_else(|| first.and_then(|address| interface_of(address.ip())));
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let workers = flags.workers.map_or(cores, u64::from);
    // A connection may have one to an upstream.
    let connections = (config.limits.connections as u64).saturating_mul(2);
    // A file, and three that were compressed of it.
    let files = config.files.as_ref().map_or(0, |files| files.cache_entries as u64).saturating_mul(4);
    let descriptors = connections.saturating_add(files.saturating_mul(workers));
    let addresses = config.listen.len() + config.tls.as_ref().map_or(0, |tls| tls.listen.len());
    raise_descriptor_limit(descriptors, workers, addresses as u64);
    let interface = interface.as_deref();
    let builder = flags.network.builder(flags.workers, interface);
    if flags.check {
        // A check changes nothing.
        return serving::run(builder.policy(policies::Policy::Vanilla), None, check(&config, user));
    }
    let guardian = serving::guard(interface, user.as_ref(), false)?;
    serving::run(builder, guardian, serve(flags, &config, user))
}

async fn check(config: &Config, user: Option<RunAsUser>) -> Result<(), Error> {
    Server::check(config)?;
    // As at a start: keys are read before the switch, files after it, and a reload reads everything
    // again.
    if let Some(user) = user.filter(|_| rustix::process::geteuid().is_root()) {
        user.switch()?;
        if let Err(error) = Server::check(config) {
            tracing::warn!("a reload (SIGHUP) will fail as {}: {error}", user.describe());
        }
    }
    Server::check_access(config)?;
    println!("the configuration can be used");
    Ok(())
}

async fn serve(flags: &Flags, config: &Config, user: Option<RunAsUser>) -> Result<(), Error> {
    let terminated = terminated()?;
    let interrupted = runtime::signal::ctrl_c();
    let mut hangups = hangups()?;
    let mut log_moved = signal(SignalKind::user_defined1())?;
    let mut server = Server::start_paused(config, inherited_listeners()?)?;
    // Ports below 1024 need root, and so do the certificates' keys, mostly. Files are served
    // without.
    serving::give_up_root(user)?;
    server.resume().await?;
    let pidfile = flags.pidfile.as_deref().map(PidFile::write).transpose()?;
    serving::log_workers();
    server.addresses().iter().for_each(|address| println!("http://{address}"));
    server.tls_addresses().iter().for_each(|address| println!("https://{address}"));
    println!("ready");
    // Fails without consequence if systemd does not supervise the process.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    let mut stop = std::pin::pin!(select(Box::pin(terminated), Box::pin(interrupted)));
    loop {
        let event = select(Box::pin(hangups.next()), Box::pin(log_moved.recv()));
        match select(&mut stop, event).await {
            Either::Left(_) => break,
            Either::Right((Either::Left(_), _)) => reload(flags, &mut server).await,
            Either::Right((Either::Right(_), _)) => match server.reopen_log().await {
                Ok(()) => tracing::info!("opened the access log again"),
                Err(error) => tracing::warn!("cannot open the access log again: {error}"),
            },
        }
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let report = server.shutdown().await;
    drop(pidfile);
    serving::log_stop(report);
    Ok(())
}

async fn reload(flags: &Flags, server: &mut Server) {
    let reloaded = match flags.config() {
        Ok(config) => server.reload(&config).await.map_err(|error| error.to_string()),
        Err(error) => Err(error),
    };
    match reloaded {
        Ok(()) => tracing::info!("reloaded the configuration and the certificates"),
        Err(error) => tracing::warn!("cannot reload, the present configuration stays in use: {error}"),
    }
}
