//! Experiments: would kernel polling help this machine, and by how much?
//!
//! ```
//! use lab::cores::CoreAssignment;
//! use lab::experiment::{Bed, Contender, Experiment};
//!
//! // Which cores run the server, its load, and the network work under the packing policy.
//! let cores = CoreAssignment::choose()?;
//! let contenders: Result<Vec<Contender>, String> =
//!     ["vanilla:epoll", "vanilla:uring", "kernel-polling"].map(str::parse).into_iter().collect();
//! let experiment = Experiment::new(contenders?, true);
//! // In each figure ratios refer to the better vanilla.
//! assert_eq!(experiment.references, [0, 1]);
//! let bed = Bed::of_testbeds(cores);
//! // As root: `experiment.run(&bed, &mut |step| eprintln!("{step}"))?`
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! There is one instrument: an [`Experiment`](experiment::Experiment) of contenders under loads.
//! Each contender runs in two network namespaces joined by a veth pair, the server in one and a
//! fleet of clients in the other. They take turns in interleaved rounds, and the report has their
//! figures beside the reference's. The subcommands of the `lab` command are presets of it.
//!
//! `lab` is not for loading a server on another machine, which [`loadgen`] does, and not for
//! finding out whether an interface can poll, which `policies explain` says. A veth pair is not a
//! network card: what stands in for its interrupt costs more than one.
//!
//! From the bottom up: [`testbed`], [`fleet`], [`network`], [`peers`], [`cores`], [`rounds`],
//! [`preflight`], [`processes`], [`experiment`], [`instructions`], [`report`], [`commands`].

#![deny(unsafe_code)]
// Not published: the command and the tests use it. A name that says enough needs no second one.
#![allow(missing_docs, clippy::missing_errors_doc)]

#[cfg(not(target_os = "linux"))]
compile_error!(
    "Lull drives the Linux kernel's NAPI polling: it builds for Linux only (6.13 or later for interrupt suspension)"
);

pub mod commands;
pub mod cores;
pub mod experiment;
pub mod fleet;
pub mod instructions;
pub mod network;
pub mod peers;
pub mod preflight;
pub mod processes;
pub mod report;
pub mod rounds;
pub mod testbed;

/// What went wrong, in words: nobody handles these errors but who reads them.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
