//! What the controller knows of each load: how plain interrupts did, and what polling was found to
//! be worth.

use std::collections::BTreeMap;
use std::time::Duration;

use super::measured::{Measured, differ};
use super::reason::Comparison;

/// The resolution of rates: 64 steps per factor of two, about 1 % each.
const PER_OCTAVE: f64 = 64.0;
/// Rates within 12 steps (14 %) of a known load count as that load.
pub(super) const NEAR: u32 = 12;
/// How long what was found at a load is trusted: twice as long each time it is found again.
/// Something may have disturbed the measurements, or the machine may change. So long a load may
/// also vary too much to be judged.
pub(super) const FIRST_TRUST: Duration = Duration::from_secs(2);
const LONGEST_TRUST: Duration = Duration::from_secs(64);
/// A change of the interrupts' delay by more than this factor resets the trust: the machine may
/// have changed.
const OTHER_MACHINE: f64 = 1.25;
/// A change of an event's CPU time under polling by more than this factor ends and resets the
/// trust.
const OTHER_COST: f64 = 1.1;
/// Both are compared only at rates within 5 % of each other: near saturation delays double within a
/// load.
const SAME_RATE: f64 = 0.05;

/// What is known of a load.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct KnownLoad {
    /// Plain interrupts, when they were in effect last.
    plain: Option<Measured>,
    /// How long events waited the two times before.
    earlier_delays: [Option<f64>; 2],
    /// Time since plain interrupts were last measured as a new reference. `Duration::MAX` forces a
    /// new measurement.
    age: Duration,
    /// What was found last: that polling pays, or how it did beside interrupts.
    found: Option<Result<(), Comparison>>,
    /// Whether that was found since then.
    judged: bool,
    /// How long it is trusted. Then interrupts are measured, and polling is tried, again.
    trust: Duration,
    /// Whether polling did not pay, other than before, and is tried once more.
    repeats: bool,
    /// The poll interval that has paid last. Zero: a wait that never sleeps.
    interval: Option<Duration>,
    /// The first measurement of polling with it, over all windows that are kept.
    polled: Option<Measured>,
    /// The shortest interval that exceeded the delay bound. Intervals from it on are excluded until
    /// the next reference measurement.
    barred_from: Option<Duration>,
    /// Whether the core was saturated in deferral mode.
    outgrows_deferral: bool,
}

impl KnownLoad {
    /// How polling did beside interrupts, if it is not tried for that reason.
    pub(super) fn refused(&self) -> Option<Comparison> {
        self.found?.err().filter(|_| self.judged && !self.is_stale())
    }

    /// Whether the reference measurement of plain interrupts is missing or has expired.
    pub(super) fn is_stale(&self) -> bool {
        self.plain.is_none() || self.age > if self.judged { self.trust } else { FIRST_TRUST }
    }

    /// The interval with which polling is tried first, if one has paid here.
    pub(super) fn interval(&self) -> Option<Duration> {
        self.interval.filter(|interval| self.refused().is_none() && !self.is_barred(*interval))
    }

    /// Whether polling with this interval was found to pay.
    pub(super) fn pays_with(&self, interval: Duration) -> bool {
        self.interval == Some(interval) && self.found == Some(Ok(()))
    }

    /// The reference measurement of plain interrupts, unless it has expired. The delay is the
    /// median of the last three measurements, so that a single disturbed one has no effect.
    pub(super) fn fresh_plain(&self) -> Option<Measured> {
        self.plain.filter(|_| !self.is_stale()).map(|plain| self.with_earlier(plain))
    }

    fn with_earlier(&self, plain: Measured) -> Measured {
        let mut delays = vec![plain.delay];
        delays.extend(self.earlier_delays.iter().flatten());
        delays.sort_unstable_by(f64::total_cmp);
        Measured { delay: delays[(delays.len() - 1) / 2], ..plain }
    }

