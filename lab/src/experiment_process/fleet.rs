//! The fleet of an experiment: stays connected to one server, and runs one load after the other on
//! command.

use std::io::{self, BufRead};

use policies::Cpus;

use super::messages::{FleetSpec, send};
use crate::Error;
use crate::fleet::{Fleet, FleetError, FleetLoad};

/// Connects, and runs loads until the lab closes this process's standard input.
pub(super) fn run(spec: &FleetSpec) -> Result<(), Error> {
    Cpus::one(spec.core).pin(None)?;
    let reason = |error: FleetError| error.to_string();
    let connected = Fleet::connect(spec.fleet.clone()).map_err(reason);
    let mut fleet = match connected.and_then(|mut fleet| {
        fleet.store_records(spec.records).map_err(reason)?;
        Ok(fleet)
    }) {
        Ok(fleet) => fleet,
        Err(reason) => return Ok(send(&Err::<(), _>(reason))?),
    };
    send(&Ok::<_, String>(()))?;
    for line in io::stdin().lock().lines() {
        let load: FleetLoad = serde_json::from_str(&line?)?;
        let measured = fleet.run(&load).map_err(reason);
        send(&measured)?;
        if measured.is_err() {
            return Ok(());
        }
    }
    fleet.close()?;
    Ok(())
}
