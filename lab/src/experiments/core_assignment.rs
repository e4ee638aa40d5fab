//! Which core runs what.

use std::io;

use policies::Cpus;
use serde::Serialize;

/// Which core runs the server, the load, and the network work of packing.
#[derive(Debug, Clone, Copy, Serialize)]
#[non_exhaustive]
pub struct CoreAssignment {
    /// The server's worker.
    pub server: u32,
    /// The load.
    pub client: u32,
    /// The network work under the packing policy.
    pub packing: u32,
}

impl CoreAssignment {
    /// Takes the first three cores that this process may run on. With fewer cores, roles share the last one.
    ///
    /// # Errors
    /// If the process's affinity can't be read.
    pub fn choose() -> io::Result<Self> {
        let cores: Vec<u32> = Cpus::allowed()?.iter().collect();
        let first = *cores.first().ok_or(io::ErrorKind::NotFound)?;
        let client = cores.get(1).copied().unwrap_or(first);
        Ok(Self { server: first, client, packing: cores.get(2).copied().unwrap_or(client) })
    }
}
