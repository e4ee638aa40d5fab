//! Lull's memcached server under vanilla, loaded by `loadgen` through the kernel's TCP. Such a client batches, which spares the
//! server interrupts: policies are compared under a fleet.

use std::net::{IpAddr, Ipv4Addr};

use policies::{Cpus, Policy};
use runtime::{DriverKind, WaitStrategy};

use crate::Error;
use crate::engine::CoreAssignment;
use crate::experiment_process::{
    ExperimentProcess, LoadMeasurement, LoadSpec, ProcessRole, ServerMeasurement, ServerSpec,
};
use crate::polling_config::PollingConfig;
use crate::testbed::{CLIENT_INTERFACE, SERVER_ADDRESS, SERVER_INTERFACE, Testbed};

/// A server and its load.
pub(super) struct KernelClientTurn<'a> {
    /// `None`: on loopback.
    pub(super) testbed: Option<&'a Testbed>,
    pub(super) cores: CoreAssignment,
    pub(super) driver: DriverKind,
    pub(super) wait: WaitStrategy,
    pub(super) connections: usize,
    /// Requests per second; `None` for a closed loop.
    pub(super) rate: Option<f64>,
    pub(super) records: u64,
    /// Seconds.
    pub(super) warm_up: f64,
    pub(super) duration: f64,
}

impl KernelClientTurn<'_> {
    /// Starts a server and its load, and measures both.
    pub(super) fn measure(&self) -> Result<(LoadMeasurement, ServerMeasurement), Error> {
        let Self { testbed, cores, driver, wait, .. } = *self;
        let on_testbed = |name: &str| testbed.map(|_| name.to_owned());
        let role = ProcessRole::Server(ServerSpec {
            policy: Policy::Vanilla,
            driver,
            interface: on_testbed(SERVER_INTERFACE),
            address: IpAddr::V4(if testbed.is_some() { SERVER_ADDRESS } else { Ipv4Addr::LOCALHOST }),
            cores: Cpus::one(cores.server),
            packing_core: cores.packing,
            polling: PollingConfig::default(),
            wait,
            memory: 0,
        });
        let mut server = ExperimentProcess::start(&role, testbed.map(|testbed| &testbed.server))?;
        let role = ProcessRole::Load(LoadSpec {
            interface: on_testbed(CLIENT_INTERFACE),
            server: server.server_ready()?.address,
            core: cores.client,
            connections: self.connections,
            rate: self.rate,
            warm_up: self.warm_up,
            duration: self.duration,
            records: self.records,
        });
        let mut load = ExperimentProcess::start(&role, testbed.map(|testbed| &testbed.client))?;
        let measured = load.measure(&mut server)?;
        load.finish()?;
        server.finish()?;
        Ok(measured)
    }
}
