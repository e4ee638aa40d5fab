//! The controller beside a server whose costs are known.

use super::super::budget::{CpuBudget, LatencyBudget};
use super::super::delays::Delays;
use super::*;

mod steady_load;

const fn micros(time: u64) -> Duration {
    Duration::from_micros(time)
}

const COSTS: MachineCosts =
    MachineCosts { block: micros(10), timer_latency: micros(10), wake_latency: micros(5) };

/// The delays of `events` events that waited for `delay` seconds each.
fn all(delay: f64, events: u64) -> Delays {
    let mut delays = Delays::default();
    delays.add([Duration::from_secs_f64(delay); 2], events as f32);
    delays
}

/// A server on which an event takes 3 µs of CPU time, an interrupt with its wake-up 8, a sleep that
/// a timer ends 10.
struct Server {
    controller: PollingController,
    /// Of all steps so far.
    time: Duration,
    changes: Vec<(Duration, QueueSettings)>,
    /// What polling takes in addition, for each event.
    poll_cost: f64,
    /// What polling takes and how long events wait with any interval, in µs, instead of what is
    /// simulated.
    fixed_polled: Option<(f64, f64)>,
    /// The rate of clients that wait for replies while the queue is polled, as a share of that
    /// under interrupts.
    polled_rate: f64,
}

impl Server {
    fn new(latency_us: u64, cpu_percent: u16) -> Self {
        Self::with(
            latency_us,
            cpu_percent,
            ControllerLimits { timer: PollTimer::Worker, ..ControllerLimits::default() },
        )
    }

    fn with(latency_us: u64, cpu_percent: u16, limits: ControllerLimits) -> Self {
        let latency = LatencyBudget::new(micros(latency_us)).unwrap();
        let budgets = Budgets { latency, cpu: CpuBudget::new(cpu_percent).unwrap() };
        let controller = PollingController::new(budgets, COSTS, limits);
        Self {
            controller,
            time: Duration::ZERO,
            changes: Vec::new(),
            poll_cost: 0.0,
            fixed_polled: None,
            polled_rate: 1.0,
        }
    }

    /// What 10 ms at a rate are like with the settings in effect.
    fn epoch(&self, rate: f64) -> Epoch {
        let duration = Duration::from_millis(10);
        let seconds = duration.as_secs_f64();
        let rate = rate.max(1.0);
        let settings = self.controller.settings();
        let events = (rate * seconds) as u64;
        let polls = !settings.is_plain();
        let (cost, sleeps, delay, wakes) = if let Some((cost, delay)) = self.fixed_polled.filter(|_| polls) {
            (cost * 1e-6, rate / 10.0, delay * 1e-6, 0.0)
        } else if polls {
            let interval = if settings.never_sleeps() { 0.0 } else { interval(settings).as_secs_f64() };
            let work = 3e-6 + self.poll_cost;
            let idle = (1.0 - rate * work).max(0.0);
            let sleeps = idle / (interval + 20e-6);
            let cost = if settings.never_sleeps() { 1.0 / rate } else { work + sleeps * 10e-6 / rate };
            (cost, sleeps, idle * (interval + 10e-6) / 2.0 + 3e-6, 0.0)
        } else {
            // The busier the core is, the fewer interrupts, and the longer the queue.
            let busy = (rate * 11e-6).min(0.99);
            let interrupts = rate * (1.0 - busy / 2.0);
            let cost = (3e-6 + 8e-6 * interrupts / rate).min(1.0 / rate);
            let busy = rate * cost;
            (cost, interrupts, 3e-6 + 15e-6 * busy / (1.01 - busy), 1.0 - busy)
        };
        let total = events as f64;
        Epoch {
            duration,
            events,
            packets: events,
            cpu: Duration::from_secs_f64(cost * total).min(duration),
            waiting: Duration::ZERO,
            sleeps: (sleeps * seconds) as u64,
            delays: all(delay + wakes * 5e-6, events),
            overslept: (Duration::ZERO, 0),
        }
    }

