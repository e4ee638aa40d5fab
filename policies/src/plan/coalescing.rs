//! Plans the device's interrupt coalescing.

use super::planner::Planner;
use super::steps::{Plan, Step};
use crate::host::Interface;
use crate::knob::{Knob, Value};
use crate::netlink::ethtool::Coalescing;

impl Planner<'_> {
    /// Delays interrupts as far as the device allows.
    pub(super) fn set_coalescing(&mut self, interface: &Interface) {
        if interface.coalescing.is_empty() {
            self.notes.push(format!(
                "{} does not support interrupt coalescing (ethtool); only deferral delays interrupts",
                interface.name
            ));
            return;
        }
        let others = interface.queues.len() - self.rx.len();
        if others > 0 {
            self.notes.push(format!(
                "interrupt coalescing is of the whole device, and {others} of its queues are not of this plan; \
                 it stays unchanged, and only deferral delays interrupts"
            ));
            return;
        }
        for parameter in Coalescing::ALL {
            let supported = interface.coalescing.iter().any(|(which, _)| *which == parameter);
            if supported {
                let wanted = self.settings.suppression.target(parameter);
                let target = within_ring(parameter, wanted, self.planned_ring(interface));
                self.notes.extend(limit_note(parameter, target, wanted));
                self.set(
                    Knob::Coalesce { parameter },
                    Value::Number(target.into()),
                    if parameter.is_switch() {
                        "the device ignores the values below while it adapts its own"
                    } else {
                        "interrupts are delayed as far as the device allows"
                    },
                );
            } else if !parameter.is_switch() {
                self.notes.push(format!("{} has no {}", interface.name, parameter.name()));
            }
        }
    }

    /// Kernel polling leaves coalescing alone, because it is of the whole device. Where interrupts are on, at low load
    /// and in interrupt-first mode, the device's own delay is part of each request's latency.
    pub(super) fn note_moderation(&mut self, interface: &Interface) {
        let value = |wanted| interface.coalescing.iter().find(|(which, _)| *which == wanted).map(|it| it.1);
        if value(Coalescing::AdaptiveRx) == Some(1) {
            self.notes.push(format!(
                "{0} adapts the delay of its interrupts (adaptive-rx), which adds to the latency at low load; \
                 `ethtool -C {0} adaptive-rx off rx-usecs 0` turns that off for the whole device",
                interface.name
            ));
        }
    }
}

impl Plan {
    /// Adapts the steps whose value depends on the size of the receive rings, which was planned to be `before`. Returns
    /// those that have changed.
    pub(crate) fn fit_ring(&mut self, before: Option<u32>, size: u32) -> Vec<Step> {
        let mut changed = self.fit_suspend_timeouts(before, size);
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
        let old = planned.number().and_then(|planned| u32::try_from(planned).ok());
        let old = old.and_then(|old| limit_note(parameter, old, wanted));
        self.notes.retain(|note| Some(note) != old.as_ref());
        self.notes.extend(limit_note(parameter, target, wanted));
        Some(step)
    }
}

fn limit_note(parameter: Coalescing, target: u32, wanted: u32) -> Option<String> {
    (target < wanted).then(|| {
        format!(
            "{} is {target} instead of {wanted}: half of the receive ring, so that it never overflows before the interrupt",
            parameter.name()
        )
    })
}

/// The number of packets that delay an interrupt must fit the ring: the device drops those that find it full, and raises no
/// interrupt for them.
fn within_ring(parameter: Coalescing, wanted: u32, ring: Option<u32>) -> u32 {
    match ring {
        Some(size) if parameter == Coalescing::RxFrames => wanted.min((size / 2).max(1)),
        _ => wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Settings;
    use crate::policy::Policy;

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
        };
        let wanted = plan.settings.suppression.target(Coalescing::RxFrames);
        plan.notes.extend(limit_note(Coalescing::RxFrames, 2500, wanted));
        // The rings could not be made larger, or were made smaller.
        assert_eq!(plan.fit_rx_frames(512).map(|step| &step.target), Some(&Value::Number(256)));
        assert_eq!(plan.notes, [limit_note(Coalescing::RxFrames, 256, wanted).unwrap()]);
        assert!(plan.fit_rx_frames(512).is_none());
        plan.steps.clear();
        assert!(plan.fit_rx_frames(1024).is_none());
    }
}
