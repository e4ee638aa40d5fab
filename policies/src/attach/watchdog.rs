//! Notices when kernel polling harms a server, by what is seen from outside.

use std::collections::VecDeque;
use std::time::Duration;

/// Steps of 50 ms: the last five seconds.
const STEPS: usize = 100;
/// From this mean delay on, the steps that had it count.
const LONG_DELAY: Duration = Duration::from_millis(5);
/// ...or from this one on, as long as too little was seen of interrupts...
const LONG_DELAY_ALONE: Duration = Duration::from_millis(50);
const ENOUGH_PLAIN: usize = STEPS * 2 / 5;
/// ...if it is this much longer than under interrupts.
const TIMES_PLAIN: u32 = 4;
/// The number of long delays in five seconds from which on polling is blamed: a virtual machine
/// pauses less often.
const MOST_LONG_DELAYS: usize = 4;
/// Lost packets a step from which on it counts, beyond twice those under interrupts.
const FEW_DROPS: u64 = 4;
/// The busy-poll share below which waits do not poll.
const NO_SHARE: f64 = 0.01;
/// With fewer packets the share that busy polls received is not judged.
const ENOUGH_PACKETS: u64 = 500;

/// Why polling is given up for a while, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepBack {
    pub(super) reason: String,
    pub(super) pause: Duration,
}

/// What was seen of a queue in 50 ms.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Step {
    /// The mean delay of the server's threads until they got a core.
    pub(super) delay: Duration,
    /// Packets that the interface has lost.
    pub(super) drops: u64,
    pub(super) packets: u64,
    /// Those of them that busy polls have received.
    pub(super) polled: u64,
}

#[derive(Debug)]
pub(super) struct Watchdog {
    plain: VecDeque<Step>,
    polling: VecDeque<Step>,
    next_pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_secs(8);
const LONGEST_PAUSE: Duration = Duration::from_secs(64);

impl Watchdog {
    pub(super) fn new() -> Self {
        Self { plain: VecDeque::new(), polling: VecDeque::new(), next_pause: FIRST_PAUSE }
    }

    /// Takes in a step, in which the queue polled or had interrupts.
    pub(super) fn take(&mut self, polls: bool, step: Step) -> Option<StepBack> {
        let steps = if polls { &mut self.polling } else { &mut self.plain };
        steps.push_back(step);
        if steps.len() > STEPS {
            steps.pop_front();
        }
        if !polls {
            self.polling.clear();
            return None;
        }
        let reason = self.harm()?;
        self.polling.clear();
        let pause = self.next_pause;
        self.next_pause = (pause * 2).min(LONGEST_PAUSE);
        Some(StepBack { reason, pause })
    }

    fn harm(&self) -> Option<String> {
        // Other programs may be what the threads wait for.
        let least = if self.plain.len() < ENOUGH_PLAIN { LONG_DELAY_ALONE } else { LONG_DELAY };
        let limit = (highest_but_one_percent(&self.plain) * TIMES_PLAIN).max(least);
        let long = self.polling.iter().filter(|step| step.delay > limit).count();
        if long >= MOST_LONG_DELAYS {
            return Some(format!(
                "its threads waited for a core for more than {} ms on average in {long} of {} steps of 50 ms",
                limit.as_millis(),
                self.polling.len()
            ));
        }
        let mean_drops = |steps: &VecDeque<Step>| {
            steps.iter().map(|step| step.drops).sum::<u64>() / u64::try_from(steps.len()).unwrap_or(1).max(1)
        };
        if self.polling.len() >= STEPS / 5
            && mean_drops(&self.polling) > mean_drops(&self.plain) * 2 + FEW_DROPS
        {
            return Some("the interface loses more packets than under interrupts".to_owned());
        }
        let packets: u64 = self.polling.iter().map(|step| step.packets).sum();
        let polled: u64 = self.polling.iter().map(|step| step.polled).sum();
        let long_enough = self.polling.len() >= STEPS * 2 / 5 && packets >= ENOUGH_PACKETS;
        if long_enough && (polled as f64) < packets as f64 * NO_SHARE {
            return Some(
                "its waits receive nothing by busy polling: their timeout is 0, or another thread waits"
                    .to_owned(),
            );
        }
        None
    }
}

fn highest_but_one_percent(steps: &VecDeque<Step>) -> Duration {
    let mut delays: Vec<Duration> = steps.iter().map(|step| step.delay).collect();
    delays.sort_unstable();
    delays.get(delays.len().saturating_sub(1 + delays.len() / 100)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a queue that polls well.
    const GOOD: Step = Step { delay: Duration::from_micros(50), drops: 0, packets: 100, polled: 90 };
    const LONG: Duration = Duration::from_millis(10);

    fn take(watchdog: &mut Watchdog, count: usize, polls: bool, step: Step) -> Option<StepBack> {
        (0..count).find_map(|_| watchdog.take(polls, step))
    }

    #[test]
    fn a_queue_that_polls_well_is_left_alone() {
        let mut watchdog = Watchdog::new();
        assert_eq!(take(&mut watchdog, 50, false, Step { polled: 0, ..GOOD }), None);
        assert_eq!(take(&mut watchdog, 500, true, GOOD), None);
        // One pause of the machine.
        assert_eq!(watchdog.take(true, Step { delay: Duration::from_millis(180), ..GOOD }), None);
        assert_eq!(take(&mut watchdog, 500, true, GOOD), None);
    }

    #[test]
    fn delays_drops_and_waits_that_never_poll_are_harm() {
        let harm = |plain: Duration, polling: Step| {
            let mut watchdog = Watchdog::new();
            take(&mut watchdog, 50, false, Step { delay: plain, polled: 0, ..GOOD });
            take(&mut watchdog, 100, true, polling).map(|back| back.reason)
        };
        let slow = Step { delay: LONG, ..GOOD };
        assert!(harm(GOOD.delay, slow).unwrap().contains("for a core"));
        assert_eq!(harm(LONG, slow), None, "the machine is always that busy");
        assert_eq!(take(&mut Watchdog::new(), 50, true, slow), None, "nothing to compare with");
        assert!(harm(GOOD.delay, Step { drops: 50, ..GOOD }).unwrap().contains("loses"));
        assert!(harm(GOOD.delay, Step { polled: 0, ..GOOD }).unwrap().contains("timeout is 0"));
    }

    #[test]
    fn each_pause_is_twice_as_long_as_the_one_before() {
        let mut watchdog = Watchdog::new();
        let mut pause =
            || take(&mut watchdog, 100, true, Step { polled: 0, ..GOOD }).unwrap().pause.as_secs();
        assert_eq!([pause(), pause(), pause(), pause(), pause()], [8, 16, 32, 64, 64]);
    }
}
