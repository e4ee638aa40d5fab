//! When the load generator sends its requests, by a packet capture of the same run.

use std::time::Duration;

use loadgen::{Arrival, Config, Loop};
use runtime::WaitStrategy;
use serial_test::serial;
use tests::capture::{Capture, Packet};
use tests::load::config;
use tests::memcached::Memcached;

/// Runs a load while packets are captured. The generator spins, so that the wakeup time of an idle
/// core is not measured.
fn captured_run(config: &Config, port: u16) -> (loadgen::Report, Vec<Packet>) {
    let builder = runtime::Builder::new().ignore_environment().workers(1).wait(WaitStrategy::Spin);
    let runtime = builder.build().unwrap();
    runtime.block_on(loadgen::load_records(config)).unwrap();
    let capture = Capture::start(port).unwrap();
    let report = runtime.block_on(loadgen::run(config)).unwrap();
    (report, capture.finish().unwrap())
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
    // At half of the highest rate, or where the machine pauses the generator too often for that, at
    // the highest rate at which it is on time: the longer the gaps, the less a pause of some
    // microseconds distorts them.
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

/// The Kolmogorov-Smirnov statistic of the gaps against an exponential distribution: the largest
/// distance between both, times the root of their number. `None` for a disturbed run, in which late
/// requests are sent together.
fn misfit(open: &Config, rate: f64, port: u16) -> Option<f64> {
    let (report, packets) = captured_run(open, port);
    let sent: Vec<Duration> =
        packets.iter().filter(|packet| packet.to_server).map(|packet| packet.at).collect();
    let late = report.send_lag.unwrap().p99 / 1e6 * rate;
    if (sent.len() as f64) < report.requests as f64 * 0.9 || late > LATE {
        return None;
    }
    // One thread can't send two packets at once: gaps are no shorter than a send takes. The excess
    // over any length is exponential again, with the same mean.
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

/// How many mean gaps late a request in a hundred may be sent: later ones are sent together with
/// their followers, and the gaps on the wire are then the machine's.
const LATE: f64 = 10.0;
