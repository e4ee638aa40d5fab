//! The load generator against a packet capture of the same run.

use std::collections::HashMap;
use std::time::Duration;

use loadgen::{Arrival, Config, Loop, WarmUp};
use runtime::WaitStrategy;
use tests::capture::{Capture, Packet};
use tests::load::{alone, config};
use tests::memcached::Memcached;

/// Runs a load while the wire is watched. The generator spins: what a sleeping processor takes to wake is not
/// what is looked for.
fn watched(config: &Config, port: u16) -> (loadgen::Report, Vec<Packet>) {
    let builder = runtime::Builder::new().ignore_environment().workers(1).wait(WaitStrategy::Spin);
    let mut runtime = builder.build().unwrap();
    runtime.block_on(loadgen::load_records(config)).unwrap();
    let capture = Capture::start(port).unwrap();
    let report = runtime.block_on(loadgen::run(config)).unwrap();
    (report, capture.finish().unwrap())
}

#[test]
fn try_it() {
    let _alone = alone();
    if tests::root().is_none() {
        return;
    }
    let server = Memcached::start(&[]);
    let rate: f64 = std::env::var("RATE").map_or(5000.0, |rate| rate.parse().unwrap());
    let connections = std::env::var("CONNS").map_or(4, |conns| conns.parse().unwrap());
    let config = Config {
        connections,
        kernel_timestamps: std::env::var("STAMPS").is_ok(),
        spins: true,
        pacing: Loop::Open { rate, arrival: Arrival::EXPONENTIAL },
        duration: Duration::from_secs(2),
        warm_up: WarmUp::Fixed(Duration::ZERO),
        ..config(server.address)
    };
    let (report, packets) = watched(&config, server.address.port());
    let mut asked: HashMap<u16, Duration> = HashMap::new();
    let mut took = Vec::new();
    let mut sent = Vec::new();
    for packet in &packets {
        if packet.to_server {
            asked.insert(packet.client, packet.at);
            sent.push(packet.at);
        } else if let Some(at) = asked.remove(&packet.client) {
            took.push(packet.at - at);
        }
    }
    took.sort_unstable();
    println!("{}", report.table());
    println!(
        "captured {} asked, {} answered, median {:?} p99 {:?}",
        sent.len(),
        took.len(),
        took[took.len() / 2],
        took[took.len() * 99 / 100]
    );
    let mut gaps: Vec<f64> = sent.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * rate).collect();
    gaps.sort_unstable_by(f64::total_cmp);
    let count = gaps.len() as f64;
    let distance = gaps
        .iter()
        .enumerate()
        .map(|(index, gap)| ((1.0 - (-gap).exp()) - (index as f64 + 0.5) / count).abs())
        .fold(0.0, f64::max);
    println!("KS distance {distance:.4}, times root {:.2}", distance * count.sqrt());
    for share in [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99] {
        println!("{share}: {:.4} meant {:.4}", gaps[(share * count) as usize], -(1.0_f64 - share).ln());
    }
}
