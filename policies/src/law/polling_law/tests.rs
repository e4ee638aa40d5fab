//! The law on a core with given costs and random arrivals.

use super::*;

const STEP: Duration = Duration::from_millis(10);

/// What an event costs on a core, in seconds.
#[derive(Clone, Copy)]
struct Core {
    /// Under interrupts.
    plain: f64,
    /// Under polling in interrupt-first mode.
    interrupt_first: f64,
    /// Under polling in grace mode.
    grace: f64,
    /// How much of each [`STEP`] other programs take.
    waiting: Duration,
}

/// Polling costs half of what interrupts cost.
const CHEAP_POLLS: Core = Core { plain: 4e-6, interrupt_first: 3e-6, grace: 2e-6, waiting: Duration::ZERO };
/// As on a virtual machine on which a timer's poll costs more than an interrupt saves.
const DEAR_POLLS: Core = Core { plain: 4e-6, interrupt_first: 5e-6, grace: 4.5e-6, waiting: Duration::ZERO };

fn law(budget_micros: u64) -> PollingLaw {
    let costs = MachineCosts { block: Duration::from_micros(3), wake_latency: Duration::from_micros(4) };
    let budget = LatencyBudget::new(Duration::from_micros(budget_micros)).unwrap();
    PollingLaw::new(budget, costs, LawLimits::default())
}

/// A law of a worker that can poll by its own timer.
fn timed_law(budget_micros: u64, wakes_thread: bool) -> PollingLaw {
    let mut law = law(budget_micros);
    law.limits.timer = PollTimer::Worker { wakes_thread };
    law
}

/// Runs a law for `millis` at `rate` events per second. Returns the settings that it chose on the way.
fn run(law: &mut PollingLaw, core: Core, rate: f64, millis: u64) -> Vec<QueueSettings> {
    let mut changes = Vec::new();
    for _ in 0..millis / 10 {
        let cost = match law.settings().mode {
            QueueMode::Plain => core.plain,
            QueueMode::InterruptFirst => core.interrupt_first,
            QueueMode::Grace | QueueMode::Timed => core.grace,
        };
        let seconds = STEP.as_secs_f64();
        // A core that is always busy does what it can.
        let events = (rate * seconds).min((seconds - core.waiting.as_secs_f64()) / cost);
        let cpu = Duration::from_secs_f64(events * cost);
        // The quantiles of exponential gaps; in grace mode sleeps end with the timer.
        let idle = cpu + core.waiting < STEP.mul_f64(0.99);
        for quantile in (0..20).filter(|_| idle && rate > 0.0) {
            let gap = Duration::from_secs_f64(-(1.0 - (f64::from(quantile) + 0.5) / 20.0).ln() / rate);
            let grace = law.settings().grace_time;
            law.record_gap(match law.settings().mode {
                QueueMode::Timed => {
                    let interval = law.settings().poll_interval;
                    interval * u32::try_from(gap.as_nanos().div_ceil(interval.as_nanos())).unwrap()
                }
                QueueMode::Grace => grace * u32::try_from(gap.as_nanos().div_ceil(grace.as_nanos())).unwrap(),
                _ => gap,
            });
        }
        let events = events as u64;
        changes.extend(law.step(&Epoch {
            duration: STEP,
            events,
            packets: events,
            cpu,
            waiting: core.waiting,
        }));
    }
    changes
}

fn mode_at(budget_micros: u64, core: Core, rate: f64) -> (QueueMode, Duration) {
    let mut law = law(budget_micros);
    run(&mut law, core, rate, 1_000);
    (law.settings().mode, law.settings().grace_time)
}

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

