//! Measurements that were never made, for tests.

use loadgen::medians::median_interval;

use super::crossing_cost::CrossingCost;
use super::kernel_path::SIZES;
use super::measurement::{LOADS, ModelMeasurements};
use crate::engine::{Figure, LoadKind, Turn, results_of};

/// A crossing of 200 ns, a kernel's path of 3 µs and 0.1 ns a byte, an echo server of 5 µs on epoll and of `echo_uring` µs on
/// uring, and a memcached server whose gain is what the model predicts.
pub(crate) fn measurements(rounds: usize, echo_uring: f64) -> ModelMeasurements {
    let loads = LOADS.map(|name| (name, LoadKind::Closed, 0.0, None));
    let contenders: Vec<String> = SIZES.map(|bytes| bytes.to_string()).into();
    let contenders: Vec<&str> = contenders.iter().map(String::as_str).collect();
    let results = results_of(&loads, &contenders, &[0], rounds, |load, contender, round| {
        if load == LOADS[0] {
            let server_us = 3.0 + SIZES[contender] as f64 * 1e-4 + 2.0 * 0.2;
            return Turn::new([
                (Figure::CpuPerRequest, server_us),
                (Figure::BothEndsCpu, server_us * 2.0),
                (Figure::Calls, 2.0),
            ]);
        }
        let [epoll, uring] = if load == LOADS[1] { [5.0, echo_uring] } else { [8.0, 8.0 - 0.34] };
        // uring's differ a little between rounds.
        let noise = (round % 3) as f64 * 0.01 - 0.01;
        let (cpu_us, calls) = if contender == 0 { (epoll, 2.5) } else { (uring + noise, 0.5) };
        Turn::new([(Figure::CpuPerRequest, cpu_us), (Figure::Waits, 0.5), (Figure::Calls, calls)])
    });
    let nanos = |value: f64| median_interval(&[value; 8]);
    ModelMeasurements {
        vulnerabilities: vec![("spectre_v2".to_owned(), "Mitigation: Retpolines".to_owned())],
        crossing: CrossingCost {
            system_call: nanos(200.0),
            nop: Some(nanos(300.0)),
            nop_in_batch: Some(nanos(30.0)),
        },
        results,
        memcached_network: "testbed",
    }
}
