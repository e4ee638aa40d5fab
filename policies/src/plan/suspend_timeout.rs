//! Bounds the suspend timeout of queues whose values nobody adapts while the policy runs.

use std::time::Duration;

use super::planner::Planner;
use super::settings::Settings;
use super::steps::{Plan, Step};
use crate::grace_time::{GraceTime, nanos};
use crate::host::Interface;
use crate::knob::{Knob, Value};
use crate::law::{LawLimits, QueueSettings};
use crate::policy::Policy;

impl Planner<'_> {
    /// The suspend timeout of the plan's queues. While a queue is suspended nobody empties its ring, and the packets that
    /// find it full are lost.
    pub(super) fn bounded_suspend_timeout(&mut self, interface: &Interface) -> Duration {
        let ring = self.planned_ring(interface);
        self.notes.extend(note(self.settings, ring));
        bounded(self.settings, ring)
    }
}

impl Plan {
    /// Adapts the steps that set the suspend timeout to the size of the receive rings. Returns those that have changed.
    pub(super) fn fit_suspend_timeouts(&mut self, before: Option<u32>, size: u32) -> Vec<Step> {
        if self.policy != Policy::KernelPolling || self.settings.gro_flush_timeout == GraceTime::Adaptive {
            return Vec::new();
        }
        let old = note(&self.settings, before);
        self.notes.retain(|note| Some(note) != old.as_ref());
        self.notes.extend(note(&self.settings, Some(size)));
        let target = Value::Number(nanos(bounded(&self.settings, Some(size))));
        let timeouts =
            self.steps.iter_mut().filter(|step| matches!(step.knob, Knob::NapiIrqSuspendTimeout { .. }));
        let changed = timeouts.filter(|step| step.target != target);
        changed
            .map(|step| {
                step.target = target.clone();
                step.clone()
            })
            .collect()
    }
}

/// The longest suspend timeout within which half of a ring does not fill at the rate of the settings.
fn bounded(settings: &Settings, ring: Option<u32>) -> Duration {
    let Some(rate) = settings.peak_packet_rate else { return settings.irq_suspend_timeout };
    let bound = QueueSettings::time_to_half_fill(slots(ring), f64::from(rate));
    settings.irq_suspend_timeout.min(QueueSettings::longest_suspend_timeout_within(bound))
}

fn slots(ring: Option<u32>) -> u32 {
    ring.unwrap_or(LawLimits::default().ring_slots)
}

fn note(settings: &Settings, ring: Option<u32>) -> Option<String> {
    let rate = settings.peak_packet_rate?;
    let (wanted, bounded) = (settings.irq_suspend_timeout, bounded(settings, ring));
    let unknown = if ring.is_none() { " (the size is not known)" } else { "" };
    (bounded < wanted).then(|| {
        format!(
            "irq-suspend-timeout is {} µs instead of {} µs: half of a receive ring of {} descriptors{unknown} does not \
             fill within it at {rate} packets/s of a queue",
            bounded.as_micros(),
            wanted.as_micros(),
            slots(ring),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeout(rate: u32, ring: Option<u32>) -> (u128, bool) {
        let settings = Settings { peak_packet_rate: Some(rate), ..Settings::default() };
        (bounded(&settings, ring).as_micros(), note(&settings, ring).is_some())
    }

    #[test]
    fn half_of_the_ring_does_not_fill_within_the_suspend_timeout() {
        assert_eq!(timeout(100_000, Some(4096)), (20_000, false));
        assert_eq!(timeout(100_000, Some(1024)), (5_000, true));
        assert_eq!(timeout(100_000, Some(256)), (1_250, true));
        assert_eq!(timeout(1_000_000, Some(1024)), (312, true));
        // A ring whose size is not known counts as the law counts it.
        assert_eq!(timeout(100_000, None), (1_250, true));
        // Shorter, it would cut off batches of requests.
        assert_eq!(timeout(u32::MAX, Some(64)), (312, true));
        assert_eq!(timeout(0, Some(64)), (20_000, false));
    }

    #[test]
    fn a_shorter_timeout_that_was_asked_for_stays_and_without_a_rate_any() {
        let settings = Settings {
            irq_suspend_timeout: Duration::from_micros(500),
            peak_packet_rate: Some(100_000),
            ..Settings::default()
        };
        assert_eq!(bounded(&settings, Some(256)), Duration::from_micros(500));
        assert_eq!(note(&settings, Some(256)), None);
        assert_eq!(bounded(&Settings::default(), Some(256)), Settings::IRQ_SUSPEND_TIMEOUT);
    }

    #[test]
    fn a_ring_of_another_size_than_planned_changes_the_timeouts_and_the_note() {
        let knob = Knob::NapiIrqSuspendTimeout { queue: 0 };
        let settings = Settings {
            gro_flush_timeout: GraceTime::Fixed(Duration::from_micros(20)),
            peak_packet_rate: Some(100_000),
            ..Settings::default()
        };
        let target = Value::Number(nanos(bounded(&settings, Some(1024))));
        let mut plan = Plan {
            policy: Policy::KernelPolling,
            interface: "eth0".to_owned(),
            ifindex: 1,
            queues: vec![0],
            notes: vec![note(&settings, Some(1024)).unwrap()],
            settings,
            steps: vec![Step { knob, current: None, target, purpose: "", forbidden: None }],
        };
        assert!(plan.fit_suspend_timeouts(Some(1024), 1024).is_empty());
        let changed = plan.fit_suspend_timeouts(Some(1024), 256);
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].target, Value::Number(1_250_000));
        assert_eq!(plan.steps[0].target, Value::Number(1_250_000));
        assert_eq!(plan.notes, [note(&plan.settings, Some(256)).unwrap()]);
        assert!(plan.fit_suspend_timeouts(Some(256), 4096)[0].target == Value::Number(20_000_000));
        assert!(plan.notes.is_empty());
    }
}