    fn run(&mut self, rate: f64, time: Duration) -> &mut Self {
        let end = self.time + time;
        while self.time < end {
            let rate = if self.controller.settings().polls() { rate * self.polled_rate } else { rate };
            let epoch = self.epoch(rate);
            self.time += epoch.duration;
            if let Some(settings) = self.controller.step(&epoch) {
                self.changes.push((self.time, settings));
            }
        }
        self
    }

    fn mode(&self) -> QueueMode {
        self.controller.settings().mode
    }

    /// CPU time and delay of an event at a rate, in µs, once the controller has settled.
    fn settled(latency_us: u64, cpu_percent: u16, rate: f64) -> (f64, f64) {
        let mut server = Self::new(latency_us, cpu_percent);
        server.run(rate, Duration::from_secs(2));
        server.figures(rate)
    }

    fn figures(&self, rate: f64) -> (f64, f64) {
        let epoch = self.epoch(rate);
        let events = epoch.events as f64;
        (epoch.cpu.as_secs_f64() * 1e6 / events, epoch.delays.median().as_secs_f64() * 1e6)
    }

    fn plain(rate: f64) -> (f64, f64) {
        Self::new(0, 0).figures(rate)
    }
}

const RATES: [f64; 8] = [2_000.0, 10_000.0, 30_000.0, 50_000.0, 70_000.0, 90_000.0, 110_000.0, 150_000.0];

#[test]
fn without_a_budget_neither_cpu_time_nor_delay_is_beyond_that_of_interrupts() {
    for rate in RATES {
        let ((cpu, delay), (plain_cpu, plain_delay)) = (Server::settled(0, 0, rate), Server::plain(rate));
        assert!(cpu <= plain_cpu * TOLERANCE, "{rate}: {cpu} beside {plain_cpu}");
        assert!(delay <= plain_delay * TOLERANCE, "{rate}: {delay} beside {plain_delay}");
    }
    assert_eq!(Server::settled(0, 0, 2_000.0), Server::plain(2_000.0));
    let ((cpu, _), (plain_cpu, _)) = (Server::settled(0, 0, 90_000.0), Server::plain(90_000.0));
    assert!(cpu < plain_cpu * 0.85, "{cpu} beside {plain_cpu}");
}

#[test]
fn a_larger_latency_budget_never_costs_more_cpu_time_and_is_kept() {
    for rate in RATES {
        let mut last = f64::INFINITY;
        for budget in [0, 20, 50, 100] {
            let (cpu, delay) = Server::settled(budget, 0, rate);
            assert!(cpu <= last * 1.001, "{budget} µs at {rate}: {cpu} after {last}");
            let most = (Server::plain(rate).1 + budget as f64) * TOLERANCE;
            assert!(delay <= most, "{budget} µs at {rate}: {delay}");
            last = cpu;
        }
    }
}

#[test]
fn a_load_that_returns_is_polled_at_once_with_the_interval_that_has_paid() {
    let ms = Duration::from_millis;
    for (latency, cpu) in [(0, 0), (50, 0), (0, 200)] {
        let mut server = Server::new(latency, cpu);
        server.run(90_000.0, ms(1_500));
        let settled = interval(server.controller.settings());
        assert_eq!(server.run(0.0, ms(300)).mode(), QueueMode::Plain);
        assert_eq!(server.run(90_000.0, ms(20)).mode(), QueueMode::Timed);
        assert_eq!(interval(server.controller.settings()), settled, "{latency} µs, {cpu} %");
        assert_eq!(server.run(0.0, ms(65_000)).mode(), QueueMode::Plain);
        assert_eq!(server.run(90_000.0, ms(20)).mode(), QueueMode::Plain, "it is measured again");
    }
}

