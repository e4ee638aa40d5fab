//! Measurements that were never made, for tests.

use std::cell::Cell;

use loadgen::interleaved_rounds::{Conditions, Rounds};
use loadgen::medians::median_interval;

use super::crossing_cost::CrossingCost;
use super::echo_turn::RequestCost;
use super::kernel_path::{PathMeasurement, SIZES};
use super::measurement::ModelMeasurements;
use crate::experiments::MeasuredRounds;

pub(crate) fn rounds<T>(
    count: usize,
    load: &str,
    contestants: usize,
    value: impl Fn(usize) -> T,
) -> MeasuredRounds<T> {
    let mut rounds = Rounds::new(contestants, count);
    while let Some(turn) = rounds.next_turn() {
        let measured = value(turn.contestant());
        rounds.finish_turn(turn, Some(measured), Conditions::default());
    }
    let contestants = (0..contestants).map(|index| index.to_string()).collect();
    MeasuredRounds { load: load.to_owned(), contestants, finished: rounds.finish() }
}

/// The results of `rounds` rounds of a server on epoll and on uring; `epoll` and `uring` are CPU times per request in µs.
pub(crate) fn server(count: usize, epoll: f64, uring: f64) -> MeasuredRounds<RequestCost> {
    let turns = Cell::new(0);
    rounds(count, "closed loop", 2, |index| {
        turns.set(turns.get() + 1);
        // uring's differ a little between rounds.
        let noise = f64::from(turns.get() / 2 % 3 - 1) * 0.01;
        let (cpu_us, transfers) = if index == 0 { (epoll, 2.0) } else { (uring + noise, 0.0) };
        RequestCost { requests: 1000, cpu_us, waits: 0.5, transfers }
    })
}

/// A crossing of 200 ns, a kernel's path of 3 µs and 0.1 ns a byte, and servers whose gain is what the model predicts.
pub(crate) fn measurements(has_testbed: bool) -> ModelMeasurements {
    let path = rounds(6, "exchange", 1, |_| {
        let at = |bytes: usize| {
            let server_us = 3.0 + bytes as f64 * 1e-4 + 2.0 * 0.2;
            PathMeasurement { bytes, requests: 1000, server_us, both_us: server_us * 2.0, server_calls: 2.0 }
        };
        SIZES.map(at).to_vec()
    });
    let nanos = |value: f64| median_interval(&[value; 8]);
    ModelMeasurements {
        vulnerabilities: vec![("spectre_v2".to_owned(), "Mitigation: Retpolines".to_owned())],
        crossing: CrossingCost {
            system_call: nanos(200.0),
            nop: Some(nanos(300.0)),
            nop_in_batch: Some(nanos(30.0)),
        },
        path,
        echo: server(6, 5.0, 5.0 - 0.34),
        memcached: server(6, 8.0, 8.0 - 0.34),
        memcached_network: if has_testbed { "testbed" } else { "loopback" },
    }
}
