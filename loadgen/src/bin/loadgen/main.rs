//! The `loadgen` command.

#![forbid(unsafe_code)]

mod flags;
mod measure;
mod progress_bar;

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;

use crate::flags::Flags;
use crate::measure::USAGE;

fn main() -> ExitCode {
    let flags = Flags::parse();
    // The libraries report by `tracing` what they can't return, for example settings that could not
    // be put back.
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_writer(std::io::stderr)
        .without_time()
        .with_target(false)
        .init();
    match run(&flags) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("loadgen: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of the output has closed it, as `head` does. That is not an error.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn run(flags: &Flags) -> Result<ExitCode, Box<dyn Error>> {
    if let Some(conflict) = flags.conflict() {
        eprintln!("loadgen: {conflict}");
        return Ok(ExitCode::from(USAGE));
    }
    if flags.blocking {
        eprintln!("loadgen: -B has no effect: threads block unless --wait says otherwise");
    }
    if let Some(path) = &flags.new_identity {
        return make_identity(path).map(|()| ExitCode::SUCCESS);
    }
    if flags.agent_mode {
        return serve_coordinators(flags).map(|()| ExitCode::SUCCESS);
    }
    let config = flags.config()?;
    if let Err(error) = config.validate() {
        eprintln!("loadgen: {error}");
        return Ok(ExitCode::from(USAGE));
    }
    flags.builder()?.build()?.block_on(measure::run(flags, &config))
}

/// Writes a new certificate and its key to a file that only its owner can read.
fn make_identity(path: &Path) -> Result<(), Box<dyn Error>> {
    let identity = rcgen::generate_simple_self_signed([loadgen::IDENTITY_NAME.to_owned()])?;
    let text = identity.cert.pem() + &identity.signing_key.serialize_pem();
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| format!("{}: {error}", path.display()).into())
}

/// The agent mode: serves coordinators until it is interrupted.
fn serve_coordinators(flags: &Flags) -> Result<(), Box<dyn Error>> {
    let options = loadgen::AgentOptions {
        listen: (flags.listen, flags.agent_port).into(),
        identity: flags.identity.clone(),
        weight: flags.lambda_mul,
    };
    flags.builder()?.build()?.block_on(async {
        let stop = measure::watch_interrupt()?;
        let agent = loadgen::Agent::bind(options)?;
        eprintln!("loadgen: agent listens on {}", agent.local_addr()?);
        // Unlike `eprintln!`, this doesn't panic if nobody reads stderr any more.
        agent.serve(&stop, |line| drop(writeln!(std::io::stderr(), "loadgen: {line}"))).await;
        Ok(())
    })
}