#[test]
fn a_trial_that_the_load_ends_says_nothing_of_the_next_load() {
    let ms = Duration::from_millis;
    let mut server = Server::new(0, 0);
    server.run(90_000.0, ms(2_000)).run(0.0, ms(300)).run(120_000.0, ms(50));
    assert_eq!(server.run(120_000.0, ms(20)).controller.settings().why, Reason::Tries);
    server.run(0.0, ms(300)).run(90_000.0, ms(500));
    let plain = server.controller.memory.known(90_000.0).fresh_plain().unwrap();
    assert!((80_000.0..100_000.0).contains(&plain.rate), "{plain:?}");
}

#[test]
fn a_cpu_budget_buys_less_delay_and_is_kept() {
    for rate in RATES {
        let mut last = f64::INFINITY;
        for percent in [0, 50, 200] {
            let (cpu, delay) = Server::settled(0, percent, rate);
            let (plain_cpu, plain_delay) = Server::plain(rate);
            let most = plain_cpu * (1.0 + f64::from(percent) / 100.0) * TOLERANCE;
            assert!(cpu <= most, "{percent} % at {rate}: {cpu} beside {plain_cpu}");
            assert!(delay <= plain_delay * TOLERANCE && delay <= last * 1.001, "{percent} % at {rate}");
            last = delay;
        }
    }
    let mut server = Server::new(0, 200);
    server.run(50_000.0, Duration::from_secs(2));
    assert!(server.controller.settings().never_sleeps(), "{}", server.controller.settings());
}

#[test]
fn a_timer_that_was_late_once_does_not_end_polling() {
    for (latency, cpu) in [(0, 0), (0, 50)] {
        let mut server = Server::new(latency, cpu);
        server.run(90_000.0, Duration::from_millis(500));
        let late = Epoch { overslept: (Duration::from_millis(100), 200), ..server.epoch(90_000.0) };
        for _ in 0..20 {
            server.controller.step(&late);
        }
        server.run(0.0, Duration::from_secs(1));
        // Another load, at which nothing is known.
        server.run(105_000.0, Duration::from_secs(1));
        assert_eq!(
            server.mode(),
            QueueMode::Timed,
            "{latency} µs, {cpu} %: {}",
            server.controller.settings()
        );
    }
}

#[test]
fn a_cpu_budget_is_not_spent_where_it_buys_little() {
    let mut server = Server::new(0, 50);
    // An event waits for 10 % less, and takes 40 % more.
    server.run(45_000.0, Duration::from_millis(60));
    let (plain_cpu, plain_delay) = Server::plain(45_000.0);
    server.fixed_polled = Some((plain_cpu * 1.4, plain_delay * 0.9));
    server.run(45_000.0, Duration::from_secs(1));
    assert_eq!(server.mode(), QueueMode::Plain, "{:?}", server.changes);
    assert!(server.changes.len() > 1, "it was tried");
    server.fixed_polled = Some((plain_cpu * 1.4, plain_delay * 0.5));
    server.run(45_000.0, Duration::from_secs(3));
    assert_eq!(server.mode(), QueueMode::Timed, "{:?}", server.changes);
}

#[test]
fn a_step_of_the_load_is_followed_within_200_ms_and_then_interrupts_are_measured_twice_in_nine_seconds() {
    let mut server = Server::new(0, 0);
    server.run(2_000.0, Duration::from_secs(1));
    let step = server.time;
    server.run(90_000.0, Duration::from_millis(200));
    assert_eq!(server.mode(), QueueMode::Timed, "{:?}", server.changes);
    let settled = server.changes.len();
    server.run(90_000.0, Duration::from_secs(9));
    let plain: Vec<_> = server.changes[settled..].iter().filter(|(_, settings)| !settings.polls()).collect();
    assert!(plain.len() <= 2 && plain.iter().all(|(_, it)| it.why == Reason::Measures), "{plain:?}");
    server.run(0.0, Duration::from_millis(20));
    assert_eq!((server.mode(), server.controller.settings().why), (QueueMode::Plain, Reason::Idle));
    assert!(server.changes[0].0 > step);
}

