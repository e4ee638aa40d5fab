//! Which core runs what.

use std::io;

use policies::Cpus;
use serde::Serialize;

use crate::Error;

/// Which core runs the server, the load, and the network work of packing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CoreAssignment {
    /// The server's worker.
    pub server: u32,
    pub client: u32,
    /// The network work under the packing policy.
    pub packing: u32,
}

impl CoreAssignment {
    /// Takes the first three cores that this process may run on. With fewer cores, roles share the last one.
    pub fn choose() -> io::Result<Self> {
        let cores: Vec<u32> = Cpus::allowed()?.iter().collect();
        let first = *cores.first().ok_or(io::ErrorKind::NotFound)?;
        let client = cores.get(1).copied().unwrap_or(first);
        Ok(Self { server: first, client, packing: cores.get(2).copied().unwrap_or(client) })
    }

    /// Moves the network work of packing to another core.
    pub fn with_packing_cores(self, cores: &Cpus) -> Result<Self, Error> {
        self.with_packing_cores_of(cores, &Cpus::online()?)
    }

    fn with_packing_cores_of(self, cores: &Cpus, online: &Cpus) -> Result<Self, Error> {
        let refuse = |reason: String| Err(Error::PackingCores { cores: cores.clone(), reason });
        let mut all = cores.iter();
        let (Some(packing), None) = (all.next(), all.next()) else {
            return refuse(
                "the testbed's server has one queue, which one core polls; name one core".to_owned(),
            );
        };
        if packing == self.server {
            return refuse(format!(
                "the server's worker runs on core {packing}, and packing is to move network work away from it; name \
                 another core"
            ));
        }
        if !online.contains(packing) {
            return refuse(format!("core {packing} is not online; online cores: {online}"));
        }
        Ok(Self { packing, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORES: CoreAssignment = CoreAssignment { server: 0, client: 1, packing: 1 };

    fn with(packing: &str) -> Result<CoreAssignment, String> {
        CORES
            .with_packing_cores_of(&packing.parse().unwrap(), &"0-2".parse().unwrap())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn packing_moves_to_a_core_that_is_online() {
        assert_eq!(with("2"), Ok(CoreAssignment { packing: 2, ..CORES }));
    }

    #[test]
    fn the_servers_core_offline_cores_and_several_cores_are_errors_that_name_them() {
        assert!(with("0").unwrap_err().contains("--packing-cores 0: the server's worker runs on core 0"));
        assert!(with("3").unwrap_err().contains("core 3 is not online; online cores: 0-2"));
        assert!(with("1-2").unwrap_err().contains("--packing-cores 1-2: "));
        assert!(with("").unwrap_err().contains("name one core"));
    }
}
