//! What the law knows of each load: how plain interrupts did, and what polling was found to be worth.

use std::collections::BTreeMap;
use std::time::Duration;

use super::measured::Measured;

/// Loads a factor of two in the rate: one each 19 %.
const PER_OCTAVE: f64 = 4.0;
/// How long polling is not tried again at a load after it did not pay twice in succession; shorter by as long as it has paid meanwhile.
/// How long an interval that exceeded a bound is not chosen, and longer ones. After which time interrupts are measured again,
/// because something may have disturbed the measurement, or the machine may have changed. All of them are twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

/// What is known of a load.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KnownLoad {
    /// Plain interrupts, when they were in effect last.
    plain: Option<Measured>,
    /// How long ago that was.
    age: Duration,
    /// After which time they are measured again: the first time if it is zero.
    most_age: Duration,
    /// How long events waited the two times before.
    earlier_delays: [Option<f64>; 2],
    /// The poll interval that has paid last, unless polling was refused since. Zero: a wait that never sleeps.
    pub(super) interval: Option<Duration>,
    /// Whether polling did not pay when it was in effect last. A disturbance of the machine may have caused that, so interrupts are
    /// measured and polling is tried once more.
    failed: bool,
    /// For how long polling is not tried.
    refused: Duration,
    next_pause: Duration,
    /// The interval that delayed events by too much, and for how long it and longer ones are not chosen.
    barred_from: Option<(Duration, Duration)>,
    next_bar: Duration,
    /// For how long deferral mode is not chosen, because the core was saturated in it.
    outgrows_deferral: Duration,
}

impl KnownLoad {
    /// Whether polling did not pay when it was tried, some seconds ago.
    pub(super) fn is_refused(&self) -> bool {
        !self.refused.is_zero()
    }

    /// Whether interrupts have to be measured again.
    pub(super) fn is_stale(&self) -> bool {
        self.plain.is_none() || self.age > self.most_age.max(FIRST_PAUSE)
    }

    /// Interrupts at this load, unless they have to be measured again. Their delay is the median of the last three times: one in which the
    /// machine was disturbed doesn't decide.
    pub(super) fn fresh_plain(&self) -> Option<Measured> {
        let plain = self.plain.filter(|_| !self.is_stale())?;
        let mut delays = vec![plain.delay];
        delays.extend(self.earlier_delays.iter().flatten());
        delays.sort_unstable_by(f64::total_cmp);
        Some(Measured { delay: delays[(delays.len() - 1) / 2], ..plain })
    }

    /// Interrupts are in effect, and were measured.
    pub(super) fn set_plain(&mut self, plain: Measured) {
        if let Some(before) = self.plain.filter(|_| self.is_stale()) {
            // Clients that wait for replies saturate a core at the same rate as others don't.
            let is_like = before.is_saturated() == plain.is_saturated();
            let earlier = [Some(before.delay), self.earlier_delays[0]];
            self.earlier_delays = if is_like { earlier } else { Default::default() };
            take_pause(&mut self.most_age);
        }
        (self.plain, self.age) = (Some(plain), Duration::ZERO);
    }

    /// Polling did not pay.
    pub(super) fn fail(&mut self) {
        // Interrupts are measured before the next trial.
        self.age = Duration::MAX;
        if !self.failed {
            self.failed = true;
            return;
        }
        self.refused = take_pause(&mut self.next_pause);
        self.interval = None;
    }

    /// With this interval events wait for too long.
    pub(super) fn bar_from(&mut self, interval: Duration) {
        self.barred_from = Some((interval, take_pause(&mut self.next_bar)));
    }

    pub(super) fn is_barred(&self, interval: Duration) -> bool {
        self.barred_from.is_some_and(|(from, _)| interval >= from)
    }

    /// The core was saturated in deferral mode.
    pub(super) fn outgrow_deferral(&mut self) {
        self.outgrows_deferral = LONGEST_PAUSE;
    }

    pub(super) fn outgrows_deferral(&self) -> bool {
        !self.outgrows_deferral.is_zero()
    }

    fn pass(&mut self, time: Duration) {
        self.outgrows_deferral = self.outgrows_deferral.saturating_sub(time);
        self.refused = self.refused.saturating_sub(time);
        self.age = self.age.saturating_add(time);
        self.barred_from = self.barred_from.and_then(|(from, left)| Some((from, left.checked_sub(time)?)));
    }

    /// Polling pays with this interval.
    pub(super) fn accept(&mut self, interval: Duration) {
        self.interval = Some(interval);
        self.failed = false;
    }
}

/// Returns a pause that begins now. The next one takes twice as long.
fn take_pause(next: &mut Duration) -> Duration {
    let pause = (*next).max(FIRST_PAUSE);
    *next = (pause * 2).min(LONGEST_PAUSE);
    pause
}

/// What is known of all loads.
#[derive(Debug, Clone, Default)]
pub(super) struct LoadMemory {
    loads: BTreeMap<u32, KnownLoad>,
    /// The bucket of the present load.
    present: u32,
}

impl LoadMemory {
    /// Lets time pass.
    pub(super) fn pass(&mut self, time: Duration) {
        self.loads.values_mut().for_each(|load| load.pass(time));
    }

    /// Polling was in effect for some time at the present load.
    pub(super) fn polled(&mut self, time: Duration) {
        let load = self.loads.entry(self.present).or_default();
        if load.interval.is_some() {
            load.next_pause = load.next_pause.saturating_sub(time);
        }
    }

