use super::*;
use crate::simulator::candidate::Candidate;
use crate::simulator::rules::Fixed;
use crate::simulator::sequence::SequenceClass;
use crate::simulator::suite::{self, Length};

const BARE: Costs = Costs::BARE;
/// A core that only serves.
const FREE: Costs = Costs { irq: 0, block: 0, wake_latency: 0, pass: 0, tick: 0, receive: 0, service: 2_000 };

const LENGTH: Length = Length { adapting: 0, measured: 300_000_000 };

fn serve(arrivals: &[u64], drive: Drive) -> Run {
    serve_all(arrivals, 0, BARE, &mut Fixed(drive))
}

fn poisson_run(costs: Costs, percent: u32, candidate: Candidate) -> Run {
    let sequence = suite::poisson(&costs, SequenceClass::RandomMiddle, percent, LENGTH);
    serve_all(&sequence.arrivals, 0, costs, &mut *candidate.rule(&costs))
}

#[test]
fn without_costs_the_mean_wait_is_that_of_a_queue_with_random_arrivals_and_a_fixed_service_time() {
    for percent in [30, 60, 80] {
        let run = poisson_run(FREE, percent, Candidate::Plain);
        let mean = run.delays.iter().sum::<u64>() as f64 / run.delays.len() as f64;
        let wait = mean - FREE.service as f64;
        // Pollaczek-Khinchine for M/D/1.
        let load = f64::from(percent) / 100.0;
        let expected = FREE.service as f64 * load / (2.0 * (1.0 - load));
        assert!((wait / expected - 1.0).abs() < 0.05, "{percent} %: {wait} ns instead of {expected} ns");
    }
}

#[test]
fn the_core_is_either_busy_or_idle() {
    for candidate in Candidate::all(&["0".parse().unwrap(), "50".parse().unwrap()]) {
        for percent in [5, 50, 110] {
            let run = poisson_run(BARE, percent, candidate);
            assert_eq!(run.busy + run.idle, run.end, "{candidate} at {percent} %");
            assert!(run.asleep <= run.end, "{candidate} at {percent} %");
            assert!(run.delays.iter().all(|&delay| delay >= BARE.service), "{candidate} at {percent} %");
        }
    }
}

#[test]
fn a_request_to_a_sleeping_core_costs_an_interrupt_and_a_block() {
    let run = serve(&[100_000], Drive::Plain);
    assert_eq!(run.busy, BARE.irq + BARE.receive + BARE.block + BARE.service);
    assert_eq!(run.delays, [BARE.irq + BARE.receive + BARE.wake_latency + BARE.service]);
}

#[test]
fn an_empty_poll_costs_two_more_and_no_delay() {
    let (plain, polls) = (serve(&[100_000], Drive::Plain), serve(&[100_000], Drive::interrupt_first(0)));
    assert_eq!(polls.busy, plain.busy + 3 * BARE.pass);
    assert_eq!(polls.delays, plain.delays);
}

#[test]
fn interrupts_take_their_time_from_a_service_and_suspended_ones_take_none() {
    // The first is served from 104,300 to 106,300 ns.
    let arrivals = [100_000, 105_000];
    let [plain, polls] = [Drive::Plain, Drive::interrupt_first(0)].map(|drive| serve(&arrivals, drive));
    assert_eq!(plain.delays[0], 6_300 + BARE.irq + BARE.receive);
    assert_eq!(polls.delays[0], 6_300);
    assert_eq!(polls.delays[1], 1_300 + BARE.pass + BARE.receive + BARE.service);
}

#[test]
fn packets_wait_for_the_timer_which_polls_each_grace_time() {
    let run = serve(&[100_000], Drive::grace(20_000));
    // From the last poll at 1.5 µs on, each tick takes the grace time, 1.5 µs to leave the idle state and the
    // tick itself: the fifth ends at 114 µs.
    assert_eq!(run.delays, [14_000 + BARE.receive + BARE.waking() + BARE.service]);
    assert_eq!(run.busy, 3 * BARE.pass + 5 * BARE.tick + BARE.receive + BARE.block + BARE.service);
}

#[test]
fn the_interrupt_is_unmasked_when_the_timer_has_polled_in_vain_often_enough() {
    let deferred = serve(&[100_000], Drive::Polling { grace: 20_000, ticks: 1, spin: 0 });
    let interrupted = serve(&[100_000], Drive::interrupt_first(0));
    assert_eq!(deferred.delays, interrupted.delays);
    assert_eq!(deferred.busy, interrupted.busy + BARE.tick);
}

#[test]
fn a_spin_that_finds_a_packet_saves_the_sleep() {
    let run = serve(&[3_000], Drive::interrupt_first(5_000));
    assert_eq!(run.delays, [BARE.receive + BARE.service]);
    assert_eq!(run.busy, run.end);
    let in_vain = serve(&[100_000], Drive::interrupt_first(5_000));
    assert_eq!(in_vain.busy, serve(&[100_000], Drive::interrupt_first(0)).busy + 5_000);
}

#[test]
fn a_poll_takes_packets_that_came_together() {
    let run = serve(&[100_000; 10], Drive::interrupt_first(0));
    let per_request = BARE.receive + BARE.service;
    assert_eq!(run.busy, 3 * BARE.pass + BARE.irq + BARE.block + 10 * per_request);
}
