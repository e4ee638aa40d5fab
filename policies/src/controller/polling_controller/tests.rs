//! The rule, with loads that step, pause, and saturate the core.

use std::time::Duration;

use super::*;

const STEP: Duration = Duration::from_millis(10);

fn controller(interval_us: u64, timer: PollTimer) -> PollingController {
    let interval = PollInterval::new(Duration::from_micros(interval_us)).unwrap();
    PollingController::new(interval, ControllerLimits { timer, ..ControllerLimits::default() })
}

/// What 10 ms at a rate are like, with the core busy for a share of the time.
fn epoch(rate: f64, busy: f64) -> Epoch {
    let events = (rate * STEP.as_secs_f64()) as u64;
    Epoch { duration: STEP, events, packets: events, busy: STEP.mul_f64(busy) }
}

/// The modes after each of some steps at a rate.
fn modes(controller: &mut PollingController, rate: f64, busy: f64, steps: usize) -> Vec<QueueMode> {
    let mut step = || {
        controller.step(&epoch(rate, busy));
        controller.settings().mode
    };
    (0..steps).map(|_| step()).collect()
}

use QueueMode::{Deferral, Grace, Interrupts, Timed};

#[test]
fn a_queue_is_polled_while_two_events_come_in_an_interval() {
    for (interval, from) in [(10, 200_000.0), (40, 50_000.0), (1_000, 2_000.0)] {
        for timer in [PollTimer::Ring, PollTimer::Epoll, PollTimer::Kernel] {
            let polled = if timer == PollTimer::Kernel { Deferral } else { Timed };
            let mut controller = controller(interval, timer);
            assert_eq!(modes(&mut controller, from * 0.95, 0.3, 100), [Interrupts; 100]);
            assert_eq!(controller.settings().why, Reason::FewPackets);
            // With the first step.
            assert_eq!(modes(&mut controller, from * 1.05, 0.3, 100), [polled; 100]);
            assert_eq!(controller.settings().why, Reason::ManyPackets);
            // Between the bounds it stays as it is.
            assert_eq!(modes(&mut controller, from * 0.65, 0.3, 100), [polled; 100]);
            assert_eq!(modes(&mut controller, from * 0.55, 0.3, 3), [polled, polled, Interrupts]);
        }
    }
}

#[test]
fn one_or_two_steps_with_few_events_end_no_polling_and_one_without_any_does() {
    let mut controller = controller(40, PollTimer::Ring);
    for _ in 0..10 {
        assert_eq!(modes(&mut controller, 100_000.0, 0.5, 2), [Timed; 2]);
        assert_eq!(modes(&mut controller, 1_000.0, 0.1, 2), [Timed; 2]);
    }
    assert_eq!(modes(&mut controller, 0.0, 0.0, 1), [Interrupts]);
    assert_eq!(modes(&mut controller, 100_000.0, 0.5, 1), [Timed]);
}

#[test]
fn a_saturated_ring_is_left_to_interrupts_until_the_rate_falls_or_for_20_s() {
    let mut controller = controller(40, PollTimer::Ring);
    assert_eq!(modes(&mut controller, 200_000.0, 0.99, 4), [Timed, Timed, Timed, Interrupts]);
    assert_eq!(controller.settings().why, Reason::Saturated);
    // More load, and a little less.
    assert_eq!(modes(&mut controller, 220_000.0, 1.0, 50), [Interrupts; 50]);
    assert_eq!(modes(&mut controller, 190_000.0, 0.9, 50), [Interrupts; 50]);
    assert_eq!(modes(&mut controller, 180_000.0, 0.9, 50), [Timed; 50]);
    // Something else may have kept the core busy.
    modes(&mut controller, 180_000.0, 1.0, 3);
    assert_eq!(modes(&mut controller, 180_000.0, 0.5, 2_000)[1_990..], [Interrupts; 10]);
    assert_eq!(modes(&mut controller, 180_000.0, 0.5, 2), [Timed; 2]);
    // Two steps of saturation are none.
    modes(&mut controller, 200_000.0, 0.99, 2);
    assert_eq!(modes(&mut controller, 180_000.0, 0.9, 1), [Timed]);
}

#[test]
fn waits_poll_where_the_kernels_timer_polls_a_saturated_server() {
    let mut controller = controller(40, PollTimer::Kernel);
    assert_eq!(modes(&mut controller, 120_000.0, 0.95, 4), [Deferral, Deferral, Deferral, Grace]);
    assert_eq!(controller.settings().defer_hard_irqs, QueueSettings::MOST_DEFERRALS);
    // Waits that poll take half of the CPU time.
    assert_eq!(modes(&mut controller, 120_000.0, 0.5, 50), [Grace; 50]);
    assert_eq!(modes(&mut controller, 100_000.0, 0.5, 50), [Deferral; 50]);
    assert_eq!(modes(&mut controller, 0.0, 0.0, 1), [Interrupts]);
}

/// A server on epoll that has `capacity` requests a second under interrupts, and twice as many while
/// its queue is polled; its clients send the next request after each reply.
#[test]
fn a_saturated_worker_on_epoll_is_polled_at_any_rate_and_does_not_go_back_and_forth() {
    for capacity in [20_000.0, 60_000.0, 90_000.0] {
        let mut controller = controller(30, PollTimer::Epoll);
        let modes: Vec<QueueMode> = (0..1_000)
            .map(|_| {
                let rate = if controller.settings().polls() { capacity * 2.0 } else { capacity };
                modes(&mut controller, rate, 0.99, 1)[0]
            })
            .collect();
        assert_eq!(modes, [Timed; 1_000], "{capacity}");
        // The clients pause, and then some of them go on.
        assert_eq!(self::modes(&mut controller, 0.0, 0.0, 1), [Interrupts]);
        assert_eq!(self::modes(&mut controller, 10_000.0, 0.3, 10), [Interrupts; 10]);
    }
}