    /// The load has this rate now.
    pub(super) fn follow(&mut self, rate: f64) {
        self.present = self.bucket(rate);
    }

    /// That of the present load, if the rate is within a bucket of it: one between two buckets would be taken for either in turn.
    fn bucket(&self, rate: f64) -> u32 {
        let position = rate.max(1.0).log2() * PER_OCTAVE;
        let is_near = (position - f64::from(self.present)).abs() <= 1.0;
        if is_near { self.present } else { position.round() as u32 }
    }

    /// The load of so many events a second.
    pub(super) fn at(&mut self, rate: f64) -> &mut KnownLoad {
        self.loads.entry(self.bucket(rate)).or_default()
    }

    /// What is known of it.
    pub(super) fn known(&self, rate: f64) -> KnownLoad {
        self.loads.get(&self.bucket(rate)).copied().unwrap_or_default()
    }

    /// Calls `change` for the loads of both rates, once if they are the same.
    pub(super) fn each_at(&mut self, rates: [f64; 2], mut change: impl FnMut(&mut KnownLoad)) {
        let [one, other] = rates.map(|rate| self.bucket(rate));
        change(self.loads.entry(one).or_default());
        if other != one {
            change(self.loads.entry(other).or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_holds_at_its_load_only_and_twice_as_long_each_time() {
        let mut memory = LoadMemory::default();
        memory.at(50_000.0).fail();
        assert!(!memory.at(50_000.0).is_refused(), "it is tried once more");
        for seconds in [2, 4, 8, 16, 32, 64, 64] {
            memory.at(50_000.0).fail();
            memory.pass(Duration::from_secs(seconds) - Duration::from_millis(1));
            assert!(memory.at(50_000.0).is_refused() && memory.at(50_500.0).is_refused());
            assert!(!memory.at(100_000.0).is_refused());
            memory.pass(Duration::from_millis(1));
            assert!(!memory.at(50_000.0).is_refused());
        }
        memory.at(50_000.0).accept(Duration::from_micros(20));
        memory.follow(50_000.0);
        memory.polled(Duration::from_secs(1));
        memory.follow(100_000.0);
        memory.polled(Duration::from_secs(64));
        memory.at(50_000.0).fail();
        memory.at(50_000.0).fail();
        memory.pass(Duration::from_secs(62));
        assert!(memory.at(50_000.0).is_refused(), "it has paid for a second only");
        memory.pass(Duration::from_secs(1));
        memory.at(50_000.0).accept(Duration::from_micros(20));
        memory.follow(50_000.0);
        memory.polled(Duration::from_secs(64));
        memory.at(50_000.0).fail();
        memory.at(50_000.0).fail();
        memory.pass(Duration::from_secs(2));
        assert!(!memory.at(50_000.0).is_refused(), "it has paid for a minute since");
    }

    #[test]
    fn a_rate_that_varies_between_two_loads_is_of_the_one_that_it_was_of_before() {
        let mut memory = LoadMemory::default();
        // They are 62.44 and 62.55 quarters of an octave.
        for (rate, near) in [(51_000.0, 50_000.0), (50_000.0, 51_000.0)] {
            memory.follow(1_000.0);
            memory.follow(rate);
            memory.at(rate).fail();
            memory.at(rate).fail();
            assert!(memory.known(near).is_refused());
            memory.pass(Duration::from_secs(64));
        }
        assert!(!memory.known(62_000.0).is_refused());
    }

    #[test]
    fn an_interval_beyond_a_bound_is_barred_with_those_beyond_it_at_its_load_and_twice_as_long_each_time() {
        let (mut memory, interval) = (LoadMemory::default(), Duration::from_micros(20));
        for seconds in [2, 4, 8, 16, 32, 64, 64] {
            memory.at(50_000.0).bar_from(interval);
            memory.pass(Duration::from_secs(seconds));
            let known = memory.known(50_000.0);
            assert!(known.is_barred(interval) && known.is_barred(interval * 2));
            assert!(!known.is_barred(interval / 2) && !memory.known(100_000.0).is_barred(interval));
            memory.pass(Duration::from_millis(1));
            assert!(!memory.known(50_000.0).is_barred(interval));
        }
    }

    #[test]
    fn interrupts_are_measured_again_at_a_load_and_twice_as_late_each_time() {
        let mut memory = LoadMemory::default();
        let measured = |delay| Measured { rate: 1_000.0, delay, ..Measured::default() };
        let delay = |memory: &LoadMemory, rate| Some(memory.known(rate).fresh_plain()?.delay);
        // The first time the machine was disturbed.
        for (seconds, delay_now, median) in
            [(2, 50.0, 50.0), (4, 10.0, 10.0), (8, 12.0, 12.0), (16, 11.0, 11.0)]
        {
            memory.at(1_000.0).set_plain(measured(90.0));
            // What is measured at once takes the place of what was.
            memory.at(1_000.0).set_plain(measured(delay_now));
            assert_eq!((delay(&memory, 1_000.0), delay(&memory, 1_300.0)), (Some(median), None));
            memory.pass(Duration::from_secs(seconds));
            assert_eq!(delay(&memory, 1_000.0), Some(median));
            memory.pass(Duration::from_millis(1));
            assert!(memory.known(1_000.0).is_stale() && memory.known(4_000.0).is_stale());
        }
    }
}