    /// Interrupts are in effect, and were measured. Returns them with the median delay.
    pub(super) fn set_plain(&mut self, plain: Measured) -> Measured {
        if self.is_stale() {
            if let Some(before) = self.plain {
                // Clients that wait for replies saturate a core at the same rate as others don't.
                let is_like = before.is_saturated() == plain.is_saturated();
                let earlier = [Some(before.delay), self.earlier_delays[0]];
                self.earlier_delays = if is_like { earlier } else { Default::default() };
                // At another rate within the load they may differ, and where the core is saturated
                // they decide nothing.
                let decide = is_like && have_same_rate(&before, &plain) && !plain.is_saturated();
                if decide && differ(before.delay, plain.delay, OTHER_MACHINE) {
                    self.trust = Duration::ZERO;
                }
            }
            (self.judged, self.barred_from, self.outgrows_deferral, self.polled) = (false, None, false, None);
            self.age = Duration::ZERO;
        }
        self.plain = Some(plain);
        self.with_earlier(plain)
    }

    /// A trial begins beside the interrupts that were measured just now.
    pub(super) fn begin_trial(&mut self) {
        if !self.judged {
            self.age = Duration::ZERO;
        }
    }

    /// Polling pays with this interval, by what is measured with it.
    pub(super) fn accept(&mut self, interval: Duration, polled: &Measured) {
        if self.interval.replace(interval) != Some(interval) {
            self.polled = None;
        }
        if polled.is_settled() {
            let first = self.polled.get_or_insert(*polled);
            let has_changed = differ(first.cost, polled.cost, OTHER_COST) && have_same_rate(first, polled);
            if has_changed && self.age > FIRST_TRUST {
                (self.age, self.trust) = (Duration::MAX, Duration::ZERO);
            }
        }
        if !self.judged || self.found != Some(Ok(())) {
            self.find(Ok(()));
        }
    }

    /// Polling does not pay. Where that was not found before, interrupts are measured and it is
    /// tried once more at once.
    pub(super) fn refuse(&mut self, comparison: Comparison) {
        if self.repeats || matches!(self.found, Some(Err(_))) {
            self.find(Err(comparison));
        } else {
            (self.repeats, self.age) = (true, Duration::MAX);
        }
    }

    /// What is found again is trusted for longer, and what differs from before for the first time
    /// again.
    fn find(&mut self, found: Result<(), Comparison>) {
        let is_same = self.found.is_some_and(|before| before.is_ok() == found.is_ok());
        self.trust = if is_same { (self.trust * 2).clamp(FIRST_TRUST, LONGEST_TRUST) } else { FIRST_TRUST };
        (self.found, self.judged, self.repeats) = (Some(found), true, false);
    }

    /// With this interval events wait for too long.
    pub(super) fn bar_from(&mut self, interval: Duration) {
        self.barred_from = Some(interval);
    }

    pub(super) fn is_barred(&self, interval: Duration) -> bool {
        self.barred_from.is_some_and(|from| interval >= from)
    }

    /// The core was saturated in deferral mode.
    pub(super) fn outgrow_deferral(&mut self) {
        self.outgrows_deferral = true;
    }

    pub(super) fn outgrows_deferral(&self) -> bool {
        self.outgrows_deferral
    }
}

fn have_same_rate(one: &Measured, other: &Measured) -> bool {
    !differ(one.rate, other.rate, 1.0 + SAME_RATE)
}

/// What is known of all loads.
#[derive(Debug, Clone, Default)]
pub(super) struct LoadMemory {
    /// By the step of the rate at which each was measured first.
    loads: BTreeMap<u32, KnownLoad>,
    present: u32,
}

impl LoadMemory {
    /// Lets time pass.
    pub(super) fn pass(&mut self, time: Duration) {
        self.loads.values_mut().for_each(|load| load.age = load.age.saturating_add(time));
    }

    /// The load has this rate now. Returns by how many steps it is another one than before.
    pub(super) fn follow(&mut self, rate: f64) -> u32 {
        let now = self.load(rate);
        std::mem::replace(&mut self.present, now).abs_diff(now)
    }

    /// The known load that the rate is of: the present one, so that a rate between two is not of
    /// either in turn, or the nearest. A new one otherwise.
    fn load(&self, rate: f64) -> u32 {
        let step = (rate.max(1.0).log2() * PER_OCTAVE).round() as u32;
        let near = self.loads.range(step.saturating_sub(NEAR)..=step + NEAR).map(|(load, _)| *load);
        near.min_by_key(|load| (*load != self.present, load.abs_diff(step))).unwrap_or(step)
    }