#[test]
fn polling_that_costs_more_is_given_up_and_tried_later_each_time() {
    let mut server = Server::new(0, 0);
    server.poll_cost = 20e-6;
    server.run(70_000.0, Duration::from_secs(160));
    let tried = server.changes.iter().filter(|(_, settings)| settings.polls());
    let gaps: Vec<u64> =
        tried.clone().zip(tried.skip(1)).map(|(one, next)| (next.0 - one.0).as_secs()).collect();
    // A trial may try several intervals.
    let pauses: Vec<u64> = gaps.into_iter().filter(|gap| *gap > 0).collect();
    assert_eq!(pauses, [2, 4, 8, 16, 32, 64]);
    assert_eq!(server.mode(), QueueMode::Plain);
    assert!(server.controller.settings().why.comparison().is_some_and(|beside| beside.cpu > 150));
}

#[test]
fn a_load_at_which_polling_did_not_pay_is_left_alone_when_it_returns_and_says_why() {
    let mut server = Server::new(0, 0);
    server.poll_cost = 20e-6;
    server.run(70_000.0, Duration::from_secs(1));
    let refused = server.controller.settings().why;
    server.run(0.0, Duration::from_millis(300));
    assert_eq!(server.controller.settings().why, Reason::Idle);
    let changes = server.changes.len();
    server.run(70_000.0, Duration::from_millis(300));
    assert_eq!((server.controller.settings().why, server.changes.len()), (refused, changes));
    assert!(refused.comparison().is_some(), "{refused}");
}

#[test]
fn values_that_cannot_be_set_are_polled_with_only_while_that_pays() {
    let fixed = Some(QueueSettings::preset(100, micros(50), Duration::from_millis(20)));
    let mut server = Server::with(50, 0, ControllerLimits { fixed, ..ControllerLimits::default() });
    let (plain_cpu, plain_delay) = Server::plain(60_000.0);
    server.fixed_polled = Some((plain_cpu * 0.7, plain_delay + 60.0));
    server.run(60_000.0, Duration::from_secs(1));
    assert!(server.changes.len() > 1 && server.mode() == QueueMode::Plain, "{:?}", server.changes);
    assert!(server.controller.settings().why.comparison().is_some(), "{}", server.controller.settings());
    server.fixed_polled = Some((plain_cpu * 0.7, plain_delay * 0.5));
    server.run(60_000.0, Duration::from_secs(60));
    let settled = server.changes.len();
    server.run(60_000.0, Duration::from_secs(30));
    assert_eq!(server.mode(), QueueMode::Grace);
    assert!(server.changes.len() - settled <= 4, "{:?}", &server.changes[settled..]);
}

#[test]
fn clients_that_ask_the_less_the_longer_the_interval_is_do_not_make_the_mode_flip() {
    let mut server = Server::new(200, 0);
    for _ in 0..500 {
        let sleep = interval(server.controller.settings()).as_secs_f64();
        server.run(60_000.0 / (1.0 + sleep * 8e3), Duration::from_millis(10));
    }
    assert!(server.changes.len() <= 12, "{:?}", server.changes);
}

#[test]
fn a_trial_that_failed_once_is_repeated_at_once_and_its_load_polled_if_that_pays() {
    let mut server = Server::new(0, 0);
    server.run(70_000.0, Duration::from_millis(60));
    assert_eq!(server.mode(), QueueMode::Timed);
    // The machine is disturbed.
    server.poll_cost = 20e-6;
    while server.mode() == QueueMode::Timed {
        server.run(70_000.0, Duration::from_millis(10));
    }
    server.poll_cost = 0.0;
    server.run(70_000.0, Duration::from_millis(150));
    assert_eq!(server.mode(), QueueMode::Timed, "{:?}", server.changes);
}