#[test]
fn without_a_budget_the_queue_is_plain_until_it_stays_busy() {
    for rate in [100.0, 12_500.0, 125_000.0, 180_000.0] {
        assert_eq!(mode_at(0, CHEAP_POLLS, rate).0, QueueMode::Plain, "{rate}");
    }
    assert_eq!(mode_at(0, CHEAP_POLLS, 205_000.0).0, QueueMode::InterruptFirst);
    assert_eq!(mode_at(0, CHEAP_POLLS, 240_000.0), (QueueMode::Grace, micros(20)));
    assert_eq!(mode_at(0, CHEAP_POLLS, 1e6), (QueueMode::Grace, micros(20)));
}

#[test]
fn a_budget_is_the_grace_time_where_packets_come_within_it() {
    assert_eq!(mode_at(20, CHEAP_POLLS, 25_000.0).0, QueueMode::Plain);
    assert_eq!(mode_at(20, CHEAP_POLLS, 75_000.0), (QueueMode::Grace, micros(20)));
    assert_eq!(mode_at(50, CHEAP_POLLS, 30_000.0), (QueueMode::Grace, micros(50)));
    assert_eq!(mode_at(50, CHEAP_POLLS, 1e6), (QueueMode::Grace, micros(50)));
    assert_eq!(mode_at(100, CHEAP_POLLS, 5_000.0).0, QueueMode::Plain);
}

#[test]
fn a_worker_that_can_poll_by_its_timer_does_that_where_the_kernels_timer_would() {
    for (budget, rate, interval) in
        [(0, 240_000.0, 20), (0, 1e6, 20), (20, 75_000.0, 20), (50, 30_000.0, 50), (50, 1e6, 20)]
    {
        let mut law = timed_law(budget, false);
        run(&mut law, CHEAP_POLLS, rate, 1_000);
        let settings = *law.settings();
        assert_eq!((settings.mode, settings.poll_interval), (QueueMode::Timed, micros(interval)), "{rate}");
        // Nothing but the worker and the watchdog polls.
        assert_eq!((settings.defer_hard_irqs, settings.suspend_timeout), (1, Duration::ZERO));
        let filled = settings.grace_time.as_secs_f64() * rate.min(500_000.0);
        let is_shortest = settings.grace_time < QueueSettings::SHORTEST_SUSPEND_TIMEOUT * 2;
        assert!(filled <= 128.0 || is_shortest, "{settings:?}");
        assert!(settings.grace_time >= QueueSettings::SHORTEST_SUSPEND_TIMEOUT, "{settings:?}");
    }
    for (budget, rate) in [(0, 25_000.0), (0, 180_000.0), (20, 25_000.0), (100, 5_000.0)] {
        let mut law = timed_law(budget, false);
        run(&mut law, CHEAP_POLLS, rate, 1_000);
        assert_eq!(law.settings().mode, QueueMode::Plain, "budget {budget}, {rate}");
    }
}

#[test]
fn where_interrupts_wake_a_thread_fewer_packets_an_interval_are_enough() {
    for (wakes_thread, mode) in [(false, QueueMode::Plain), (true, QueueMode::Timed)] {
        let mut law = timed_law(20, wakes_thread);
        run(&mut law, CHEAP_POLLS, 25_000.0, 1_000);
        assert_eq!(law.settings().mode, mode);
    }
}

#[test]
fn requests_that_wait_long_for_the_core_are_polled_for_before_it_is_saturated() {
    // 15 µs · 0.8/0.2 = 60 µs, and 45 µs where it is busy 75 % of the time.
    let slow = Core { plain: 30e-6, interrupt_first: 20e-6, grace: 15e-6, waiting: Duration::ZERO };
    for (rate, mode) in [(0.8 / 30e-6, QueueMode::Timed), (0.5 / 30e-6, QueueMode::Plain)] {
        let mut law = timed_law(0, false);
        run(&mut law, slow, rate, 1_000);
        assert_eq!(law.settings().mode, mode, "{rate}");
    }
}

