//! What to know before relying on a comparison of NUMA nodes.

use std::fs;

use crate::experiments::numa::{NumaCores, NumaMeasurements, NumaTurn};

/// The workers of the paper's servers.
const PAPERS_WORKERS: usize = 8;

/// A sentence each. `cores_awake`: idle cores were kept awake.
pub(super) fn notes(cores: &NumaCores, cores_awake: bool, measured: &NumaMeasurements) -> Vec<String> {
    let mut notes = vec![
        "the testbed's veth pair is of no node: workers, the threads that poll their queues, and memory are placed, but no \
         device; so `first node` and `second node` differ by chance only, unless the machine's nodes differ"
            .to_owned(),
        "the paper (Table 4, vanilla): 4 + 4 cores had 0.83 of the throughput of 8 cores of one node; (Figure 7) kernel \
         polling had 1.30 to 1.31 of vanilla's on one node, and 1.43 to 1.46 on two"
            .to_owned(),
    ];
    let workers = cores.count();
    if workers < PAPERS_WORKERS {
        notes.push(format!(
            "{workers} workers each ({} + {} on both nodes), where the paper had {PAPERS_WORKERS}: the load has as many \
             cores, so that takes 12 cores a node",
            workers / 2,
            workers / 2
        ));
    }
    notes.extend(
        measured.loads.iter().map(|load| format!("{}; distance is that of the nodes", load.summary())),
    );
    if measured.rate.is_none() {
        notes.push("the open loop was not measured: no round of the closed loop tells its rate".to_owned());
    }
    let balancing = fs::read_to_string("/proc/sys/kernel/numa_balancing").unwrap_or_default();
    if !["", "0"].contains(&balancing.trim()) {
        notes.push(
            "automatic NUMA balancing is on, which samples and moves pages; the paper turned it off: sysctl \
             kernel.numa_balancing=0"
                .to_owned(),
        );
    }
    if !cores_awake {
        notes.push("idle cores may sleep deeply: /dev/cpu_dma_latency can't be written".to_owned());
    }
    let turns = || {
        let classes = measured.loads.iter().flat_map(|load| &load.finished.classes);
        let turns = classes.flat_map(|class| &class.rounds).flat_map(|round| &round.turns);
        turns.filter_map(|turn| turn.value.as_ref())
    };
    let steps_down = |turn: &NumaTurn| format!("{} ran: {}", turn.ran, turn.steps_down.join("; "));
    let mut stepped: Vec<String> = turns().filter(|it| !it.steps_down.is_empty()).map(steps_down).collect();
    stepped.sort_unstable();
    stepped.dedup();
    notes.extend(stepped);
    let misaligned: u64 = turns().map(|turn| turn.server.misaligned).sum();
    if misaligned > 0 {
        notes.push(format!("{misaligned} connections were not served by the worker of their NAPI"));
    }
    notes
}