#[test]
fn a_load_is_not_judged_by_interrupts_of_another_one() {
    let mut server = Server::new(0, 0);
    server.run(90_000.0, Duration::from_secs(2));
    let settled = server.changes.len();
    server.run(150_000.0, Duration::from_millis(200));
    assert!(server.changes[settled..].iter().any(|it| it.1.why == Reason::Measures), "{:?}", server.changes);
}

#[test]
fn a_step_of_the_load_during_a_trial_is_not_taken_for_what_polling_does() {
    let mut server = Server::new(0, 0);
    server.run(60_000.0, Duration::from_millis(60));
    assert_eq!(server.mode(), QueueMode::Timed);
    server.run(130_000.0, Duration::from_millis(300));
    let plain = server.controller.memory.known(130_000.0).fresh_plain().unwrap();
    assert!(plain.rate > 110_000.0, "{plain:?}");
}

#[test]
fn clients_that_wait_for_replies_do_not_make_the_mode_flip() {
    for (rate, polled_rate) in [(27_000.0, 0.3), (40_000.0, 0.5), (30_000.0, 1.8)] {
        let mut server = Server { polled_rate, ..Server::new(50, 0) };
        server.run(rate, Duration::from_secs(5));
        assert!(server.changes.len() <= 12, "{rate}: {:?}", server.changes);
    }
}

#[test]
fn interrupts_are_measured_again_for_a_moment_and_every_minute_in_the_end() {
    let mut server = Server::new(0, 0);
    server.run(80_000.0, Duration::from_secs(300));
    let measured: Vec<Duration> =
        server.changes.iter().filter(|(_, it)| !it.polls()).map(|it| it.0).collect();
    let gaps: Vec<u64> = measured.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
    assert_eq!(gaps, [4, 8, 16, 32, 64, 64, 64]);
    assert_eq!(server.mode(), QueueMode::Timed);
}

#[test]
fn a_load_that_falls_to_one_that_was_not_measured_goes_back_to_interrupts() {
    let mut server = Server::new(0, 0);
    server.run(100_000.0, Duration::from_secs(1));
    assert_eq!(server.mode(), QueueMode::Timed);
    server.run(5_000.0, Duration::from_millis(400));
    assert_eq!(server.mode(), QueueMode::Plain, "{:?}", server.changes.last());
}

#[test]
fn from_outside_the_kernels_timer_polls_and_waits_do_only_where_the_core_is_saturated() {
    let mut server = Server::with(50, 0, ControllerLimits::default());
    server.run(60_000.0, Duration::from_secs(1));
    let settings = *server.controller.settings();
    assert_eq!((settings.mode, settings.polls()), (QueueMode::Deferral, false), "{settings}");
    server.run(150_000.0, Duration::from_secs(1));
    let settings = *server.controller.settings();
    assert_eq!((settings.mode, settings.polls()), (QueueMode::Grace, true), "{settings}");
    assert_eq!(settings.defer_hard_irqs, QueueSettings::MOST_DEFERRALS);
    assert!(settings.poll_interval.is_zero());
    server.run(60_000.0, Duration::from_secs(1));
    assert_eq!(server.mode(), QueueMode::Deferral, "{}", server.controller.settings());
}

#[test]
fn from_outside_a_core_that_sleeps_never_is_polled_by_its_waits() {
    let mut server = Server::with(0, 0, ControllerLimits::default());
    let saturated = |server: &Server| {
        let epoch = server.epoch(95_000.0);
        // It hardly sleeps, and how long events wait is not known.
        let busy = if server.mode() == QueueMode::Plain { 0.97 } else { 0.7 };
        let cpu = Duration::from_millis(10).mul_f64(busy);
        Epoch { cpu, sleeps: 1, delays: all(30e-6, epoch.events), ..epoch }
    };
    for _ in 0..60 {
        let epoch = saturated(&server);
        server.controller.step(&epoch);
    }
    assert_eq!(server.mode(), QueueMode::Grace, "{}", server.controller.settings());
}

