//! How a queue gets from the settings in effect to others: first its values, which the supervisor
//! sets, then the waits that poll it.

use std::sync::Arc;
use std::time::Duration;

use super::queue_requests::QueueRequests;
use crate::controller::{QueueSettings, Reason};

/// How long nothing is asked for after the supervisor could not set a queue's values: the interface
/// may be down for a moment. Twice as long each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(64);
/// How long the supervisor may take to set a queue's values. It takes some 100 µs, if it is alive.
const DEADLINE: Duration = Duration::from_secs(1);

/// The settings of a queue, and how far newer ones are. Times are on the owner's clock.
#[derive(Debug)]
pub struct QueueChange {
    queue: u32,
    /// Where the supervisor takes requests; `None` if the queue's values can't be set.
    requests: Option<Arc<QueueRequests>>,
    in_effect: QueueSettings,
    phase: Phase,
    /// Settings whose values the supervisor was asked for in vain. It may still set them.
    unanswered: Option<QueueSettings>,
    /// When settings may be chosen again after some could not be set.
    retry_at: Option<Duration>,
    next_retry: Duration,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Settled,
    /// `asked`: whether the supervisor was asked already.
    Requested {
        settings: QueueSettings,
        since: Duration,
        asked: bool,
    },
    StopsPolling {
        settings: QueueSettings,
        end: Option<Duration>,
    },
}

/// What [`QueueChange::step`] asks its owner to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeStep {
    /// Nothing, until the supervisor has answered or the waits may stop polling.
    Wait,
    /// Choose settings. `retries`: those that could not be set may be chosen again.
    Choose {
        /// The pause after a failure has just ended.
        retries: bool,
    },
    /// The supervisor has set the values. Call [`QueueChange::values_set`].
    ValuesSet(QueueSettings),
    /// The same, after [`ChangeStep::Unanswered`]: these settings were given up meanwhile, and are
    /// in effect now.
    ValuesSetLate(QueueSettings),
    /// Set the waits, and then call [`QueueChange::finish`].
    SetWaits(QueueSettings),
    /// The supervisor could not set the values, and has reported why. Those in effect stay.
    Refused(QueueSettings),
    /// The supervisor has not answered within a second: it is dead, or hangs. The values in effect
    /// stay, as far as is known.
    Unanswered(QueueSettings),
    /// The supervisor has ended. The queue has its values from before, and nobody sets others.
    Unsupervised,
}

impl QueueChange {
    pub fn new(queue: u32, requests: Option<Arc<QueueRequests>>, in_effect: QueueSettings) -> Self {
        Self {
            queue,
            requests,
            in_effect,
            phase: Phase::Settled,
            unanswered: None,
            retry_at: None,
            next_retry: FIRST_RETRY,
        }
    }

    pub fn in_effect(&self) -> QueueSettings {
        self.in_effect
    }

    pub fn can_set_values(&self) -> bool {
        self.requests.is_some()
    }

    /// Whether the pause after a failure goes on.
    pub fn is_paused(&self) -> bool {
        self.retry_at.is_some()
    }

