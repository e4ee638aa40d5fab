//! Fits the values that depend on the size of the receive rings: while an interrupt is delayed or
//! suspended nobody empties a ring, and the packets that find it full are lost.

use std::time::Duration;

use super::note::Note;
use super::settings::Settings;
use super::{Plan, Step};
use crate::controller::{ControllerLimits, QueueSettings};
use crate::grace_time::nanos;
use crate::knob::{Knob, Value};
use crate::netlink::ethtool::Coalescing;

impl Plan {
    /// Adapts the steps whose value depends on the size of the receive rings. Returns those that
    /// have changed.
    pub(crate) fn fit_ring(&mut self, size: u32) -> Vec<Step> {
        let mut changed = self.fit_suspend_timeouts(size);
        changed.extend(self.fit_rx_frames(size).cloned());
        changed
    }

    fn fit_rx_frames(&mut self, size: u32) -> Option<&Step> {
        let parameter = Coalescing::RxFrames;
        let wanted = self.settings.suppression.target(parameter);
        let target = within_ring(parameter, wanted, Some(size));
        let step = self.steps.iter_mut().find(|step| step.knob == Knob::Coalesce { parameter })?;
        let planned = std::mem::replace(&mut step.target, Value::Number(target.into()));
        if planned == step.target {
            return None;
        }
        self.notes.retain(|note| !matches!(note, Note::FewerFrames { .. }));
        self.notes.extend(frames_note(target, wanted));
        Some(step)
    }

