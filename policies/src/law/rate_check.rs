//! Whether polling serves fewer requests than interrupts, where clients wait for answers before they ask again.

use std::time::Duration;

use super::cost_comparison::Case;

/// A load that is back this soon after polling has ended was not gone.
const AT_ONCE: Duration = Duration::from_millis(400);
/// How often in a row it must be back at once: a load of the clients' own may go up and down, too.
const TIMES: u32 = 2;
/// The rate under polling over the rate without it, if polling has cut it. Less is a load that had ended, more a
/// load that varies about a threshold.
const CUT: std::ops::RangeInclusive<f64> = 0.6..=0.85;
/// The weight of the newest window in the smoothed rate.
const SMOOTHING: f64 = 0.5;

/// Clients that wait for an answer ask less often where polling delays answers. The load then seems to fall, polling ends
/// for that reason, and the load is back: without a memory of it the law would go back and forth for ever.
#[derive(Debug, Clone, Default)]
pub(super) struct RateCheck {
    /// Events per second.
    rate: f64,
    cases: [CaseRate; 3],
}

#[derive(Debug, Clone, Copy, Default)]
struct CaseRate {
    /// The rate when the case ended because the load fell, and how long ago that was.
    left: Option<(f64, Duration)>,
    /// How often in a row its load was back at once.
    returns: u32,
}

impl RateCheck {
    /// Takes in a window's rate, in events per second.
    pub(super) fn record(&mut self, rate: f64, duration: Duration) {
        self.rate += SMOOTHING * (rate - self.rate);
        for (_, ago) in self.cases.iter_mut().filter_map(|case| case.left.as_mut()) {
            *ago = ago.saturating_add(duration);
        }
    }

    /// A case to poll is over because the load fell.
    pub(super) fn leave(&mut self, case: Case) {
        self.cases[case as usize].left = Some((self.rate, Duration::ZERO));
    }

    /// A case is to begin. Whether it has cut the rate lately, so that it should not.
    pub(super) fn has_cut(&mut self, case: Case) -> bool {
        let now = self.rate;
        let case = &mut self.cases[case as usize];
        let Some((rate, ago)) = case.left.take() else { return false };
        let is_cut = ago <= AT_ONCE && CUT.contains(&(rate / now));
        case.returns = if is_cut { case.returns + 1 } else { 0 };
        case.returns >= TIMES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_millis(10);

    /// Polls at one rate, then leaves, and is about to poll again after `windows` at the other.
    fn back(check: &mut RateCheck, polling: f64, without: f64, windows: u32) -> bool {
        (0..20).for_each(|_| check.record(polling, WINDOW));
        check.leave(Case::Saturated);
        (0..windows).for_each(|_| check.record(without, WINDOW));
        check.has_cut(Case::Saturated)
    }

    #[test]
    fn a_rate_that_is_back_twice_without_polling_was_cut_by_it() {
        let mut check = RateCheck::default();
        assert!(!back(&mut check, 70.0, 100.0, 10));
        assert!(back(&mut check, 70.0, 100.0, 10));
    }

    #[test]
    fn a_load_that_ended_or_varies_a_little_or_comes_back_later_was_not_cut() {
        for (polling, without, windows) in [(10.0, 100.0, 10), (92.0, 100.0, 10), (70.0, 100.0, 100)] {
            let mut check = RateCheck::default();
            assert!((0..5).all(|_| !back(&mut check, polling, without, windows)), "{polling} {without}");
        }
        // A return of another kind begins the count again.
        let mut check = RateCheck::default();
        assert!(!back(&mut check, 70.0, 100.0, 10));
        assert!(!back(&mut check, 10.0, 100.0, 10));
        assert!(!back(&mut check, 70.0, 100.0, 10));
    }
}
