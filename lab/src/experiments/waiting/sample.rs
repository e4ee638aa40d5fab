//! Measurements that were never made, for tests.

use std::time::Duration;

use super::super::crossing_model::sample::rounds;
use super::config::{STRATEGIES, WaitingConfig};
use super::gap::Gap;
use super::measurement::{SERVER_STRATEGIES, WaitingMeasurements};
use super::message_turn::Pair;
use super::messages::MessageCost;
use super::server_turn::ServerCost;

/// A quick run with gaps of 1 µs and 1 ms only.
pub(crate) fn config() -> WaitingConfig {
    let gaps = vec![Gap::Fixed(Duration::from_micros(1)), Gap::Fixed(Duration::from_millis(1))];
    WaitingConfig { gaps, ..WaitingConfig::new(true, None) }
}

/// Round trips in µs, and CPU times of both sides in µs, at both gaps: block, spin, adaptive.
const ROUND_TRIPS: [[f64; 3]; 2] = [[12.0, 2.0, 2.1], [15.0, 30.0, 18.0]];
const CPU: [[f64; 3]; 2] = [[16.0, 6.0, 8.0], [20.0, 1000.0, 50.0]];

pub(crate) fn measurements(count: usize) -> WaitingMeasurements {
    let message = |gap: usize, strategy: usize| MessageCost {
        messages: 1000,
        round_trip_us: ROUND_TRIPS[gap][strategy],
        p99_us: ROUND_TRIPS[gap][strategy] * 2.0,
        asking_cpu_us: CPU[gap][strategy] / 2.0,
        answering_cpu_us: CPU[gap][strategy] / 2.0,
    };
    let messages = Pair::ALL.map(|pair| {
        let turns = |strategy| vec![message(0, strategy), message(1, strategy)];
        (pair, rounds(count, pair.name(), STRATEGIES.len(), turns))
    });
    let server = rounds(count, "memcached", SERVER_STRATEGIES.len(), |index| ServerCost {
        requests: 5000,
        p50_us: 20.0,
        p99_us: [60.0, 40.0, 41.0][index],
        cpu_share: [0.1, 1.0, 0.4][index],
    });
    WaitingMeasurements { messages: messages.into(), server }
}