    /// Adapts the steps that set the suspend timeout to the size of the receive rings. Returns
    /// those that have changed.
    fn fit_suspend_timeouts(&mut self, size: u32) -> Vec<Step> {
        if !self.policy.suspends_interrupts() || self.policy.adapts(self.settings.gro_flush_timeout) {
            return Vec::new();
        }
        self.notes.retain(|note| !matches!(note, Note::ShorterSuspendTimeout { .. }));
        self.notes.extend(suspend_timeout_note(&self.settings, Some(size)));
        let target = Value::Number(nanos(bounded_suspend_timeout(&self.settings, Some(size))));
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

pub(super) fn frames_note(target: u32, wanted: u32) -> Option<Note> {
    (target < wanted).then_some(Note::FewerFrames { target, wanted })
}

/// The number of packets that delay an interrupt must fit the ring: the device drops those that
/// find it full, and raises no interrupt for them.
pub(super) fn within_ring(parameter: Coalescing, wanted: u32, ring: Option<u32>) -> u32 {
    match ring {
        Some(size) if parameter == Coalescing::RxFrames => wanted.min((size / 2).max(1)),
        _ => wanted,
    }
}

/// The longest suspend timeout within which half of a ring does not fill at the rate of the
/// settings.
pub(super) fn bounded_suspend_timeout(settings: &Settings, ring: Option<u32>) -> Duration {
    let Some(rate) = settings.peak_packet_rate else { return settings.irq_suspend_timeout };
    let bound = QueueSettings::time_to_half_fill(slots(ring), f64::from(rate));
    settings.irq_suspend_timeout.min(QueueSettings::longest_suspend_timeout_within(bound))
}

fn slots(ring: Option<u32>) -> u32 {
    ring.unwrap_or(ControllerLimits::default().ring_slots)
}

pub(super) fn suspend_timeout_note(settings: &Settings, ring: Option<u32>) -> Option<Note> {
    let rate = settings.peak_packet_rate?;
    let (wanted, bounded) = (settings.irq_suspend_timeout, bounded_suspend_timeout(settings, ring));
    let (micros, wanted) = (bounded.as_micros(), wanted.as_micros());
    (micros < wanted).then_some(Note::ShorterSuspendTimeout {
        micros,
        wanted,
        ring: slots(ring),
        ring_is_known: ring.is_some(),
        rate,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grace_time::GraceTime;
    use crate::policy::Policy;

    fn timeout(rate: u32, ring: Option<u32>) -> (u128, bool) {
        let settings = Settings { peak_packet_rate: Some(rate), ..Settings::default() };
        (
            bounded_suspend_timeout(&settings, ring).as_micros(),
            suspend_timeout_note(&settings, ring).is_some(),
        )
    }

    #[test]
    fn half_of_the_ring_does_not_fill_within_the_suspend_timeout() {
        assert_eq!(timeout(100_000, Some(4096)), (20_000, false));
        assert_eq!(timeout(100_000, Some(1024)), (5_000, true));
        assert_eq!(timeout(100_000, Some(256)), (1_250, true));
        assert_eq!(timeout(1_000_000, Some(1024)), (312, true));
        // A ring whose size is not known counts as the controller counts it.
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
        assert_eq!(bounded_suspend_timeout(&settings, Some(256)), Duration::from_micros(500));
        assert_eq!(suspend_timeout_note(&settings, Some(256)), None);
        assert_eq!(bounded_suspend_timeout(&Settings::default(), Some(256)), Settings::IRQ_SUSPEND_TIMEOUT);
    }

    #[test]
    fn a_ring_of_another_size_than_planned_changes_the_timeouts_and_the_note() {
        let knob = Knob::NapiIrqSuspendTimeout { queue: 0 };
        let settings = Settings {
            gro_flush_timeout: GraceTime::Fixed(Duration::from_micros(20)),
            peak_packet_rate: Some(100_000),
            ..Settings::default()
        };
        let target = Value::Number(nanos(bounded_suspend_timeout(&settings, Some(1024))));
        let mut plan = Plan {
            policy: Policy::KernelPolling,
            interface: "eth0".to_owned(),
            ifindex: 1,
            queues: vec![0],
            notes: vec![suspend_timeout_note(&settings, Some(1024)).unwrap()],
            settings,
            steps: vec![Step { knob, current: None, target, purpose: "", forbidden: None }],
            is_prevented: false,
        };
        assert!(plan.fit_suspend_timeouts(1024).is_empty());
        let changed = plan.fit_suspend_timeouts(256);
        assert_eq!(changed.len(), 1);
        assert_eq!(changed[0].target, Value::Number(1_250_000));
        assert_eq!(plan.steps[0].target, Value::Number(1_250_000));
        assert_eq!(plan.notes, [suspend_timeout_note(&plan.settings, Some(256)).unwrap()]);
        assert!(plan.fit_suspend_timeouts(4096)[0].target == Value::Number(20_000_000));
        assert!(plan.notes.is_empty());
    }

    #[test]
    fn frames_that_delay_an_interrupt_fit_half_of_the_ring() {
        assert_eq!(within_ring(Coalescing::RxFrames, 65534, Some(1024)), 512);
        assert_eq!(within_ring(Coalescing::RxFrames, 64, Some(1024)), 64);
        assert_eq!(within_ring(Coalescing::RxFrames, 65534, Some(1)), 1);
        assert_eq!(within_ring(Coalescing::RxFrames, 65534, None), 65534);
        assert_eq!(within_ring(Coalescing::RxUsecs, 65534, Some(1024)), 65534);
    }

    #[test]
    fn the_step_follows_the_size_that_the_rings_have_got() {
        let mut plan = Plan {
            policy: Policy::Suppression,
            interface: "eth0".to_owned(),
            ifindex: 1,
            queues: vec![0],
            settings: Settings::default(),
            steps: vec![Step {
                knob: Knob::Coalesce { parameter: Coalescing::RxFrames },
                current: None,
                target: Value::Number(2500),
                purpose: "",
                forbidden: None,
            }],
            notes: Vec::new(),
            is_prevented: false,
        };
        let wanted = plan.settings.suppression.target(Coalescing::RxFrames);
        plan.notes.extend(frames_note(2500, wanted));
        // The rings could not be made larger, or were made smaller.
        assert_eq!(plan.fit_rx_frames(512).map(|step| &step.target), Some(&Value::Number(256)));
        assert_eq!(plan.notes, [frames_note(256, wanted).unwrap()]);
        assert!(plan.fit_rx_frames(512).is_none());
        plan.steps.clear();
        assert!(plan.fit_rx_frames(1024).is_none());
    }
}
