//! Which core runs what.

use std::io;

use policies::Cpus;
use serde::Serialize;

use crate::Error;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CoreAssignment {
    pub server: u32,
    pub client: u32,
    pub packing: u32,
}

impl CoreAssignment {
    /// Takes the first three cores that this process may run on. With fewer cores, roles share the
    /// last one.
    pub fn choose() -> io::Result<Self> {
        let cores: Vec<u32> = Cpus::allowed()?.iter().collect();
        let first = *cores.first().ok_or(io::ErrorKind::NotFound)?;
        let client = cores.get(1).copied().unwrap_or(first);
        Ok(Self { server: first, client, packing: cores.get(2).copied().unwrap_or(client) })
    }

    pub fn with_packing_core(self, packing: u32) -> Result<Self, Error> {
        self.with_packing_core_of(packing, &Cpus::online()?)
    }

    fn with_packing_core_of(self, packing: u32, online: &Cpus) -> Result<Self, Error> {
        let reason = if packing == self.server {
            "the server's worker runs there, and packing is to move network work away from it; name another core".to_owned()
        } else if !online.contains(packing) {
            format!("it is not online; online cores: {online}")
        } else {
            return Ok(Self { packing, ..self });
        };
        Err(Error::PackingCore { core: packing, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORES: CoreAssignment = CoreAssignment { server: 0, client: 1, packing: 1 };

    #[test]
    fn packing_moves_to_a_core_that_is_online_and_not_the_servers() {
        let with = |core| {
            let online = "0-2".parse().unwrap();
            CORES.with_packing_core_of(core, &online).map_err(|error| error.to_string())
        };
        assert_eq!(with(2), Ok(CoreAssignment { packing: 2, ..CORES }));
        assert!(with(0).unwrap_err().starts_with("--packing-cores 0: the server's worker"));
        assert!(with(3).unwrap_err().contains("it is not online; online cores: 0-2"));
    }
}
