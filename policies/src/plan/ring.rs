//! Fits the values that depend on the size of the receive rings: while an interrupt is delayed or
//! suspended nobody empties a ring, and the packets that find it full are lost.

use std::time::Duration;

use super::note::Note;
use super::settings::Settings;
use crate::controller::{ControllerLimits, QueueSettings};
use crate::netlink::ethtool::Coalescing;

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
    fn frames_that_delay_an_interrupt_fit_half_of_the_ring() {
        assert_eq!(within_ring(Coalescing::RxFrames, 65534, Some(1024)), 512);
        assert_eq!(within_ring(Coalescing::RxFrames, 64, Some(1024)), 64);
        assert_eq!(within_ring(Coalescing::RxFrames, 65534, Some(1)), 1);
        assert_eq!(within_ring(Coalescing::RxFrames, 65534, None), 65534);
        assert_eq!(within_ring(Coalescing::RxUsecs, 65534, Some(1024)), 65534);
    }
}
