//! A server that runs, and the fleet that stays connected to it.

use std::net::SocketAddr;

use loadgen::Workload;

use super::contender::Contender;
use super::measurement::fleet_turn;
use super::plan::Experiment;
use super::running_server::{RunningPolicy, RunningServer};
use super::server_command::with_reply_length;
use crate::Error;
use crate::engine::{CoreAssignment, Turn};
use crate::experiment_process::{ExperimentProcess, FleetSpec, ProcessRole};
use crate::fleet::{FleetConfig, FleetLoad, FleetPacing, FleetRequests};
use crate::testbed::{CLIENT_INTERFACE, FLEET_ADDRESS, FLEET_MAC, SERVER_MAC};

/// A contender that runs. Dropping it ends its processes and removes its testbed.
#[derive(Debug)]
pub(super) struct RunningContender {
    // The fleet ends before the server and its testbed.
    fleet: ExperimentProcess,
    server: RunningServer,
    /// How many programs on the fleet's core attach to servers of other contenders.
    attachers: usize,
    pub(super) policy: Option<RunningPolicy>,
}

impl RunningContender {
    pub(super) fn start(
        contender: &Contender,
        cores: CoreAssignment,
        experiment: &Experiment,
        seed: u64,
    ) -> Result<Self, Error> {
        let Experiment { connections, receiver, ref requests, .. } = *experiment;
        let (records, memory) = match requests {
            FleetRequests::Memcached(workload) => (workload.records, workload_memory(workload)),
            FleetRequests::Text { .. } => (0, 0),
        };
        let mut server = RunningServer::start(contender, cores, receiver, memory)?;
        let SocketAddr::V4(address) = server.address else {
            let address = server.address;
            return Err(Error::LoadProcess(format!(
                "a fleet speaks IPv4, and the server listens on {address}"
            )));
        };
        let requests = with_reply_length(requests, &server.testbed, address)?;
        let fleet = FleetConfig {
            interface: CLIENT_INTERFACE.to_owned(),
            mac: FLEET_MAC,
            address: FLEET_ADDRESS,
            server_mac: SERVER_MAC,
            server: address,
            connections,
            requests,
            seed,
        };
        let role = ProcessRole::Fleet(FleetSpec { fleet, core: cores.client, records });
        let mut fleet = ExperimentProcess::start(&role, Some(&server.testbed.client))?;
        fleet.fleet_ready()?;
        // A server without connections has no queue that could be attached to.
        server.attach(contender)?;
        let policy = server.policy.take();
        let others = experiment.contenders.iter().filter(|other| other.is_attached()).count();
        let attachers =
            if cores.packing == cores.client { others - usize::from(contender.is_attached()) } else { 0 };
        Ok(Self { fleet, server, attachers, policy })
    }

    /// Runs a load for some seconds, of which nothing is counted.
    pub(super) fn settle(&mut self, pacing: FleetPacing, seconds: f64) -> Result<(), Error> {
        if seconds > 0.0 {
            self.fleet.run_fleet(&FleetLoad { pacing, warm_up: 0.0, duration: seconds })?;
        }
        Ok(())
    }

    pub(super) fn measure(&mut self, load: &FleetLoad) -> Result<Turn, Error> {
        self.server.keep_receiver()?;
        // Before and after the whole run the server is idle, so that no CPU time is attributed to
        // the wrong side.
        let before = self.server.read()?;
        let measurement = self.fleet.run_fleet(load)?;
        let after = self.server.read()?;
        // The fleet's own packets count on its core, too.
        let server = self.server.cores;
        let counts_received = server.receiver != server.cores.client;
        let mut turn = fleet_turn(measurement, &before, &after, server, counts_received, self.attachers);
        if !self.server.keep_receiver()? {
            turn.invalid = Some("the server's supervisor has changed what receives".to_owned());
        }
        Ok(turn)
    }
}

/// The memory that a server needs to keep all records of a workload, in bytes. 0 for what it has
/// anyway.
fn workload_memory(workload: &Workload) -> u64 {
    /// The item's header, its place in the hash table, and the rounding of sizes up to those of
    /// slabs.
    const OVERHEAD: f64 = 150.0;
    /// Records up to which a server's default is enough.
    const FEW: u64 = 50_000;
    if workload.records <= FEW {
        return 0;
    }
    // Twice the mean, because a slab class holds what it once got.
    let record = workload.key.mean() + workload.value.mean() + OVERHEAD;
    (workload.records as f64 * record * 2.0) as u64
}