    /// The load of so many events a second.
    pub(super) fn at(&mut self, rate: f64) -> &mut KnownLoad {
        self.loads.entry(self.load(rate)).or_default()
    }

    /// What is known of it.
    pub(super) fn known(&self, rate: f64) -> KnownLoad {
        self.loads.get(&self.load(rate)).copied().unwrap_or_default()
    }

    /// Calls `change` for the loads of both rates, once if they are the same.
    pub(super) fn each_at(&mut self, rates: [f64; 2], mut change: impl FnMut(&mut KnownLoad)) {
        let [one, other] = rates.map(|rate| self.load(rate));
        change(self.loads.entry(one).or_default());
        if other != one {
            change(self.loads.entry(other).or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::epoch::Epoch;
    use super::*;

    const WORSE: Comparison = Comparison { cpu: 120, delay: 110 };

    /// What was found is trusted for so long, then interrupts are measured.
    fn expires_after(memory: &mut LoadMemory, trust: Duration) -> bool {
        memory.pass(trust);
        let trusted = !memory.known(50_000.0).is_stale();
        memory.pass(Duration::from_millis(1));
        let is_stale = memory.known(50_000.0).is_stale();
        memory.at(50_000.0).set_plain(Measured { rate: 50_000.0, ..Measured::default() });
        trusted && is_stale
    }

    #[test]
    fn what_is_found_again_at_a_load_is_trusted_twice_as_long_each_time() {
        let (mut memory, interval) = (LoadMemory::default(), Duration::from_micros(20));
        memory.at(50_000.0).set_plain(Measured::default());
        memory.at(50_000.0).refuse(WORSE);
        assert!(memory.known(50_000.0).is_stale(), "interrupts are measured and polling is tried once more");
        memory.at(50_000.0).set_plain(Measured::default());
        for seconds in [2, 4, 8] {
            memory.at(50_000.0).refuse(WORSE);
            assert_eq!(memory.known(50_500.0).refused(), Some(WORSE));
            assert_eq!(memory.known(100_000.0).refused(), None);
            assert!(expires_after(&mut memory, Duration::from_secs(seconds)), "{seconds} s");
            assert_eq!(memory.known(50_000.0).refused(), None);
        }
        for seconds in [2, 4, 8, 16, 32, 64, 64] {
            memory.at(50_000.0).accept(interval, &Measured::default());
            memory.at(50_000.0).accept(interval, &Measured::default());
            assert_eq!(memory.known(50_000.0).interval(), Some(interval));
            assert!(expires_after(&mut memory, Duration::from_secs(seconds)), "{seconds} s");
        }
        memory.at(50_000.0).refuse(WORSE);
        assert!(memory.known(50_000.0).is_stale(), "it has paid before");
    }

    #[test]
    fn what_is_found_beside_interrupts_that_have_changed_is_trusted_for_the_first_time_again() {
        let mut memory = LoadMemory::default();
        let load = |memory: &mut LoadMemory, delay: f64, busy: f64| {
            memory.at(50_000.0).set_plain(Measured { rate: 50_000.0, delay, busy, ..Measured::default() });
            memory.at(50_000.0).accept(Duration::from_micros(20), &Measured::default());
            let mut seconds = 0;
            while !memory.known(50_000.0).is_stale() {
                memory.pass(Duration::from_secs(1));
                seconds += 1;
            }
            seconds - 1
        };
        let trusted = [40e-6, 45e-6, 40e-6, 80e-6, 75e-6, 40e-6].map(|delay| load(&mut memory, delay, 0.5));
        assert_eq!(trusted, [2, 4, 8, 2, 4, 2]);
        // On a saturated core delays decide nothing, and at another rate they may differ.
        assert_eq!([80e-6, 40e-6].map(|delay| load(&mut memory, delay, 1.0)), [4, 8]);
        load(&mut memory, 40e-6, 0.5);
        memory.at(50_000.0).set_plain(Measured {
            rate: 54_000.0,
            delay: 80e-6,
            busy: 0.5,
            ..Measured::default()
        });
        memory.at(50_000.0).accept(Duration::from_micros(20), &Measured::default());
        memory.pass(Duration::from_secs(16));
        assert!(!memory.known(50_000.0).is_stale());
    }

    #[test]
    fn interrupts_are_measured_again_where_what_has_paid_takes_more_or_less_than_at_first() {
        let interval = Duration::from_micros(20);
        let polled = |cost, events| {
            let mut measured = Measured::default();
            let cpu = Duration::from_secs_f64(cost * events as f64);
            let epoch = Epoch { duration: Duration::from_millis(10), events, cpu, ..Epoch::default() };
            (0..20).for_each(|_| measured.take(&epoch));
            measured
        };
        let cases = [
            (5e-6, 500, false),
            (5.3e-6, 500, false),
            (5.6e-6, 500, true),
            (4.5e-6, 500, true),
            (5.6e-6, 450, false),
        ];
        for (cost, events, is_stale) in cases {
            let mut memory = LoadMemory::default();
            memory.at(50_000.0).set_plain(Measured { rate: 50_000.0, ..Measured::default() });
            for _ in 0..2 {
                memory.at(50_000.0).accept(interval, &polled(5e-6, 500));
                memory.pass(FIRST_TRUST);
            }
            memory.at(50_000.0).find(Ok(()));
            memory.at(50_000.0).accept(interval, &polled(cost, events));
            assert_eq!(memory.known(50_000.0).is_stale(), is_stale, "{cost}, {events}");
        }
    }

    #[test]
    fn a_rate_between_two_loads_stays_of_the_one_that_it_was_of_and_returns_to_the_nearest() {
        let (mut memory, micros) = (LoadMemory::default(), Duration::from_micros);
        memory.at(90_000.0).accept(micros(10), &Measured::default());
        memory.at(110_000.0).accept(micros(20), &Measured::default());
        for (rate, interval) in
            [(90_000.0, 10), (100_000.0, 10), (110_000.0, 20), (100_000.0, 20), (99_000.0, 20)]
        {
            memory.follow(rate);
            assert_eq!(memory.known(rate).interval(), Some(micros(interval)), "{rate}");
        }
        assert!(memory.follow(100_000.0) == 0 && memory.follow(1_000.0) > NEAR);
        assert_eq!(memory.known(98_000.0).interval(), Some(micros(10)));
        assert_eq!(memory.known(101_000.0).interval(), Some(micros(20)));
        assert!(memory.known(130_000.0).interval().is_none() && memory.known(75_000.0).interval().is_none());
    }

    #[test]
    fn an_interval_beyond_a_bound_is_barred_with_longer_ones_at_its_load_until_interrupts_are_measured() {
        let (mut memory, interval) = (LoadMemory::default(), Duration::from_micros(20));
        memory.at(50_000.0).set_plain(Measured::default());
        memory.at(50_000.0).bar_from(interval);
        let known = memory.known(50_000.0);
        assert!(known.is_barred(interval) && known.is_barred(interval * 2));
        assert!(!known.is_barred(interval / 2) && !memory.known(100_000.0).is_barred(interval));
        // They stay in effect, because no other interval is left.
        for _ in 0..200 {
            memory.pass(FIRST_TRUST / 200);
            memory.at(50_000.0).set_plain(Measured::default());
            assert!(memory.known(50_000.0).is_barred(interval));
        }
        memory.pass(Duration::from_millis(1));
        memory.at(50_000.0).set_plain(Measured::default());
        assert!(!memory.known(50_000.0).is_barred(interval));
    }

    #[test]
    fn the_delay_of_interrupts_is_the_median_of_three_times() {
        let mut memory = LoadMemory::default();
        let measured = |delay| Measured { rate: 50_000.0, delay, ..Measured::default() };
        // The first time the machine was disturbed.
        for (delay_now, median) in [(50.0, 50.0), (10.0, 10.0), (12.0, 12.0), (11.0, 11.0)] {
            memory.at(50_000.0).set_plain(measured(90.0));
            // What is measured at once takes the place of what was.
            memory.at(50_000.0).set_plain(measured(delay_now));
            assert_eq!(memory.known(50_000.0).fresh_plain().map(|plain| plain.delay), Some(median));
            assert!(memory.known(65_000.0).fresh_plain().is_none());
            memory.pass(FIRST_TRUST + Duration::from_millis(1));
            assert!(memory.known(50_000.0).fresh_plain().is_none());
        }
    }
}
