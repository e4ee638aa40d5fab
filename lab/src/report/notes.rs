//! What readers of a comparison should know before they rely on it.

use crate::experiments::policy_comparison::{Measurement, PolicyComparison, PolicyRow};
use crate::experiments::{CoreAssignment, MeasuredRounds};

/// From this busy share on, the client may be the bottleneck.
const BUSY_CLIENT: f64 = 0.95;

/// Where the server, the client and the network work ran.
pub(super) fn routing(comparison: &PolicyComparison) -> Vec<String> {
    let CoreAssignment { server, client, packing, .. } = comparison.cores;
    if !comparison.has_testbed() {
        return vec![format!("routing: loopback; server on core {server}, client on core {client}")];
    }
    vec![
        format!(
            "routing: server on core {server}, client on core {client}, packing on core {packing}; a veth pair between two network namespaces"
        ),
        "routing: the client runs on the epoll driver, whichever driver the server runs on".to_owned(),
        format!(
            "routing: a real-time kernel thread stands in for the interrupt of the server's queue, on core {server} (packing: core {packing}; kernel-thread: an ordinary one that polls all the time on core {packing}); a kernel thread on core {client} polls the client's queue, at half the weight of the load's thread"
        ),
    ]
}

/// Reasons to doubt the comparison, a sentence each.
pub(super) fn notes(
    comparison: &PolicyComparison,
    rows: &[PolicyRow],
    measured: &MeasuredRounds<Measurement>,
) -> Vec<String> {
    let mut notes = vec![measured.summary()];
    if !comparison.has_testbed() {
        notes.push("loopback has no NAPI: no policy has an effect there, and all rows run the same; run as root for the testbed".to_owned());
    }
    let cores = comparison.cores;
    if cores.server == cores.client {
        notes.push("the machine has one core, which server and client share".to_owned());
    } else if cores.packing == cores.client {
        notes.push(
            "without a third core, packing's network work shares the client's core, at packing's expense"
                .to_owned(),
        );
    }
    for row in rows.iter().filter(|row| row.client_busy > BUSY_CLIENT) {
        notes.push(format!(
            "{} on {}: the client's thread was {:.0} % busy, so the server may be capable of more",
            row.asked,
            row.driver,
            row.client_busy * 100.0
        ));
    }
    let all = || {
        let rounds = measured.finished.classes.iter().flat_map(|class| &class.rounds);
        rounds.flat_map(|round| &round.turns).filter_map(|turn| turn.value.as_ref())
    };
    let mut steps_down: Vec<String> = all()
        .filter(|it| !it.steps_down.is_empty())
        .map(|it| format!("{} asked, {} ran: {}", it.asked, it.ran, it.steps_down.join("; ")))
        .collect();
    steps_down.sort_unstable();
    steps_down.dedup();
    notes.extend(steps_down);
    let failed: u64 = all().map(|it| it.load.errors).sum();
    let misses: u64 = all().map(|it| it.load.misses).sum();
    if failed + misses > 0 {
        notes.push(format!(
            "{failed} requests failed and {misses} gets found nothing: the results are not reliable"
        ));
    }
    for measurement in all().filter(|it| it.load.ring_drops > 0) {
        notes.push(format!(
            "{}: {} packets found the server's receive ring full, and TCP had to send them again (p99 {:.0} µs)",
            measurement.asked, measurement.load.ring_drops, measurement.load.latency.p99
        ));
    }
    let misaligned: u64 = all().map(|it| it.server.misaligned).sum();
    if misaligned > 0 {
        notes.push(format!("{misaligned} connections were not served by the worker of their NAPI"));
    }
    if all().all(|it| it.server.ipc.is_none()) {
        notes.push(
            "this machine doesn't count cycles and instructions; CPU time per request stands in for them"
                .to_owned(),
        );
    }
    notes
}