#[test]
fn a_small_ring_shortens_the_interval_and_the_time_without_a_poll() {
    let limits = ControllerLimits { ring_slots: 64, timer: PollTimer::Worker, ..ControllerLimits::default() };
    let mut server = Server::with(1_000, 0, limits);
    server.run(100_000.0, Duration::from_secs(1));
    let settings = server.controller.settings();
    assert_eq!(settings.mode, QueueMode::Timed);
    assert!(settings.poll_interval <= micros(160), "a quarter of 64 at 100,000/s: {settings}");
    assert!(settings.grace_time <= micros(640), "{settings:?}");
}

#[test]
fn values_that_others_have_set_are_kept_and_only_the_wait_changes() {
    let fixed = QueueSettings::preset(100, micros(50), Duration::from_millis(20));
    let mut server =
        Server::with(0, 0, ControllerLimits { fixed: Some(fixed), ..ControllerLimits::default() });
    server.run(90_000.0, Duration::from_secs(1));
    for (_, settings) in &server.changes {
        assert_eq!((settings.defer_hard_irqs, settings.grace_time), (100, micros(50)), "{settings:?}");
    }
    assert!(server.changes.iter().any(|(_, settings)| settings.polls()));
}

#[test]
fn polling_that_pays_is_kept_while_the_machine_is_slower_for_60_ms_and_given_up_if_it_stays_so() {
    let mut server = Server::new(0, 0);
    server.run(110_000.0, Duration::from_secs(4));
    assert_eq!(server.mode(), QueueMode::Timed);
    server.changes.clear();
    for (poll_cost, millis) in [(6e-6, 60), (0.0, 150), (6e-6, 60)] {
        server.poll_cost = poll_cost;
        server.run(110_000.0, Duration::from_millis(millis));
        assert!(server.changes.iter().all(|(_, settings)| settings.polls()), "{:?}", server.changes);
    }
    server.run(110_000.0, Duration::from_millis(500));
    assert_eq!(server.mode(), QueueMode::Plain);
}

#[test]
fn what_a_load_is_compared_with_was_measured_at_that_load() {
    let mut server = Server::new(0, 0);
    // Polling can't pay at either, so both are measured under interrupts.
    let (before, after) = (20_000.0, 25_000.0);
    server.run(before, Duration::from_secs(1));
    let measured = loop {
        server.run(after, Duration::from_millis(10));
        if let Some(plain) = server.controller.memory.known(after).fresh_plain() {
            break plain;
        }
    };
    let (cost, delay) = Server::plain(after);
    assert!((measured.cost * 1e6 / cost - 1.0).abs() < 0.01, "{measured:?} and {cost} µs");
    assert!((measured.delay * 1e6 / delay - 1.0).abs() < 0.05, "{measured:?} and {delay} µs");
}

#[test]
fn the_time_of_trials_is_counted_and_goes_on_when_the_controller_begins_anew() {
    let mut server = Server::new(0, 0);
    server.run(10_000.0, Duration::from_secs(1));
    assert_eq!((server.mode(), server.controller.trial_time()), (QueueMode::Plain, Duration::ZERO));
    server.run(90_000.0, Duration::from_secs(1));
    let trials = server.controller.trial_time();
    assert!((Duration::from_millis(50)..Duration::from_millis(500)).contains(&trials), "{trials:?}");
    server.controller.restart(ControllerLimits::default());
    assert_eq!(server.controller.trial_time(), trials);
}

#[test]
fn polling_that_has_failed_is_not_tried_again() {
    let mut server = Server::new(0, 0);
    server.run(90_000.0, Duration::from_secs(1));
    server.controller.stop_polling(Reason::Failed);
    server.run(90_000.0, Duration::from_secs(100));
    assert_eq!((server.mode(), server.controller.settings().why), (QueueMode::Plain, Reason::Failed));
}

