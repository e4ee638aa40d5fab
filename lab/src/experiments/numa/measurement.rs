//! The measurements, in interleaved rounds.

use std::fs;
use std::io;
use std::net::IpAddr;

use loadgen::interleaved_rounds::figures;
use loadgen::medians::median;
use runtime::WaitStrategy;
use serde::Serialize;

use super::super::turn_conditions::{MeasuredRounds, RoundsPlan, name_classes, time_limit};
use super::config::{NumaConfig, NumaContestant};
use super::cores::NumaCores;
use crate::Error;
use crate::experiment_process::{
    ExperimentProcess, LoadMeasurement, LoadSpec, ProcessRole, ServerMeasurement, ServerSpec,
};
use crate::polling_config::PollingConfig;
use crate::testbed::{CLIENT_INTERFACE, SERVER_ADDRESS, SERVER_INTERFACE, Testbed};

/// One server measured once.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct NumaTurn {
    /// What its first worker ran.
    pub ran: String,
    /// Why that is not the policy.
    pub steps_down: Vec<String>,
    /// The load's measurement.
    pub load: LoadMeasurement,
    /// The server's.
    pub server: ServerMeasurement,
    /// Anonymous pages that the server took from its start on, on the first and on the second node: the store's, and those of
    /// connections.
    pub pages: [u64; 2],
}

impl NumaTurn {
    /// Busy time of the server's cores, and CPU time of the threads that poll its queues on other ones, per request, µs.
    pub fn cpu_us(&self) -> f64 {
        let ServerMeasurement { core_busy, kernel_thread_elsewhere, requests, .. } = &self.server;
        (core_busy + kernel_thread_elsewhere) * 1e6 / (*requests).max(1) as f64
    }

    /// The first node's share of the pages, 0 to 1.
    pub fn on_first_node(&self) -> f64 {
        let [first, second] = self.pages;
        first as f64 / (first + second).max(1) as f64
    }
}

/// Everything that was measured.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct NumaMeasurements {
    /// The closed loop and, if it was measured, the open loop: every turn.
    pub loads: Vec<MeasuredRounds<NumaTurn>>,
    /// The rate of the open loop, requests per second. `None` if the closed loop has no round it could be a share of.
    pub rate: Option<f64>,
}

/// Measures all servers in a closed loop, and in an open one at a rate that the first one keeps up with. Calls `progress`
/// before each turn.
///
/// # Errors
/// Without the permission to create network namespaces, or if a server or its load can't be run.
pub fn measure(
    config: &NumaConfig,
    cores: &NumaCores,
    mut progress: impl FnMut(&str),
) -> Result<NumaMeasurements, Error> {
    /// Seconds in which a turn's processes start, and records are stored.
    const START: f64 = 0.4;
    let testbed = Testbed::new(cores.count() as u32)?;
    let contestants = config.contestants();
    let names: Vec<String> = contestants.iter().map(ToString::to_string).collect();
    let turn = config.warm_up + config.duration + START;
    let limit = time_limit(turn * (config.rounds * contestants.len()) as f64);
    let plan = |load| RoundsPlan { load, rounds: config.rounds, cores: cores.ends(), limit };
    let closed = plan("closed loop").measure(&names, &mut progress, |index| {
        measure_once(contestants[index], config, cores, &testbed, None)
    })?;
    let throughput = figures(&closed.finished.leading().rounds, 0, |turn| turn.load.qps);
    let rate = (!throughput.is_empty()).then(|| (median(&throughput) * config.share).max(1.0));
    let mut loads = vec![closed];
    if rate.is_some() {
        loads.push(plan("open loop").measure(&names, &mut progress, |index| {
            measure_once(contestants[index], config, cores, &testbed, rate)
        })?);
    }
    name_classes(&mut loads);
    Ok(NumaMeasurements { loads, rate })
}

/// `None` if requests failed or were not answered: the load was another one then.
fn measure_once(
    contestant: NumaContestant,
    config: &NumaConfig,
    cores: &NumaCores,
    testbed: &Testbed,
    rate: Option<f64>,
) -> Result<Option<NumaTurn>, Error> {
    let role = ProcessRole::Server(ServerSpec {
        policy: contestant.policy,
        driver: config.driver,
        interface: Some(SERVER_INTERFACE.to_owned()),
        address: IpAddr::V4(SERVER_ADDRESS),
        cores: cores.of_placement(contestant.placement).clone(),
        packing_core: cores.ends().packing,
        polling: PollingConfig::default(),
        wait: WaitStrategy::Block,
        memory: 0,
    });
    let mut server = ExperimentProcess::start(&role, Some(&testbed.server))?;
    let ready = server.server_ready()?;
    let role = ProcessRole::Load(LoadSpec {
        interface: Some(CLIENT_INTERFACE.to_owned()),
        server: ready.address,
        cores: cores.load.clone(),
        connections: config.connections,
        rate,
        warm_up: config.warm_up,
        duration: config.duration,
        records: config.records,
        load_records: true,
    });
    let before = anonymous_pages(server.id(), cores.nodes)?;
    let mut load = ExperimentProcess::start(&role, Some(&testbed.client))?;
    let (measured, counted) = load.measure(&mut server)?;
    let after = anonymous_pages(server.id(), cores.nodes)?;
    load.finish()?;
    server.finish()?;
    let complete = measured.errors + measured.unanswered + measured.misses == 0;
    Ok(complete.then(|| NumaTurn {
        ran: ready.ran,
        steps_down: ready.steps_down,
        load: measured,
        server: counted,
        pages: [0, 1].map(|node| after[node].saturating_sub(before[node])),
    }))
}

/// A process's anonymous pages on these nodes (`/proc/<pid>/numa_maps`).
fn anonymous_pages(pid: u32, nodes: [u32; 2]) -> io::Result<[u64; 2]> {
    Ok(pages_in(&fs::read_to_string(format!("/proc/{pid}/numa_maps"))?, nodes))
}

fn pages_in(maps: &str, nodes: [u32; 2]) -> [u64; 2] {
    let anonymous = maps.lines().filter(|line| line.contains(" anon="));
    let words: Vec<&str> = anonymous.flat_map(str::split_whitespace).collect();
    nodes.map(|node| {
        let name = format!("N{node}=");
        words.iter().filter_map(|word| word.strip_prefix(&name)?.parse::<u64>().ok()).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anonymous_pages_are_counted_by_node_and_files_are_not() {
        // `cat /proc/self/numa_maps` on a machine with several nodes.
        let maps = "55d0 default file=/usr/bin/cat mapped=4 N0=4 kernelpagesize_kB=4\n\
                    55e0 default heap anon=5 dirty=5 N0=2 N1=3 kernelpagesize_kB=4\n\
                    7f00 default anon=40 dirty=40 N1=30 N10=10 kernelpagesize_kB=4\n";
        assert_eq!(pages_in(maps, [0, 1]), [2, 33]);
        assert_eq!(pages_in(maps, [10, 2]), [10, 0]);
    }
}
