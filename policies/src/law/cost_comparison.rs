//! Whether polling costs less than interrupts, by measurement.

use std::collections::VecDeque;
use std::time::Duration;

use super::reason::Reason;

/// A cost is the median of this number of windows: single ones are disturbed by whatever else runs.
const WINDOWS: usize = 5;
/// How many windows are enough to give a mode up.
const ENOUGH_WINDOWS: usize = 3;
/// How long a mode is not tried again after it has cost more; twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(8);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// By how much the busy share may differ at what counts as the same load.
const SAME_LOAD: f64 = 0.1;

/// The CPU time for an event under interrupts and under polling, and what follows from them.
#[derive(Debug, Clone)]
pub(super) struct CostComparison {
    /// Costs of the last windows in the present mode, in seconds.
    present: VecDeque<f64>,
    /// The cost under interrupts when they were last in effect, in seconds.
    plain: Option<f64>,
    /// The busy share under interrupts when they were last in effect.
    plain_busy: Option<f64>,
    pauses: [Pause; 3],
    /// The mode given up last, until the cost under interrupts has been measured again.
    given_up: Option<GivenUp>,
    /// For how long no pause is taken back.
    no_retrial: Duration,
}

/// A mode that was given up because of a cost under interrupts that was measured earlier. The machine may have become
/// slower since: the next windows under interrupts show it.
#[derive(Debug, Clone, Copy)]
struct GivenUp {
    case: Case,
    /// Above this cost under interrupts, in seconds, giving up was wrong.
    plain_above: f64,
}

/// A reason to poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Case {
    StaysBusy,
    Saturated,
    WithinBudget,
}

impl Case {
    /// The case of a reason; `None` for reasons not to poll.
    pub(super) fn of(reason: Reason) -> Option<Self> {
        match reason {
            Reason::StaysBusy { .. } => Some(Self::StaysBusy),
            Reason::Saturated { .. } => Some(Self::Saturated),
            Reason::WithinBudget { .. } => Some(Self::WithinBudget),
            _ => None,
        }
    }
}

/// After polling has cost more in a case, it is not tried at that load for a while.
#[derive(Debug, Clone, Copy)]
struct Pause {
    left: Duration,
    /// The next pause, if it costs more again.
    next: Duration,
    /// The busy share at which it cost more: as estimated while it polled, and as it was under interrupts before. Where
    /// polling costs more, a saturated core does less, and the estimate is too low.
    busy: [f64; 2],
}

impl Pause {
    const NONE: Self = Self { left: Duration::ZERO, next: FIRST_PAUSE, busy: [0.0; 2] };
}

impl Default for CostComparison {
    fn default() -> Self {
        Self {
            present: VecDeque::new(),
            plain: None,
            plain_busy: None,
            pauses: [Pause::NONE; 3],
            given_up: None,
            no_retrial: Duration::ZERO,
        }
    }
}

impl CostComparison {
    /// Takes in a window's cost in the present mode, and the busy share if that is interrupts.
    pub(super) fn record(&mut self, cost: Option<f64>, duration: Duration, plain_busy: Option<f64>) {
        for pause in &mut self.pauses {
            pause.left = pause.left.saturating_sub(duration);
        }
        self.no_retrial = self.no_retrial.saturating_sub(duration);
        self.present.extend(cost);
        if self.present.len() > WINDOWS {
            self.present.pop_front();
        }
        if plain_busy.is_some() {
            self.plain_busy = plain_busy;
            self.plain = self.median().or(self.plain);
            self.judge_again();
        }
    }

    /// Takes back a pause if interrupts turn out to cost more now, too. At most once in 8 s, so that a
    /// machine whose costs go up and down does not change its mode all the time.
    fn judge_again(&mut self) {
        if self.present.len() < ENOUGH_WINDOWS {
            return;
        }
        let (Some(given_up), Some(plain)) = (self.given_up.take(), self.plain) else { return };
        if plain > given_up.plain_above && self.no_retrial.is_zero() {
            self.no_retrial = FIRST_PAUSE;
            self.pauses[given_up.case as usize] = Pause::NONE;
        }
    }

    /// The mode changes, so costs of the present one no longer count.
    pub(super) fn change_mode(&mut self) {
        self.present.clear();
    }

    /// Polling has cost more than the share `most` of the cost under interrupts, at this busy share.
    pub(super) fn pause(&mut self, case: Case, busy: f64, most: f64) {
        self.given_up = self.median().map(|cost| GivenUp { case, plain_above: cost / most });
        let shares = [busy, self.plain_busy.unwrap_or(busy)];
        let pause = &mut self.pauses[case as usize];
        (pause.left, pause.busy) = (pause.next, shares);
        pause.next = (pause.next * 2).min(LONGEST_PAUSE);
    }

    /// The cost of an event under interrupts, in seconds, if that is known.
    pub(super) fn plain(&self) -> Option<f64> {
        self.plain
    }

    /// Whether polling has cost more than interrupts lately, at about this busy share.
    pub(super) fn is_paused(&self, case: Case, busy: f64) -> bool {
        let pause = &self.pauses[case as usize];
        !pause.left.is_zero() && pause.busy.iter().any(|paused| (busy - paused).abs() < SAME_LOAD)
    }

    /// Whether the present mode, which polls, costs more than the share `most` of the cost under interrupts; once enough
    /// was measured.
    pub(super) fn costs_more(&mut self, case: Case, most: f64) -> bool {
        let (Some(plain), ENOUGH_WINDOWS.., Some(present)) = (self.plain, self.present.len(), self.median())
        else {
            return false;
        };
        let costs_more = present > plain * most;
        if !costs_more {
            self.pauses[case as usize].next = FIRST_PAUSE;
        }
        costs_more
    }

    fn median(&self) -> Option<f64> {
        let mut costs: Vec<f64> = self.present.iter().copied().collect();
        costs.sort_unstable_by(f64::total_cmp);
        costs.get(costs.len() / 2).copied()
    }
}