#[test]
fn a_mostly_idle_core_with_long_requests_is_not_polled_for() {
    let slow = Core { plain: 1e-3, interrupt_first: 1e-3, grace: 1e-3, waiting: Duration::ZERO };
    let mut law = timed_law(0, true);
    run(&mut law, slow, 100.0, 2_000);
    assert_eq!(law.settings().mode, QueueMode::Plain);
}

#[test]
fn timed_mode_that_cannot_be_left_stays_timed() {
    let mut law = timed_law(0, false);
    run(&mut law, CHEAP_POLLS, 1e6, 1_000);
    let timed = *law.settings();
    law.fix(timed);
    run(&mut law, CHEAP_POLLS, 1_000.0, 500);
    assert_eq!(QueueSettings { why: timed.why, ..*law.settings() }, timed);
    law.release();
    run(&mut law, CHEAP_POLLS, 1_000.0, 500);
    assert_eq!((law.settings().mode, law.settings().poll_interval), (QueueMode::Plain, Duration::ZERO));
}

#[test]
fn no_more_than_a_quarter_of_the_ring_fills_within_a_long_budgets_poll_interval() {
    let mut law = timed_law(1_000, false);
    // Not saturated at this cost.
    let core = Core { plain: 2e-6, interrupt_first: 2e-6, grace: 1e-6, waiting: Duration::ZERO };
    run(&mut law, core, 300_000.0, 1_000);
    let settings = *law.settings();
    assert_eq!(settings.mode, QueueMode::Timed);
    assert!(settings.poll_interval.as_secs_f64() * 300_000.0 <= 64.0, "{settings:?}");
}

#[test]
fn a_worker_without_packets_stops_its_polls_soon() {
    let mut law = timed_law(0, false);
    run(&mut law, CHEAP_POLLS, 1e6, 1_000);
    assert_eq!(law.settings().mode, QueueMode::Timed);
    run(&mut law, CHEAP_POLLS, 0.0, 60);
    assert_eq!(law.settings().mode, QueueMode::Plain);
}

#[test]
fn polling_that_costs_more_is_given_up_and_tried_ever_less_often() {
    let mut law = law(50);
    let changes = run(&mut law, DEAR_POLLS, 205_000.0, 120_000);
    let tries = changes.iter().filter(|settings| settings.polls()).count();
    assert!((2..=14).contains(&tries), "{tries} tries in 120 s");
    assert_eq!(law.settings().mode, QueueMode::Plain);
    assert!(matches!(law.settings().why, Reason::CostsMore { .. }), "{:?}", law.settings().why);
}

#[test]
fn polling_that_costs_more_on_a_saturated_core_is_tried_ever_less_often() {
    let mut law = law(0);
    let changes = run(&mut law, DEAR_POLLS, 1e6, 120_000);
    let tries = changes.iter().filter(|settings| settings.polls()).count();
    assert!((2..=14).contains(&tries), "{tries} tries in 120 s");
    assert!(matches!(law.settings().why, Reason::CostsMore { .. }), "{:?}", law.settings().why);
}

#[test]
fn after_a_failed_change_the_law_knows_that_the_queue_still_polls_and_ends_that() {
    let mut law = law(0);
    run(&mut law, CHEAP_POLLS, 1e6, 1_000);
    let in_effect = *law.settings();
    assert!(in_effect.polls());
    // Plain interrupts could not be set.
    law.fix(in_effect);
    assert_eq!(*law.settings(), in_effect);
    run(&mut law, CHEAP_POLLS, 1_000.0, 500);
    assert!(!law.settings().polls(), "{:?}", law.settings());
    law.release();
    run(&mut law, CHEAP_POLLS, 1_000.0, 500);
    assert_eq!(law.settings().grace_time, Duration::ZERO, "{:?}", law.settings());
}

/// A machine that becomes 1.6 times slower while its wait polls: everything costs more, polling still less than
/// interrupts.
const SLOWER: Core = Core { plain: 6.4e-6, interrupt_first: 4.8e-6, grace: 4.2e-6, waiting: Duration::ZERO };

