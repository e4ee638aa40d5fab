//! The controller under loads whose measurements vary as on a machine.

use super::*;

/// A generator of pseudorandom numbers (SplitMix64), so that each run has the same ones.
struct Noise(u64);

impl Noise {
    /// From 0 to 1.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) as f64 / u64::MAX as f64
    }

    /// Normally distributed, with a mean of 0 and a deviation of 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

/// What a server's controller did at a steady load.
#[derive(Debug, Default)]
struct Course {
    /// Changes between interrupts and polling.
    changes: u32,
    /// The time in which polling was tried, or interrupts were measured again.
    trials: Duration,
    time: Duration,
}

impl Server {
    /// A load whose windows vary: arrivals are more bursty than independent ones, an event takes 4
    /// % more or less of CPU time and waits for 15 % longer or shorter, and four times a second the
    /// machine pauses for up to a millisecond.
    fn run_noisy(&mut self, rate: f64, time: Duration, noise: &mut Noise) -> Course {
        let (mut course, trials_before) = (Course::default(), self.controller.trial_time());
        while course.time < time {
            let before = *self.controller.settings();
            let mut epoch = self.epoch(rate);
            let share = (1.0 + noise.normal() * (2.0 / epoch.events as f64).sqrt()).max(0.0);
            let pause = if noise.uniform() < 0.04 { noise.uniform() * 1e-3 } else { 0.0 };
            let delay = epoch.delays.median().as_secs_f64() * (0.15 * noise.normal()).exp();
            epoch.events = (epoch.events as f64 * share).round() as u64;
            epoch.delays = all(delay, epoch.events);
            epoch.delays.add([Duration::ZERO, Duration::from_secs_f64(pause)], (rate * pause) as f32);
            epoch.packets = epoch.events;
            epoch.cpu = epoch.cpu.mul_f64(share * (1.0 + 0.04 * noise.normal())).min(epoch.duration);
            let changed =
                self.controller.step(&epoch).is_some_and(|settings| settings.polls() != before.polls());
            course.changes += u32::from(changed);
            course.time += epoch.duration;
        }
        course.trials = self.controller.trial_time() - trials_before;
        course
    }
}

/// The first minute is left out, in which refusals become longer. So are loads at which polling
/// takes as much as the budgets allow: there the mode may change some times in ten seconds.
#[test]
fn at_a_steady_load_the_mode_changes_once_in_ten_seconds_at_most_and_trials_take_one_percent() {
    for (latency, cpu) in [(0, 0), (50, 0), (0, 50)] {
        for rate in [22e3, 50e3, 60e3, 72e3, 84e3, 97e3, 113e3, 152e3] {
            let (mut server, mut noise) = (Server::new(latency, cpu), Noise(rate as u64));
            server.run_noisy(rate, Duration::from_secs(60), &mut noise);
            let course = server.run_noisy(rate, Duration::from_secs(200), &mut noise);
            assert!(course.changes <= 20, "{latency} µs, {cpu} % at {rate}: {course:?}");
            assert_eq!(
                course.trials.is_zero(),
                course.changes == 0,
                "{latency} µs, {cpu} % at {rate}: {course:?}"
            );
            assert!(course.trials <= course.time / 100, "{latency} µs, {cpu} % at {rate}: {course:?}");
        }
    }
}

#[test]
fn a_step_of_a_load_that_varies_is_followed_within_200_ms() {
    for (before, after, mode) in [
        (2e3, 90e3, QueueMode::Timed),
        (2e3, 150e3, QueueMode::Timed),
        (30e3, 110e3, QueueMode::Timed),
        (110e3, 5e3, QueueMode::Plain),
        (150e3, 20e3, QueueMode::Plain),
    ] {
        for seed in 0..9 {
            let (mut server, mut noise) = (Server::new(0, 0), Noise(seed));
            server.run_noisy(before, Duration::from_secs(5), &mut noise);
            assert_ne!(server.mode(), mode, "at {before}");
            let mut followed = Duration::ZERO;
            while server.mode() != mode {
                followed += server.run_noisy(after, Duration::from_millis(10), &mut noise).time;
                assert!(
                    followed <= Duration::from_millis(200),
                    "{before} to {after}: {}",
                    server.controller.settings()
                );
            }
        }
    }
}
