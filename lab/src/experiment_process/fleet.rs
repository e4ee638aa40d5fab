//! The fleet of an experiment: stays connected to one server, and runs one load after the other on command.

use std::io::{self, BufRead};

use policies::Cpus;

use super::messages::{FleetMessage, FleetSpec};
use super::output::send;
use crate::Error;
use crate::fleet::{Fleet, FleetLoad};

/// Connects, and runs loads until the lab closes this process's standard input.
pub(super) fn run(spec: &FleetSpec) -> Result<(), Error> {
    Cpus::one(spec.core).pin(None)?;
    let connected = Fleet::connect(spec.fleet.clone()).and_then(|mut fleet| {
        fleet.store_records(spec.records)?;
        Ok(fleet)
    });
    let mut fleet = match connected {
        Ok(fleet) => fleet,
        Err(error) => return Ok(send(&FleetMessage::Failed { error: error.to_string() })?),
    };
    send(&FleetMessage::Ready)?;
    for line in io::stdin().lock().lines() {
        let load: FleetLoad = serde_json::from_str(&line?)?;
        match fleet.run(&load) {
            Ok(measurement) => send(&FleetMessage::Done { measurement: Box::new(measurement) })?,
            Err(error) => return Ok(send(&FleetMessage::Failed { error: error.to_string() })?),
        }
    }
    fleet.close()?;
    Ok(())
}
