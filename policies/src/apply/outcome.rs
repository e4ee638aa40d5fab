//! Writes a knob and reads it back, and what came of it.

use std::fmt;
use std::io;

use crate::host::device::Device;
use crate::knob::{Knob, Value, is_refusal};
use crate::policy::Policy;

#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(tag = "outcome", rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum Outcome {
    /// The knob had the target value before.
    Already,
    /// The knob was set, and reads back as the target value.
    Set,
    /// The driver refused the target, and took a half of it, a quarter, or a smaller part.
    AtLimit {
        value: String,
        /// The kernel's error for the target.
        refusal: String,
    },
    /// The knob was set, and the driver rounded the value up or down.
    Rounded { value: String },
    /// An interrupt's affinity was set, and takes effect with the next interrupt: without interrupt
    /// remapping the kernel moves an interrupt only while it handles it (`irq_move_masked_irq`).
    Pending {
        /// The CPUs that the interrupt goes to until then.
        still: String,
    },
    /// The knob could not be set.
    Failed { reason: String },
    /// The knob was set, but reads back as another value.
    ReadsBack { value: String },
}

impl Outcome {
    /// Whether the knob has its target value, a value that the device takes, or what the driver
    /// rounded the target to.
    pub fn is_ok(&self) -> bool {
        !matches!(self, Outcome::Failed { .. } | Outcome::ReadsBack { .. })
    }
}

#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Applied {
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub knob: Knob,
    pub target: Value,
    pub policy: Policy,
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub outcome: Outcome,
}

impl Applied {
    /// Whether the policy can't run because this step failed: kernel threads that poll all the time
    /// must poll, on their core, as ordinary threads. Otherwise the rest of the policy would keep
    /// interrupts away from the workers' cores for nothing, or the thread would keep a core from
    /// its worker.
    pub(super) fn ends_policy(&self) -> bool {
        self.policy.has_polling_threads() && self.knob.is_of_napi_thread() && !self.outcome.is_ok()
    }
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { knob, target, .. } = self;
        let consequence = knob.consequence_of_failure(self.policy);
        match &self.outcome {
            Outcome::Already => write!(f, "{knob} is {target} already"),
            Outcome::Set => write!(f, "{knob} set to {target}"),
            Outcome::Pending { still } => {
                write!(f, "{knob} set to {target}, effective with its next interrupt (until then: {still})")
            }
            Outcome::AtLimit { value, refusal } => {
                write!(f, "{knob} set to {value}: the device refused {target} ({refusal})")
            }
            Outcome::Rounded { value } => write!(f, "{knob} set to {value} ({target} asked)"),
            Outcome::Failed { reason } => {
                write!(f, "{knob} could not be set to {target}: {reason}; without it, {consequence}")
            }
            Outcome::ReadsBack { value } => {
                write!(f, "{knob} was set to {target} but reads back {value}; without it, {consequence}")
            }
        }
    }
}

/// Sets a knob and verifies the result. The second value is the only one that is the writer's from
/// now on: the target, or what the driver made of it. `None` if it is not known.
pub(super) fn write_verified(knob: &Knob, target: &Value, device: &Device) -> (Outcome, Option<Value>) {
    let before = knob.read(device).ok();
    if before.as_ref() == Some(target) {
        return (pending(knob, target, device).unwrap_or(Outcome::Already), before);
    }
    let written = write_largest(knob, target, before.as_ref(), |value| knob.write(device, value));
    let (outcome, owned) = judge(knob, target, before.as_ref(), written, knob.read(device));
    match outcome {
        Outcome::Set => (pending(knob, target, device).unwrap_or(Outcome::Set), owned),
        outcome => (outcome, owned),
    }
}

/// A value that was taken, and the error for the target if that is another one.
type Taken = (Value, Option<io::Error>);

