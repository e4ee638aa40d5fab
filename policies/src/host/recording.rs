//! Recordings: what discovery has read of an interface and its host, as a file, so that a plan can
//! be made and explained elsewhere.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::discover;
use super::facts::InterfaceFacts;
use super::interface::Interface;
use super::machine::HostFacts;
use crate::cpus::Cpus;
use crate::error::Error;

/// Tells the file from others.
const FORMAT: &str = "lull-interface-recording";
const VERSION: u32 = 1;
/// Far above what the largest device takes: some 700 bytes for each queue.
const LONGEST_FILE: u64 = 16 << 20;

/// An interface and its host at one moment. It has no addresses of the network.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    format: String,
    version: u32,
    /// Where it is from: a machine, or a driver's source.
    pub origin: String,
    pub(crate) host: HostFacts,
    interface: InterfaceFacts,
}

#[derive(Debug)]
#[non_exhaustive]
pub enum UnusableRecording {
    /// The file can't be read.
    Unreadable { path: PathBuf, source: io::Error },
    /// The content is something else, incomplete, or of another version.
    Foreign { path: PathBuf, reason: String },
}

crate::error_text!(
    UnusableRecording, source of Unreadable:
    Self::Unreadable { path, source } => "cannot read {}: {source}", path.display();
    Self::Foreign { path, reason } =>
        "{} is not a recording that this version reads: {reason}; make one with `policies record INTERFACE`",
        path.display()
);

/// The fields that every version has.
#[derive(Deserialize)]
struct Header {
    format: String,
    version: u32,
}

impl Recording {
    /// Records an interface of the calling thread's network namespace.
    pub fn of(interface: &str) -> Result<Self, Error> {
        let (host, interface) = (HostFacts::read(), discover::facts(interface)?);
        let origin = format!("policies {} on Linux {}", env!("CARGO_PKG_VERSION"), host.kernel);
        Ok(Self { format: FORMAT.to_owned(), version: VERSION, origin, host, interface })
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`UnusableRecording`].
    pub fn read(path: &Path) -> Result<Self, UnusableRecording> {
        let unreadable = |source| UnusableRecording::Unreadable { path: path.to_owned(), source };
        let foreign = |reason: String| UnusableRecording::Foreign { path: path.to_owned(), reason };
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(LONGEST_FILE + 1).read_to_string(&mut text))
            .map_err(unreadable)?;
        if text.len() as u64 > LONGEST_FILE {
            return Err(foreign(format!("it is longer than {} MiB", LONGEST_FILE >> 20)));
        }
        let header: Header = serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))?;
        if header.format != FORMAT {
            return Err(foreign(format!("its format is {:?}", header.format)));
        }
        if header.version != VERSION {
            return Err(foreign(format!("it has version {}, not {VERSION}", header.version)));
        }
        let recording: Self = serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))?;
        recording.check().map_err(foreign)?;
        Ok(recording)
    }

    /// What no host has, and what a plan or an explanation would stumble over.
    fn check(&self) -> Result<(), String> {
        let InterfaceFacts { reported_rx, rx_queues, napis, interrupts, .. } = &self.interface;
        if self.host.allowed.is_empty() {
            return Err("it has no core (host.allowed)".to_owned());
        }
        for queue in reported_rx {
            if let Some(id) = queue.napi.filter(|id| !napis.iter().any(|napi| napi.id == *id)) {
                return Err(format!("rx-{} is of NAPI {id}, which it has not", queue.index));
            }
        }
        for napi in napis {
            if let Some(irq) = napi.irq.filter(|irq| !interrupts.iter().any(|found| found.number == *irq)) {
                return Err(format!("NAPI {} has interrupt {irq}, which it has not", napi.id));
            }
        }
        let distinct = |mut numbers: Vec<u32>| {
            numbers.sort_unstable();
            numbers.windows(2).all(|pair| pair[0] != pair[1])
        };
        let all = [
            reported_rx.iter().map(|queue| queue.index).collect(),
            rx_queues.iter().map(|queue| queue.index).collect(),
            napis.iter().map(|napi| napi.id).collect(),
            interrupts.iter().map(|irq| irq.number).collect(),
        ];
        if !all.into_iter().all(distinct) {
            return Err("a queue, a NAPI or an interrupt is in it twice".to_owned());
        }
        Ok(())
    }

    pub fn interface(&self) -> Interface {
        Interface::from_facts(&self.interface)
    }

    /// As [`nearest_cores`](crate::nearest_cores), on the recorded host.
    pub fn nearest_cores(&self, count: usize) -> Vec<u32> {
        let near = self.host.topology.node_cpus(self.interface.numa_node);
        let mut cores = self.host.topology.nearest_first(&self.host.allowed, &near);
        cores.truncate(count);
        cores
    }

    /// The cores that the recording process could use.
    pub fn cores(&self) -> &Cpus {
        &self.host.allowed
    }
}