#[test]
fn polling_on_a_machine_that_became_slower_is_tried_again_at_once() {
    const RATE: f64 = 150_000.0;
    let mut law = law(20);
    run(&mut law, CHEAP_POLLS, RATE, 1_000);
    assert_eq!(law.settings().mode, QueueMode::Grace);
    let changes: Vec<QueueMode> = run(&mut law, SLOWER, RATE, 1_000).iter().map(|it| it.mode).collect();
    assert_eq!(changes.first(), Some(&QueueMode::Plain), "given up by a cost of the faster machine");
    assert_eq!(law.settings().mode, QueueMode::Grace, "{changes:?}");
}

#[test]
fn a_core_that_others_take_half_of_is_saturated_at_half_of_the_rate() {
    let shared = Core { waiting: STEP / 2, ..CHEAP_POLLS };
    for (core, mode) in [(CHEAP_POLLS, QueueMode::Plain), (shared, QueueMode::Grace)] {
        assert_eq!(mode_at(0, core, 120_000.0).0, mode);
    }
}

#[test]
fn the_deferrals_of_a_saturated_queue_outlast_a_batch() {
    let slow = Core { plain: 20e-6, interrupt_first: 15e-6, grace: 10e-6, waiting: Duration::ZERO };
    for (core, cost) in [(CHEAP_POLLS, micros(4)), (slow, micros(20))] {
        let mut law = law(0);
        run(&mut law, core, 1e6, 1_000);
        let settings = law.settings();
        assert_eq!(settings.mode, QueueMode::Grace);
        let deferred = settings.grace_time * u32::try_from(settings.defer_hard_irqs).unwrap();
        assert!(deferred >= cost * 64, "{settings:?}");
        assert!(settings.defer_hard_irqs <= QueueSettings::MOST_DEFERRALS);
    }
}

#[test]
fn a_load_alone_decides_where_costs_are_not_compared() {
    let costs = MachineCosts { block: Duration::from_micros(3), wake_latency: Duration::from_micros(4) };
    let limits = LawLimits { compares_costs: false, ..LawLimits::default() };
    let mut law = PollingLaw::new(LatencyBudget::ZERO, costs, limits);
    run(&mut law, DEAR_POLLS, 1e6, 2_000);
    assert_eq!(law.settings().mode, QueueMode::Grace);
}

#[test]
fn a_saturated_core_polls_soon_although_polling_cost_more_at_a_lower_load() {
    let core = Core { grace: 3e-6, ..DEAR_POLLS };
    let mut law = law(0);
    run(&mut law, core, 205_000.0, 1_000);
    assert_eq!(law.settings().mode, QueueMode::Plain);
    run(&mut law, core, 400_000.0, 200);
    assert_eq!(law.settings().mode, QueueMode::Grace);
}

#[test]
fn the_law_settles_within_200_ms_of_a_step_and_stays() {
    let mut law = law(0);
    run(&mut law, CHEAP_POLLS, 25_000.0, 1_000);
    for (rate, mode) in [(230_000.0, QueueMode::Grace), (25_000.0, QueueMode::Plain)] {
        run(&mut law, CHEAP_POLLS, rate, 200);
        assert_eq!(law.settings().mode, mode, "{rate}");
        assert_eq!(run(&mut law, CHEAP_POLLS, rate, 5_000), [], "{rate}");
    }
}

#[test]
fn a_load_between_two_thresholds_does_not_make_the_law_oscillate() {
    for budget in [0, 20, 50] {
        for rate in (10_000..300_000).step_by(10_000) {
            let mut law = law(budget);
            run(&mut law, CHEAP_POLLS, f64::from(rate), 500);
            let changes = run(&mut law, CHEAP_POLLS, f64::from(rate), 2_000);
            assert!(changes.len() <= 1, "budget {budget}, {rate}/s: {changes:?}");
        }
    }
}

