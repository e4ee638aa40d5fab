//! Errors of the command.

use std::io;
use std::net::IpAddr;

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Host(#[from] policies::Error),
    #[error(transparent)]
    Recording(#[from] policies::host::UnusableRecording),
    #[error("cannot write the man page: {0}")]
    Man(io::Error),
    #[error("cannot read this process's CPU affinity: {0}")]
    Affinity(io::Error),
    #[error("cannot watch for signals or processes: {0}")]
    Signals(io::Error),
    #[error("no command to run")]
    NoCommand,
    #[error("cannot run {program}: {source}")]
    Run { program: String, source: io::Error },
    #[error("cannot use the terminal: {0}")]
    Terminal(io::Error),
    #[error("cannot send ICMP echo requests to {peer}: {source}")]
    Probe { peer: IpAddr, source: io::Error },
    #[error("{0} does not answer ICMP echo requests; use a --peer that does")]
    SilentPeer(IpAddr),
    #[error("{0} received no packets; run the command under the load to tune for")]
    NoLoad(String),
    #[error("no delay keeps the p99 within {bound} µs; the lowest p99 was {lowest} µs")]
    BoundNotMet { bound: u128, lowest: String },
}
