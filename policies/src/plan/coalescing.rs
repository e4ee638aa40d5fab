//! Plans the device's interrupt coalescing.

use super::planner::Planner;
use crate::host::Interface;
use crate::knob::{Knob, Value};
use crate::netlink::ethtool::{Coalescing, RxRing};

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
                if target < wanted {
                    self.notes.push(format!(
                        "{} is {target} instead of {wanted}: half of the receive ring, so that it never overflows \
                         before the interrupt",
                        parameter.name()
                    ));
                }
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

/// The number of packets that delay an interrupt must fit the ring: the device drops those that find it full, and raises no
/// interrupt for them.
fn within_ring(parameter: Coalescing, wanted: u32, ring: Option<RxRing>) -> u32 {
    match ring {
        Some(ring) if parameter == Coalescing::RxFrames => wanted.min((ring.size / 2).max(1)),
        _ => wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_delay_an_interrupt_fit_half_of_the_ring() {
        let ring = |size| Some(RxRing { size, max: 4096 });
        assert_eq!(within_ring(Coalescing::RxFrames, 65534, ring(1024)), 512);
        assert_eq!(within_ring(Coalescing::RxFrames, 64, ring(1024)), 64);
        assert_eq!(within_ring(Coalescing::RxFrames, 65534, ring(1)), 1);
        assert_eq!(within_ring(Coalescing::RxFrames, 65534, None), 65534);
        assert_eq!(within_ring(Coalescing::RxUsecs, 65534, ring(1024)), 65534);
    }
}