#[test]
fn changes_are_at_least_50_ms_apart() {
    let mut law = law(20);
    let mut since = Duration::from_secs(1);
    for step in 0..2_000 {
        let rate = if step / 3 % 2 == 0 { 10_000.0 } else { 300_000.0 };
        since += STEP;
        if !run(&mut law, CHEAP_POLLS, rate, 10).is_empty() {
            assert!(since >= DWELL, "{since:?}");
            since = Duration::ZERO;
        }
    }
}

#[test]
fn the_suspend_timeout_is_at_most_the_time_in_which_half_of_the_ring_fills() {
    let mut law = law(0);
    run(&mut law, CHEAP_POLLS, 240_000.0, 1_000);
    let settings = *law.settings();
    assert!(settings.suspend_timeout.as_secs_f64() * 240_000.0 <= 128.0, "{settings:?}");
    assert!(settings.suspend_timeout >= QueueSettings::SHORTEST_SUSPEND_TIMEOUT);
}

#[test]
fn values_that_cannot_be_set_stay_and_only_the_wait_changes() {
    let preset = QueueSettings::preset(100, micros(30), Duration::from_millis(5));
    let mut law = law(0);
    law.fix(preset);
    for (rate, mode) in [(10_000.0, QueueMode::Plain), (1e6, QueueMode::Grace)] {
        run(&mut law, CHEAP_POLLS, rate, 300);
        let settings = *law.settings();
        assert_eq!((settings.mode, settings.grace_time), (mode, micros(30)));
        assert_eq!(settings.suspend_timeout, Duration::from_millis(5));
    }
    law.fix(QueueSettings::preset(0, Duration::ZERO, Duration::ZERO));
    run(&mut law, CHEAP_POLLS, 1e6, 300);
    assert_eq!(law.settings().mode, QueueMode::Plain);
}

#[test]
fn an_idle_worker_goes_back_to_interrupts() {
    let mut law = law(50);
    run(&mut law, CHEAP_POLLS, 100_000.0, 500);
    assert!(law.settings().polls());
    // Wakes once a second, for a timer.
    for _ in 0..3 {
        let duration = Duration::from_secs(1);
        law.step(&Epoch { duration, events: 1, packets: 1, cpu: micros(10), ..Epoch::default() });
    }
    assert_eq!(law.settings().mode, QueueMode::Plain);
}

#[test]
fn requests_that_become_cheaper_while_the_wait_polls_end_that() {
    let mut law = law(0);
    run(&mut law, CHEAP_POLLS, 240_000.0, 1_000);
    assert!(law.settings().polls());
    let tenth = |cost: f64| cost / 10.0;
    let cheap = Core {
        plain: tenth(CHEAP_POLLS.plain),
        interrupt_first: tenth(CHEAP_POLLS.interrupt_first),
        grace: tenth(CHEAP_POLLS.grace),
        waiting: Duration::ZERO,
    };
    run(&mut law, cheap, 240_000.0, 300);
    assert_eq!(law.settings().mode, QueueMode::Plain);
}

#[test]
fn a_wait_spins_for_at_most_a_block_and_only_where_packets_come_within_it() {
    for (gap, most) in [(micros(1), micros(3)), (micros(40), Duration::ZERO)] {
        let mut law = law(0);
        for _ in 0..100 {
            (0..100).for_each(|_| law.record_gap(gap));
            let cost = if law.settings().polls() { 3e-6 } else { 4e-6 };
            let cpu = Duration::from_secs_f64(2_050.0 * cost);
            law.step(&Epoch { duration: STEP, events: 2_050, packets: 2_050, cpu, ..Epoch::default() });
        }
        let settings = law.settings();
        assert_eq!(settings.mode, QueueMode::InterruptFirst);
        assert!(settings.spin <= most, "{settings:?}");
        assert_eq!(settings.spin.is_zero(), most.is_zero(), "{settings:?}");
    }
}
