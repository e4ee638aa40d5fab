//! When a fleet's requests are on the wire.

use lab::fleet::{FleetLoad, FleetPacing};
use policies::Policy;
use serial_test::serial;
use tests::capture::{Capture, Packet};
use tests::isolated;

use super::server::{connect, serve};

/// The largest distance between the distribution of the gaps and the exponential one of the same
/// mean (Kolmogorov-Smirnov).
fn distance_to_exponential(gaps: &[f64]) -> f64 {
    let mut sorted = gaps.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let count = sorted.len() as f64;
    let mean = sorted.iter().sum::<f64>() / count;
    let distances = sorted.iter().enumerate().map(|(index, gap)| {
        let expected = 1.0 - (-gap / mean).exp();
        (expected - index as f64 / count).abs().max((expected - (index + 1) as f64 / count).abs())
    });
    distances.fold(0.0, f64::max)
}

/// What counts as exponential. A sample of 4,000 is farther away by chance never (once in 10^21
/// times); the rest is for gaps that a pause of the machine made longer, and for the time until the
/// server's side takes a packet.
const MOST: f64 = 0.08;

#[test]
fn the_distance_tells_exponential_gaps_from_fixed_and_uniform_ones() {
    let quantiles = || (0..6000).map(|at| (f64::from(at) + 0.5) / 6000.0);
    let exponential: Vec<f64> = quantiles().map(|quantile| -(1.0 - quantile).ln()).collect();
    assert!(distance_to_exponential(&exponential) < 0.01);
    assert!(distance_to_exponential(&vec![0.5; 6000]) > 0.6);
    assert!(distance_to_exponential(&quantiles().collect::<Vec<_>>()) > MOST);
    // Bursts of two.
    let bursts: Vec<f64> = exponential.iter().flat_map(|&gap| [gap, 0.0]).collect();
    assert!(distance_to_exponential(&bursts) > MOST);
    // A fifth of the gaps is lost to a timer of a tenth of their mean.
    let rounded: Vec<f64> = exponential.iter().map(|gap| gap.max(0.25)).collect();
    assert!(distance_to_exponential(&rounded) > MOST);
}

#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll")]
#[serial]
fn the_gaps_of_an_open_loop_are_exponential_on_the_wire_of_the_server() {
    // An unoptimized fleet takes up to 50 µs for a request, which is little beside the gaps.
    const RATE: f64 = 1000.0;
    let (run, packets) = serve(Policy::Vanilla, 64, |testbed, address| {
        let mut fleet = connect(address, 64).unwrap();
        let start = || Capture::start_incoming(address.port());
        let capture = testbed.server.run(start).unwrap();
        let load = FleetLoad { pacing: FleetPacing::Open { rate: RATE }, warm_up: 0.0, duration: 4.0 };
        let run = fleet.run(&load).unwrap();
        (run, capture.finish().unwrap())
    });
    let requests: Vec<&Packet> = packets.iter().filter(|packet| packet.to_server).collect();
    // The fleet sends one packet per request.
    assert!(requests.len() as u64 >= run.requests, "{} packets: {run:?}", requests.len());
    let gaps: Vec<f64> = requests.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).collect();
    let distance = distance_to_exponential(&gaps);
    println!("{} gaps, distance {distance:.4}, pauses {}", gaps.len(), run.pauses);
    assert!(gaps.len() > 2000, "{}", gaps.len());
    assert!(distance < MOST, "{distance}: {run:?}");
    // Connections are drawn at random: none is asked much more often than the others.
    let most = (0..64).map(|at| requests.iter().filter(|packet| packet.client == 10_000 + at).count()).max();
    assert!(most.unwrap() < 3 * requests.len() / 64, "{most:?} of {}", requests.len());
}
