//! Writes a knob and reads it back.

use super::outcome::Outcome;
use crate::host::device::Device;
use crate::knob::write::Written;
use crate::knob::{Knob, Value};

/// Sets a knob and verifies the result. The second value is what the device made of the target, if that differs: its limit,
/// or a multiple of what it needs.
pub(super) fn write_verified(knob: &Knob, target: &Value, device: &Device) -> (Outcome, Option<Value>) {
    if knob.read(device).is_ok_and(|current| current == *target) {
        return (pending(knob, target, device).unwrap_or(Outcome::Already), None);
    }
    let written = match knob.write(device, target) {
        Ok(written) => written,
        Err(error) => return (Outcome::Failed { reason: error.to_string() }, None),
    };
    let expected = match &written {
        Written::Target => target,
        Written::Limit(value) | Written::RoundedUp(value) => value,
    };
    let outcome = match knob.read(device) {
        Ok(value) if value == *expected => match &written {
            Written::Limit(limit) => Outcome::AtLimit { value: limit.to_string() },
            Written::RoundedUp(value) => Outcome::RoundedUp { value: value.to_string() },
            Written::Target => pending(knob, target, device).unwrap_or(Outcome::Set),
        },
        Ok(value) => Outcome::ReadsBack { value: value.to_string() },
        Err(error) => Outcome::ReadsBack { value: format!("nothing ({error})") },
    };
    (outcome, (expected != target).then(|| expected.clone()))
}

fn pending(knob: &Knob, target: &Value, device: &Device) -> Option<Outcome> {
    knob.pending_cpus(device, target).map(|cpus| Outcome::Pending { still: cpus.to_string() })
}
