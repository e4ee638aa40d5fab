//! The load generator against a packet capture of the same run.

use std::collections::HashMap;
use std::time::Duration;

use loadgen::{Arrival, Config, Loop};
use runtime::WaitStrategy;
use serial_test::serial;
use tests::capture::{Capture, Packet};
use tests::load::config;
use tests::memcached::Memcached;

/// Runs a load while packets are captured. The generator spins, so that the wakeup time of an idle core is not
/// measured.
fn captured_run(config: &Config, port: u16) -> (loadgen::Report, Vec<Packet>) {
    let builder = runtime::Builder::new().ignore_environment().workers(1).wait(WaitStrategy::Spin);
    let mut runtime = builder.build().unwrap();
    runtime.block_on(loadgen::load_records(config)).unwrap();
    let capture = Capture::start(port).unwrap();
    let report = runtime.block_on(loadgen::run(config)).unwrap();
    (report, capture.finish().unwrap())
}

/// The latencies on the wire in µs, sorted.
fn wire_latencies(packets: &[Packet]) -> Vec<f64> {
    let mut asked: HashMap<u16, Duration> = HashMap::new();
    let mut latencies = Vec::new();
    for packet in packets {
        if packet.to_server {
            asked.insert(packet.client, packet.at);
        } else if let Some(at) = asked.remove(&packet.client) {
            latencies.push((packet.at - at).as_secs_f64() * 1e6);
        }
    }
    latencies.sort_unstable_by(f64::total_cmp);
    latencies
}

#[test]
#[ignore = "timing"]
#[serial]
fn the_reported_wire_latency_is_that_of_a_packet_capture() {
    if tests::root().is_none() {
        return;
    }
    let server = Memcached::start(&[]);
    let config = Config {
        connections: 4,
        kernel_timestamps: true,
        workers_spin: true,
        pacing: Loop::Open { rate: 4000.0, arrival: Arrival::EXPONENTIAL },
        duration: Duration::from_secs(1),
        ..config(server.address)
    };
    // The hypervisor may disturb one run, but not three.
    let mut apart = (0..3).map(|_| {
        let (report, packets) = captured_run(&config, server.address.port());
        let (wire, own, service) =
            (report.wire.unwrap(), report.client_overhead.unwrap(), report.service.unwrap());
        let latencies = wire_latencies(&packets);
        assert_eq!((latencies.len() as u64, wire.count), (report.latency.count, report.latency.count));
        assert!((wire.avg + own.avg - service.avg).abs() < 1.0, "{}", report.table());
        let captured = |share: f64| latencies[(latencies.len() as f64 * share) as usize];
        let apart = (wire.p50 - captured(0.5)).abs().max((wire.p90 - captured(0.9)).abs());
        // The capture and the socket take their timestamps some calls apart, which a slow machine takes longer for.
        println!("{apart} µs apart");
        (apart, (0.1 * captured(0.5)).max(10.0))
    });
    assert!(
        apart.any(|(micros, most)| micros < most),
        "they differ by more than 10 µs and a tenth in each of three runs"
    );
}

#[test]
#[ignore = "timing"]
#[serial]
fn gaps_between_requests_on_the_wire_are_exponential() {
    if tests::root().is_none() {
        return;
    }
    let server = Memcached::start(&[]);
    let closed = Config { connections: 16, workers_spin: true, ..config(server.address) };
    let mut misfits = Vec::new();
    // At half of the highest rate, or where the machine pauses the generator too often for that, at the highest rate
    // at which it is on time: the longer the gaps, the less a pause of some microseconds distorts them.
    for share in [2.0, 2.0, 4.0, 4.0, 8.0, 8.0, 16.0, 16.0] {
        let highest = captured_run(&closed, server.address.port()).0.qps;
        let rate = highest / share;
        let pacing = Loop::Open { rate, arrival: Arrival::EXPONENTIAL };
        let open = Config { pacing, depth: 16, duration: Duration::from_secs(1), ..closed.clone() };
        let misfit = misfit(&open, rate, server.address.port());
        // Above 1.63 with a probability of 1 % (Kolmogorov and Smirnov).
        if misfit.is_some_and(|misfit| misfit < 1.63) {
            return;
        }
        misfits.push((rate, misfit));
    }
    panic!("at no rate were gaps exponential (requests/s, misfit if on time): {misfits:?}");
}

/// The Kolmogorov-Smirnov statistic of the gaps against an exponential distribution: the largest distance between
/// both, times the root of their number. `None` for a disturbed run, in which late requests are sent together.
fn misfit(open: &Config, rate: f64, port: u16) -> Option<f64> {
    let (report, packets) = captured_run(open, port);
    let sent: Vec<Duration> =
        packets.iter().filter(|packet| packet.to_server).map(|packet| packet.at).collect();
    let late = report.send_lag.unwrap().p99 / 1e6 * rate;
    if (sent.len() as f64) < report.requests as f64 * 0.9 || late > LATE {
        return None;
    }
    // One thread can't send two packets at once: gaps are no shorter than a send takes. The excess over any
    // length is exponential again, with the same mean.
    let gaps = sent.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * rate);
    let mut above: Vec<f64> =
        gaps.filter_map(|gap| Some(gap - THRESHOLD).filter(|above| *above > 0.0)).collect();
    above.sort_unstable_by(f64::total_cmp);
    let count = above.len() as f64;
    assert!(count > 200.0, "{count} long gaps of {}", sent.len());
    let distance = above.iter().enumerate().fold(0.0_f64, |distance, (index, above)| {
        distance.max((1.0 - (-above).exp() - (index as f64 + 0.5) / count).abs())
    });
    Some(distance * count.sqrt())
}

/// The length, in mean gaps, whose excess is tested.
const THRESHOLD: f64 = 1.5;

/// How many mean gaps late a request in a hundred may be sent: later ones are sent together with their followers, and
/// the gaps on the wire are then the machine's.
const LATE: f64 = 10.0;