#[test]
fn values_of_timed_mode_that_nobody_changes_are_polled_while_packets_come_and_left_to_interrupts_else() {
    let ms = Duration::from_millis;
    let mut server = Server::new(0, 0);
    server.run(90_000.0, ms(1_000));
    let timed = *server.controller.settings();
    let state = |server: &Server| (server.mode(), server.controller.settings().why);
    let unsupervised = |settings: QueueSettings| QueueSettings { why: Reason::Unsupervised, ..settings };
    server.controller.fix(unsupervised(timed));
    server.run(0.0, ms(300));
    assert_eq!(state(&server), (QueueMode::Plain, Reason::Unsupervised));
    assert_eq!(server.controller.settings().grace_time, timed.grace_time, "the queue has it still");
    // A second request had no answer either.
    server.controller.fix(unsupervised(*server.controller.settings()));
    server.run(90_000.0, ms(300));
    assert_eq!(state(&server), (QueueMode::Timed, Reason::Unsupervised));
    server.run(0.0, ms(300));
    server.controller.release();
    server.run(0.0, ms(300));
    assert!(server.controller.settings().grace_time.is_zero(), "plain values are asked for");
}

#[test]
fn a_grace_time_that_nobody_changes_is_polled_by_the_timer_alone() {
    let fixed = |mode, rate| {
        let mut server = Server::with(50, 0, ControllerLimits::default());
        server.run(rate, Duration::from_secs(1));
        assert_eq!(server.mode(), mode);
        server.controller.fix(QueueSettings { why: Reason::Unsupervised, ..*server.controller.settings() });
        server.run(rate, Duration::from_secs(1));
        let settings = server.controller.settings();
        (settings.mode, settings.polls(), settings.why)
    };
    assert_eq!(fixed(QueueMode::Grace, 150_000.0), (QueueMode::Plain, false, Reason::Unsupervised));
    assert_eq!(fixed(QueueMode::Deferral, 60_000.0), (QueueMode::Deferral, false, Reason::Unsupervised));
}

#[test]
fn a_load_that_varies_for_too_long_to_be_judged_is_left_to_interrupts() {
    let mut server = Server::new(0, 0);
    server.run(90_000.0, Duration::from_secs(1));
    assert_eq!(server.mode(), QueueMode::Timed);
    for _ in 0..120 {
        server.run(60_000.0, Duration::from_millis(10)).run(130_000.0, Duration::from_millis(10));
    }
    assert_eq!((server.mode(), server.controller.settings().why), (QueueMode::Plain, Reason::Measures));
}

#[test]
fn a_test_may_ask_for_polling_at_any_load() {
    let limits =
        ControllerLimits { has_to_pay: false, timer: PollTimer::Worker, ..ControllerLimits::default() };
    let mut server = Server::with(50, 0, limits);
    server.run(5_000.0, Duration::from_millis(300));
    assert_eq!((server.mode(), server.controller.settings().poll_interval), (QueueMode::Timed, micros(50)));
    server.run(0.0, Duration::from_millis(300));
    assert_eq!(server.mode(), QueueMode::Plain);
}

#[test]
fn interrupts_are_chosen_again_where_a_change_to_them_was_not_made() {
    let mut controller = PollingController::new(Budgets::default(), COSTS, ControllerLimits::default());
    // The controller has chosen interrupts; in effect is what was before.
    let in_effect = QueueSettings::timed(micros(20), micros(2_000), Reason::Tries);
    controller.supervisor_ended(in_effect);
    let window = Epoch { duration: Duration::from_millis(10), events: 1_000, ..Epoch::default() };
    let chosen = controller.step(&window).unwrap();
    assert_eq!((chosen.mode, chosen.why), (QueueMode::Plain, Reason::Unsupervised));
}