    /// Whether no change is under way.
    pub fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Settled)
    }

    /// Whether the supervisor was asked for values, and has not answered.
    pub fn is_requested(&self) -> bool {
        matches!(self.phase, Phase::Requested { .. })
    }

    /// Whether the waits are about to stop polling, which they may after one that has found
    /// nothing.
    pub fn stops_polling(&self) -> bool {
        matches!(self.phase, Phase::StopsPolling { .. })
    }

    /// When to call [`QueueChange::step`] again at the latest, also if nothing happens: a change is
    /// under way, settings may be chosen again, a late answer may have come, or packets wait for a
    /// poll. `None`: when a packet comes.
    pub fn next_step(&self, now: Duration, step: Duration) -> Option<Duration> {
        let needs_steps = !self.is_settled() || self.in_effect.defer_hard_irqs != 0;
        // The supervisor may answer at any time.
        let answer = self.unanswered.map(|_| now + FIRST_RETRY);
        match (&self.requests, self.retry_at) {
            (None, _) => self.in_effect.polls().then(|| now + step),
            (Some(_), Some(retry)) if self.is_settled() => {
                answer.into_iter().chain([retry.max(now + step)]).min()
            }
            (Some(_), _) if needs_steps => Some(now + step),
            (Some(_), _) => answer,
        }
    }

    /// What is to be done now. `is_suspended`: the queue's interrupt may be suspended, so that only
    /// a wait that polls resumes it.
    pub fn step(&mut self, now: Duration, is_suspended: bool) -> ChangeStep {
        if self.requests.take_if(|requests| requests.has_ended()).is_some() {
            (self.phase, self.unanswered, self.retry_at) = (Phase::Settled, None, None);
            return ChangeStep::Unsupervised;
        }
        match self.phase {
            Phase::Settled => {
                match self.unanswered.and_then(|settings| Some((settings, self.take_answer()?))) {
                    Some((settings, answer)) => {
                        self.unanswered = None;
                        match answer {
                            // The waits have to fit the values that the queue has now. Others can
                            // be set again.
                            Ok(()) => {
                                (self.retry_at, self.next_retry) = (None, FIRST_RETRY);
                                ChangeStep::ValuesSetLate(settings)
                            }
                            Err(_) => ChangeStep::Wait,
                        }
                    }
                    None => {
                        ChangeStep::Choose { retries: self.retry_at.take_if(|retry| now >= *retry).is_some() }
                    }
                }
            }
            Phase::Requested { settings, since, asked } => {
                // The deadline counts from the time at which it was asked.
                let (asked, since) = match asked {
                    true => (true, since),
                    false if self.ask(settings) => (true, now),
                    false => (false, since),
                };
                self.phase = Phase::Requested { settings, since, asked };
                match if asked { self.take_answer() } else { None } {
                    None if now >= since + DEADLINE => {
                        self.unanswered = Some(settings);
                        self.abandon(now);
                        ChangeStep::Unanswered(settings)
                    }
                    None => ChangeStep::Wait,
                    Some(Ok(())) => {
                        self.next_retry = FIRST_RETRY;
                        ChangeStep::ValuesSet(settings)
                    }
                    Some(Err(_)) => {
                        self.abandon(now);
                        ChangeStep::Refused(settings)
                    }
                }
            }
            Phase::StopsPolling { settings, end } => {
                let may_stop = !is_suspended || end.is_some_and(|end| now >= end);
                if may_stop { ChangeStep::SetWaits(settings) } else { ChangeStep::Wait }
            }
        }
    }

    fn take_answer(&self) -> Option<Result<(), String>> {
        self.requests.as_ref()?.take_answer(self.queue)
    }

    /// Whether the queue needs other values for these settings, and somebody can set them.
    pub fn needs_values(&self, settings: &QueueSettings) -> bool {
        let values = |of: &QueueSettings| (of.defer_hard_irqs, of.grace_time, of.suspend_timeout);
        self.requests.is_some() && values(&self.in_effect) != values(settings)
    }

    /// Asks the supervisor for the values of these settings.
    pub fn request(&mut self, now: Duration, settings: QueueSettings) {
        if self.requests.is_some() {
            let asked = self.ask(settings);
            (self.phase, self.unanswered) = (Phase::Requested { settings, since: now, asked }, None);
        }
    }

    fn ask(&self, settings: QueueSettings) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.request(self.queue, settings))
    }

    /// The queue has the values of these settings. `end`: when waits that polled may stop in any
    /// case; `None`: only after one that has found nothing.
    pub fn values_set(&mut self, settings: QueueSettings, end: Option<Duration>) -> ChangeStep {
        if self.in_effect.polls() && !settings.polls() {
            self.phase = Phase::StopsPolling { settings, end };
            ChangeStep::Wait
        } else {
            ChangeStep::SetWaits(settings)
        }
    }

    /// The settings in effect have another reason now.
    pub fn set_reason(&mut self, why: Reason) {
        self.in_effect.why = why;
    }

    pub fn finish(&mut self, settings: QueueSettings) {
        self.phase = Phase::Settled;
        self.in_effect = settings;
    }

    /// The change could not be made, and the settings in effect stay. If values can be set at all,
    /// they are chosen again after a pause, which doubles with each failure in a row.
    pub fn abandon(&mut self, now: Duration) {
        self.phase = Phase::Settled;
        if self.requests.is_none() {
            return;
        }
        self.retry_at = Some(now + self.next_retry);
        self.next_retry = (self.next_retry * 2).min(LAST_RETRY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::PollInterval;

    const NOW: Duration = Duration::from_secs(100);

    /// What a supervisor is asked for, a queue 0 with interrupts, its settings, and others.
    fn plain_queue() -> (Arc<QueueRequests>, QueueChange, QueueSettings, QueueSettings) {
        let requests = Arc::new(QueueRequests::new().unwrap());
        let plain = QueueSettings::interrupts(Reason::Start);
        let change = QueueChange::new(0, Some(Arc::clone(&requests)), plain);
        (requests, change, plain, QueueSettings::fixed(PollInterval::default()))
    }

    #[test]
    fn a_queue_stops_polling_only_after_a_wait_that_found_nothing_or_at_the_end() {
        let polling = QueueSettings::fixed(PollInterval::default());
        let plain = QueueSettings::interrupts(Reason::Start);
        let mut change = QueueChange::new(0, None, polling);
        assert_eq!(change.step(NOW, true), ChangeStep::Choose { retries: false });
        assert!(!change.needs_values(&plain), "nobody can set them");
        assert_eq!(change.values_set(plain, Some(NOW + Duration::from_millis(20))), ChangeStep::Wait);
        assert!(change.stops_polling() && change.step(NOW, true) == ChangeStep::Wait);
        assert_eq!(change.step(NOW, false), ChangeStep::SetWaits(plain));
        assert_eq!(change.step(NOW + Duration::from_millis(20), true), ChangeStep::SetWaits(plain));
        change.finish(plain);
        assert_eq!(
            (change.in_effect(), change.values_set(polling, None)),
            (plain, ChangeStep::SetWaits(polling))
        );
    }

    #[test]
    fn a_refused_change_is_retried_later_each_time() {
        let (requests, mut change, plain, polling) = plain_queue();
        let mut now = NOW;
        for pause in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert!(change.needs_values(&polling));
            change.request(now, polling);
            assert_eq!(change.step(now, false), ChangeStep::Wait);
            requests.answer(0, &polling, Err(String::new()));
            assert_eq!(change.step(now, false), ChangeStep::Refused(polling));
            assert_eq!(change.in_effect(), plain);
            let end = now + Duration::from_secs(pause);
            assert_eq!(
                change.step(end - Duration::from_nanos(1), false),
                ChangeStep::Choose { retries: false }
            );
            assert_eq!(change.step(end, false), ChangeStep::Choose { retries: true });
            now = end;
        }
    }

    #[test]
    fn a_supervisor_that_is_asked_late_has_a_second_from_then_on() {
        let (requests, mut change, _, polling) = plain_queue();
        requests.busy(|| change.request(NOW, polling));
        let late = NOW + Duration::from_secs(5);
        assert_eq!(change.step(late, false), ChangeStep::Wait);
        requests.answer(0, &polling, Ok(()));
        assert_eq!(change.step(late + Duration::from_millis(999), false), ChangeStep::ValuesSet(polling));
    }

    #[test]
    fn a_supervisor_that_does_not_answer_holds_up_its_queue_for_a_second() {
        let (requests, mut change, plain, polling) = plain_queue();
        change.request(NOW, polling);
        let second = NOW + Duration::from_secs(1);
        assert_eq!(change.step(second - Duration::from_nanos(1), false), ChangeStep::Wait);
        assert_eq!(change.step(second, false), ChangeStep::Unanswered(polling));
        assert_eq!((change.in_effect(), change.is_settled()), (plain, true));
        assert_eq!(change.step(second, false), ChangeStep::Choose { retries: false });
        // It was late, not dead.
        requests.answer(0, &polling, Ok(()));
        assert_eq!(change.step(second, false), ChangeStep::ValuesSetLate(polling));
        assert!(!change.is_paused(), "others can be set");
    }

    #[test]
    fn an_idle_owner_looks_again_as_long_as_its_queue_may_have_values_that_wait_for_a_poll() {
        let (requests, mut change, plain, polling) = plain_queue();
        let step = Duration::from_millis(10);
        assert_eq!(change.next_step(NOW, step), None);
        change.request(NOW, polling);
        assert_eq!(change.next_step(NOW, step), Some(NOW + step));
        let second = NOW + Duration::from_secs(1);
        assert_eq!(change.step(second, false), ChangeStep::Unanswered(polling));
        // A retry is due after a pause, and then an answer may come at any time.
        let retry = second + FIRST_RETRY;
        assert_eq!(change.next_step(second, step), Some(retry));
        assert_eq!(change.next_step(retry, step), Some(retry + step));
        assert_eq!(change.step(retry, false), ChangeStep::Choose { retries: true });
        assert_eq!(change.next_step(retry, step), Some(retry + FIRST_RETRY));
        requests.answer(0, &polling, Ok(()));
        assert_eq!(change.step(retry, false), ChangeStep::ValuesSetLate(polling));
        assert!(!change.is_paused());
        change.finish(polling);
        assert_eq!(change.next_step(retry, step), Some(retry + step));
        change.finish(plain);
        assert_eq!(change.next_step(retry, step), None);
        // Nobody can set others, but its waits may stop polling.
        assert_eq!(QueueChange::new(0, None, polling).next_step(NOW, step), Some(NOW + step));
        assert_eq!(QueueChange::new(0, None, plain).next_step(NOW, step), None);
    }

    #[test]
    fn a_queue_whose_supervisor_has_ended_needs_no_values_for_other_settings() {
        let requests = Arc::new(QueueRequests::new().unwrap());
        let polling = QueueSettings::fixed(PollInterval::default());
        let plain = QueueSettings::interrupts(Reason::Unsupervised);
        let mut change = QueueChange::new(0, Some(Arc::clone(&requests)), polling);
        let running = requests.supervised(false);
        change.request(NOW, plain);
        assert_eq!(change.step(NOW, false), ChangeStep::Wait);
        drop(running);
        assert_eq!(change.step(NOW, false), ChangeStep::Unsupervised);
        assert!(!change.needs_values(&plain));
        assert_eq!(change.step(NOW, false), ChangeStep::Choose { retries: false });
    }
}