/// Writes the target. No driver reports its limit for a knob that has one: half of a value that it
/// refuses is tried next, as long as that is more than the present value.
fn write_largest(
    knob: &Knob,
    target: &Value,
    before: Option<&Value>,
    mut write: impl FnMut(&Value) -> io::Result<()>,
) -> io::Result<Taken> {
    let refusal = match write(target) {
        Ok(()) => return Ok((target.clone(), None)),
        Err(refusal) if knob.has_limit() && is_refusal(&refusal) => refusal,
        Err(error) => return Err(error),
    };
    let present = before.and_then(Value::number).unwrap_or(0);
    let mut number = target.number().unwrap_or(0) / 2;
    while number > present {
        match write(&Value::Number(number)) {
            Ok(()) => return Ok((Value::Number(number), Some(refusal))),
            Err(error) if is_refusal(&error) => number /= 2,
            Err(_) => break,
        }
    }
    // The one for the value that was asked for.
    Err(refusal)
}

fn judge(
    knob: &Knob,
    target: &Value,
    before: Option<&Value>,
    written: io::Result<Taken>,
    now: io::Result<Value>,
) -> (Outcome, Option<Value>) {
    let is_changed = |now: &Value| before.is_some_and(|before| before != now);
    let outcome = match (written, &now) {
        (Err(error), _) => Outcome::Failed { reason: error.to_string() },
        (Ok(_), Ok(now)) if now == target => Outcome::Set,
        (Ok((taken, Some(refusal))), Ok(now)) if *now == taken => {
            Outcome::AtLimit { value: now.to_string(), refusal: refusal.to_string() }
        }
        (Ok(_), Ok(now)) if knob.is_rounded() && is_changed(now) => {
            Outcome::Rounded { value: now.to_string() }
        }
        (Ok(_), Ok(now)) => Outcome::ReadsBack { value: now.to_string() },
        (Ok(_), Err(error)) => Outcome::ReadsBack { value: format!("nothing ({error})") },
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
    use rustix::io::Errno;

    use super::*;
    use crate::journal::{Entry, OwnedValues};
    use crate::netlink::ethtool::Coalescing;

    fn number(number: u64) -> Value {
        Value::Number(number)
    }

    fn ring(before: u64, target: u64, now: io::Result<Value>) -> (Outcome, Option<Value>) {
        let written = Ok((number(target), None));
        judge(&Knob::RxRing, &number(target), Some(&number(before)), written, now)
    }

    /// What comes of a delay that is to become 65,534 µs, where the driver takes at most `most`, and
    /// how often it is written.
    fn delay(before: u64, most: u64, error: Errno) -> (Outcome, Option<Value>, usize) {
        let knob = Knob::Coalesce { parameter: Coalescing::RxUsecs };
        let (mut now, mut writes) = (number(before), 0);
        let written = write_largest(&knob, &number(65_534), Some(&number(before)), |value| {
            writes += 1;
            if value.number() > Some(most) {
                return Err(error.into());
            }
            now = value.clone();
            Ok(())
        });
        let (outcome, owned) = judge(&knob, &number(65_534), Some(&number(before)), written, Ok(now));
        (outcome, owned, writes)
    }

    #[test]
    fn a_delay_beyond_the_drivers_limit_is_halved_until_it_is_taken_but_never_shortened() {
        assert_eq!(delay(3, 65_534, Errno::INVAL), (Outcome::Set, Some(number(65_534)), 1));
        for (error, most, taken, writes) in
            [(Errno::INVAL, 10_000, 8191, 4), (Errno::RANGE, 4095, 4095, 5), (Errno::INVAL, 1022, 511, 8)]
        {
            let refusal = io::Error::from(error).to_string();
            let at_limit = Outcome::AtLimit { value: taken.to_string(), refusal };
            assert_eq!(delay(3, most, error), (at_limit, Some(number(taken)), writes));
        }
        let (outcome, owned, writes) = delay(8000, 100, Errno::INVAL);
        assert!(matches!(outcome, Outcome::Failed { .. }), "{outcome:?}");
        // What others set later is theirs.
        assert_eq!((owned, writes), (Some(number(65_534)), 4));
    }

    #[test]
    fn a_process_that_may_not_set_a_delay_tries_once() {
        let (outcome, _, writes) = delay(3, 0, Errno::PERM);
        assert!(matches!(outcome, Outcome::Failed { reason } if reason.contains("not permitted")));
        assert_eq!(writes, 1);
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
                own: OwnedValues::New,
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
