//! Writes a knob and reads it back.

use std::io;

use super::outcome::Outcome;
use crate::host::device::Device;
use crate::knob::{Knob, Value};

/// Sets a knob and verifies the result. The second value is the only one that is the writer's from
/// now on: the target, or what the driver rounded the target to. `None` if it is not known.
pub(super) fn write_verified(knob: &Knob, target: &Value, device: &Device) -> (Outcome, Option<Value>) {
    let before = knob.read(device).ok();
    if before.as_ref() == Some(target) {
        return (pending(knob, target, device).unwrap_or(Outcome::Already), before);
    }
    let written = knob.write(device, target);
    let (outcome, owned) = judge(knob, target, before.as_ref(), written, knob.read(device));
    match outcome {
        Outcome::Set => (pending(knob, target, device).unwrap_or(Outcome::Set), owned),
        outcome => (outcome, owned),
    }
}

fn judge(
    knob: &Knob,
    target: &Value,
    before: Option<&Value>,
    written: io::Result<()>,
    now: io::Result<Value>,
) -> (Outcome, Option<Value>) {
    let is_changed = |now: &Value| before.is_some_and(|before| before != now);
    let outcome = match (written, &now) {
        (Err(error), _) => Outcome::Failed { reason: error.to_string() },
        (Ok(()), Ok(now)) if now == target => Outcome::Set,
        (Ok(()), Ok(now)) if knob.is_rounded() && is_changed(now) => {
            Outcome::Rounded { value: now.to_string() }
        }
        (Ok(()), Ok(now)) => Outcome::ReadsBack { value: now.to_string() },
        (Ok(()), Err(error)) => Outcome::ReadsBack { value: format!("nothing ({error})") },
    };
    let owned = match now {
        Ok(now) if outcome.is_ok() => Some(now),
        // Nothing was changed. What others set later is theirs.
        Ok(now) if before == Some(&now) => Some(target.clone()),
        _ => None,
    };
    (outcome, owned)
}

fn pending(knob: &Knob, target: &Value, device: &Device) -> Option<Outcome> {
    knob.pending_cpus(device, target).map(|cpus| Outcome::Pending { still: cpus.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Entry, OwnedValues};

    fn number(number: u64) -> Value {
        Value::Number(number)
    }

    fn ring(before: u64, target: u64, now: io::Result<Value>) -> (Outcome, Option<Value>) {
        judge(&Knob::RxRing, &number(target), Some(&number(before)), Ok(()), now)
    }

    #[test]
    fn a_ring_that_the_driver_rounds_in_either_direction_is_restored() {
        for (target, made) in [(5000, 4096), (500, 504)] {
            let (outcome, owned) = ring(1024, target, Ok(number(made)));
            assert_eq!(outcome, Outcome::Rounded { value: made.to_string() });
            let owned = owned.unwrap();
            let entry = Entry {
                knob: Knob::RxRing,
                old: Some(number(1024)),
                new: owned,
                owned: OwnedValues::New,
                left: None,
            };
            assert!(entry.owns(&number(made)));
            assert!(!entry.owns(&number(2048)), "another process has set it");
        }
    }

    #[test]
    fn a_ring_that_keeps_its_size_reads_back_and_what_others_set_later_is_theirs() {
        let (outcome, owned) = ring(4096, 5000, Ok(number(4096)));
        assert_eq!(outcome, Outcome::ReadsBack { value: "4096".to_owned() });
        assert_eq!(owned, Some(number(5000)));
    }

    #[test]
    fn a_value_that_can_not_be_read_back_leaves_open_what_the_writer_owns() {
        let (outcome, owned) = ring(1024, 4096, Err(io::ErrorKind::NotFound.into()));
        assert!(matches!(outcome, Outcome::ReadsBack { .. }));
        assert_eq!(owned, None);
    }
}
