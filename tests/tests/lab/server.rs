//! A memcached server on the server's side of the testbed, and fleets on the other side.

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use lab::Error;
use lab::fleet::{Fleet, FleetConfig, FleetLink, FleetRequests, store_records};
use lab::testbed::{SERVER_ADDRESS, Testbed, fleet_address};
use loadgen::Workload;
use policies::{Cpus, Policy};
use runtime::Running;
use runtime::io::{AsyncFd, Direction, SourceKind};
use servers::memcached::{Config, Server};
use tests::testbed::{enter, server_builder};

const RECORDS: u64 = 100;

/// Serves memcached on core 0 while `client` runs on the other side, on the last core. Returns what
/// `client` returned.
pub fn serve<T: Send + 'static>(
    policy: Policy,
    max_connections: usize,
    client: impl FnOnce(&Testbed, SocketAddrV4) -> T + Send + 'static,
) -> T {
    tests::descriptors(max_connections as u64 + 100).expect("descriptors for the connections");
    let testbed = Arc::new(enter(1));
    let runtime = server_builder(policy, 1).build().unwrap();
    let config = Config {
        listen: vec![(SERVER_ADDRESS.into(), None)],
        port: Some(0),
        // One more for the connection by which the fleet polls its queue.
        max_connections: max_connections + 1,
        ..Config::default()
    };
    runtime.block_on(async move {
        let server = Server::start(&config).await.unwrap();
        let report = runtime::reports().remove(0);
        let polls = report.running == Running::KernelPolling;
        assert_eq!(polls, policy == Policy::KernelPolling, "{report}");
        let SocketAddr::V4(address) = server.addresses()[0] else { panic!("an IPv4 address") };
        let (done, finished) = UnixStream::pair().unwrap();
        let thread = thread::spawn(move || {
            let result = on_client_side(&testbed, || client(&testbed, address));
            drop(done);
            result
        });
        finished.set_nonblocking(true).unwrap();
        AsyncFd::new(finished, SourceKind::Other).unwrap().ready(Direction::Read).await;
        thread.join().unwrap()
    })
}

/// Runs `client` on the client's side, on the last core.
pub fn on_client_side<T: Send>(testbed: &Testbed, client: impl FnOnce() -> T + Send) -> T {
    let run = || {
        // Not the allowed cores: a thread that a worker has started may run on the worker's core
        // alone.
        let last = Cpus::online().unwrap().iter().last().unwrap();
        Cpus::one(last).pin(None).map_err(io::Error::other)?;
        Ok(client())
    };
    testbed.client.run(run).unwrap()
}

/// A fleet that asks for records which fit a packet.
pub fn fleet_config(server: SocketAddrV4, connections: usize) -> FleetConfig {
    let workload = Workload { records: RECORDS, ..Workload::default() };
    FleetConfig {
        server,
        link: FleetLink::default(),
        address: fleet_address(0),
        connections,
        requests: FleetRequests::Memcached(Box::new(workload)),
        seed: 7,
    }
}

pub fn connect(server: SocketAddrV4, connections: usize) -> Result<Fleet, Error> {
    let config = fleet_config(server, connections);
    store_records(&config.requests, server).unwrap();
    Fleet::connect(config)
}