#[test]
fn a_worker_on_epoll_whose_load_falls_is_left_to_interrupts_when_it_is_busy_for_a_third() {
    let mut controller = controller(30, PollTimer::Epoll);
    assert_eq!(modes(&mut controller, 30_000.0, 0.95, 1), [Timed]);
    // Polling lowers the CPU time, and the queue stays polled at the same rate.
    assert_eq!(modes(&mut controller, 30_000.0, 0.4, 100), [Timed; 100]);
    assert_eq!(controller.settings().why, Reason::Saturated);
    assert_eq!(modes(&mut controller, 20_000.0, 0.3, 3), [Timed, Timed, Interrupts]);
}

#[test]
fn a_burst_leaves_no_queue_of_a_worker_on_epoll_polled_that_was_not_saturated() {
    let mut controller = controller(30, PollTimer::Epoll);
    assert_eq!(modes(&mut controller, 15_000.0, 0.45, 10), [Interrupts; 10]);
    assert_eq!(modes(&mut controller, 100_000.0, 0.8, 1), [Timed]);
    assert_eq!(modes(&mut controller, 15_000.0, 0.45, 3), [Timed, Timed, Interrupts]);
}

#[test]
fn bursts_change_the_mode_within_a_step_of_their_begin_and_three_of_their_end() {
    for burst in [1, 3, 10] {
        let mut controller = controller(40, PollTimer::Ring);
        for _ in 0..20 {
            assert_eq!(modes(&mut controller, 100_000.0, 0.6, burst), vec![Timed; burst]);
            let after = modes(&mut controller, 5_000.0, 0.1, 10);
            assert_eq!(after, [&[Timed; 2][..], &[Interrupts; 8]].concat());
        }
    }
}

#[test]
fn who_never_sleeps_polls_while_packets_come_however_busy_the_core() {
    let mut controller = controller(0, PollTimer::Ring);
    assert_eq!(modes(&mut controller, 200.0, 1.0, 50), [Timed; 50]);
    assert!(controller.settings().never_sleeps());
    assert_eq!(modes(&mut controller, 0.0, 1.0, 3), [Timed, Timed, Interrupts]);
}

#[test]
fn at_most_a_quarter_of_the_ring_fills_in_a_poll_interval() {
    let mut controller = controller(1_000, PollTimer::Ring);
    let packets = Epoch { packets: 5_000, ..epoch(20_000.0, 0.5) };
    let settings = controller.step(&packets).unwrap();
    // 500,000 packets a second fill 128 slots in 256 µs.
    assert_eq!(settings.poll_interval, Duration::from_micros(125));
    assert!(settings.grace_time >= settings.poll_interval * 2, "{settings:?}");
    assert!(settings.grace_time <= Duration::from_micros(313), "{settings:?}");
    // A rate that varies by some percent changes nothing.
    for packets in [4_900, 5_100, 4_950] {
        assert_eq!(controller.step(&Epoch { packets, ..epoch(20_000.0, 0.5) }), None);
    }
}

#[test]
fn values_that_can_not_be_set_stay_and_only_the_waits_change() {
    let fixed = QueueSettings::grace(Duration::from_micros(50), Reason::Fixed);
    let limits = ControllerLimits { fixed: Some(fixed), ..ControllerLimits::default() };
    let mut controller = PollingController::new(PollInterval::default(), limits);
    let in_effect = |controller: &PollingController| {
        let settings = controller.settings();
        (settings.mode, settings.grace_time, settings.defer_hard_irqs)
    };
    let values = (fixed.grace_time, fixed.defer_hard_irqs);
    assert_eq!(in_effect(&controller), (Interrupts, values.0, values.1));
    modes(&mut controller, 100_000.0, 0.5, 1);
    assert_eq!(in_effect(&controller), (Grace, values.0, values.1));
    modes(&mut controller, 0.0, 0.0, 1);
    assert_eq!(in_effect(&controller), (Interrupts, values.0, values.1));
    // After a failure that has ended others are chosen.
    controller.release();
    modes(&mut controller, 100_000.0, 0.5, 1);
    assert_eq!(in_effect(&controller).0, Deferral);
    // Values of timed mode, which nobody can change: the worker has to poll while packets come.
    let timed = QueueSettings::timed(Duration::from_micros(30), Duration::from_millis(2), Reason::Fixed);
    controller.fix(timed);
    assert_eq!(modes(&mut controller, 5_000.0, 0.1, 10), [Timed; 10]);
    assert_eq!(modes(&mut controller, 0.0, 0.0, 1), [Interrupts]);
    controller.fix(QueueSettings { why: Reason::Unsupervised, ..fixed });
    modes(&mut controller, 100_000.0, 0.5, 1);
    assert_eq!((controller.settings().mode, controller.settings().why), (Interrupts, Reason::Unsupervised));
}

#[test]
fn after_a_failure_interrupts_drive_the_queue_for_good() {
    let mut controller = controller(40, PollTimer::Ring);
    modes(&mut controller, 100_000.0, 0.5, 3);
    controller.stop_polling(Reason::Failed);
    assert_eq!(modes(&mut controller, 100_000.0, 0.5, 50), [Interrupts; 50]);
    controller.restart(ControllerLimits { timer: PollTimer::Ring, ..ControllerLimits::default() });
    assert_eq!(modes(&mut controller, 100_000.0, 0.5, 50), [Interrupts; 50]);
    assert_eq!(controller.settings().why, Reason::Failed);
}
