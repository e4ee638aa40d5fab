//! Where servers and fleets run.

use std::io;

use policies::Cpus;

use crate::Error;
use crate::cores::CoreAssignment;
use crate::fleet::FleetLink;
use crate::processes::{ExperimentProcess, ProcessRole};
use crate::testbed::{Card, Testbed};

#[derive(Debug)]
pub struct Bed {
    /// On a testbed those of every server. On a card all that this program may use: interrupts go to
    /// any of them.
    pub cores: CoreAssignment,
    /// One server after the other has this machine's interface, and its load comes from another
    /// machine. `None`: each server has a testbed of its own.
    pub card: Option<Card>,
}

impl Bed {
    pub fn of_testbeds(cores: CoreAssignment) -> Self {
        Self { cores, card: None }
    }

    pub fn of_card(card: Card) -> io::Result<Self> {
        let servers: Vec<u32> = Cpus::allowed()?.iter().collect();
        let packing = *servers.last().ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { cores: CoreAssignment { servers, clients: Vec::new(), packing }, card: Some(card) })
    }

    pub(super) fn testbed(&self) -> io::Result<Testbed> {
        match &self.card {
            None => Testbed::for_fleets(self.cores.servers.len()),
            Some(card) => Testbed::of_card(&card.server.interface),
        }
    }

    /// The workers' cores; none where the server chooses.
    pub(super) fn worker_cores(&self) -> Vec<u32> {
        if self.card.is_none() { self.cores.servers.clone() } else { Vec::new() }
    }

    /// How many a server has: on a card one for each queue, as for a user.
    pub(super) fn server_workers(&self) -> usize {
        self.card.as_ref().map_or(self.cores.servers.len(), |card| card.server.queues.max(1))
    }

    /// How many workers of a server rates and connections are for.
    pub fn workers(&self) -> usize {
        self.worker_cores().len().max(1)
    }

    pub(super) fn fleet_cores(&self) -> &[u32] {
        self.card.as_ref().map_or(&self.cores.clients, Card::fleet_cores)
    }

    pub(super) fn link(&self) -> FleetLink {
        let Some(Card { client, server, .. }) = &self.card else { return FleetLink::default() };
        let interface = client.interface.clone();
        FleetLink { interface, mac: client.mac, server_mac: server.mac, polls: false }
    }

    pub(super) fn start_fleet(
        &self,
        role: &ProcessRole,
        testbed: &Testbed,
    ) -> Result<ExperimentProcess, Error> {
        match &self.card {
            None => ExperimentProcess::start(role, Some(&testbed.client)),
            Some(card) => ExperimentProcess::start_by(role, &card.command),
        }
    }

    /// Starts a process on the server's side.
    pub(super) fn start_server(
        &self,
        role: &ProcessRole,
        testbed: &Testbed,
    ) -> Result<ExperimentProcess, Error> {
        ExperimentProcess::start(role, self.card.is_none().then_some(&testbed.server))
    }
}
