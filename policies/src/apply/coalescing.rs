//! Sets the device's coalescing: all parameters by one request, and smaller values if the driver
//! refuses it.

use std::io;

use rustix::io::Errno;

use super::guard::Guard;
use super::outcome::Outcome;
use crate::error::Error;
use crate::host::device::Device;
use crate::journal::Journal;
use crate::knob::coalescing_limits::requests;
use crate::knob::{Knob, Value};
use crate::netlink::errno;
use crate::netlink::ethtool::{Coalescing, Ethtool};

/// A parameter, its target, what came of it, and the value that is the writer's from now on, as in
/// [`write_verified`](super::outcome::write_verified).
type Attempt = (Coalescing, u32, Outcome, Option<Value>);

trait CoalescingDevice {
    fn read(&mut self) -> io::Result<Vec<(Coalescing, u32)>>;
    fn write(&mut self, values: &[(Coalescing, u32)]) -> io::Result<()>;
}

struct NetlinkDevice {
    ethtool: Ethtool,
    index: u32,
}

impl CoalescingDevice for NetlinkDevice {
    fn read(&mut self) -> io::Result<Vec<(Coalescing, u32)>> {
        self.ethtool.coalescing(self.index)
    }

    fn write(&mut self, values: &[(Coalescing, u32)]) -> io::Result<()> {
        self.ethtool.set_coalescing(self.index, values)
    }
}

impl Guard {
    /// Carries out all steps of the plan that set coalescing.
    pub(super) fn set_coalescing(&mut self, device: &Device, others: &[Journal]) -> Result<(), Error> {
        let mut wanted = Vec::new();
        for step in self.plan.steps.clone() {
            let (Knob::Coalesce { parameter }, Value::Number(target)) = (&step.knob, &step.target) else {
                continue;
            };
            match (self.refusal_of_others(&step.knob, &step.target, device, others), u32::try_from(*target)) {
                (None, Ok(target)) => wanted.push((*parameter, target)),
                (Some(refusal), _) => {
                    self.record_outcome(&step.knob, &step.target, refusal, Some(step.target.clone()))?;
                }
                (None, Err(error)) => {
                    let outcome = Outcome::Failed { reason: error.to_string() };
                    self.record_outcome(&step.knob, &step.target, outcome, None)?;
                }
            }
        }
        let open = || Ok(NetlinkDevice { index: device.verified_index()?, ethtool: Ethtool::open()? });
        let results = match open() {
            Ok(mut netlink) => set_within_limits(&mut netlink, device.driver().as_deref(), &wanted),
            Err(error) => failed(&wanted, &error),
        };
        for (parameter, target, outcome, owned) in results {
            let target = Value::Number(target.into());
            self.record_outcome(&Knob::Coalesce { parameter }, &target, outcome, owned)?;
        }
        Ok(())
    }
}

/// Sets the wanted values, or the largest that the driver takes of those in [`requests`].
fn set_within_limits(
    device: &mut impl CoalescingDevice,
    driver: Option<&str>,
    wanted: &[(Coalescing, u32)],
) -> Vec<Attempt> {
    let before = match device.read() {
        Ok(before) => before,
        Err(error) => return failed(wanted, &error),
    };
    let mut refusal: Option<io::Error> = None;
    let mut taken = Vec::new();
    for request in requests(driver, wanted, &before) {
        match device.write(&request) {
            Ok(()) => {
                taken = request;
                break;
            }
            Err(error) => {
                let goes_on = is_refusal(&error);
                // The first one is about the values that were asked for.
                refusal.get_or_insert(error);
                if !goes_on {
                    break;
                }
            }
        }
    }
    let refusal = refusal.map(|refusal| refusal.to_string());
    let now = device.read();
    let value = |values: &[(Coalescing, u32)], parameter| {
        values.iter().find(|(which, _)| *which == parameter).map(|(_, value)| *value)
    };
    let result = |&(parameter, target): &(Coalescing, u32)| {
        let (before, taken) = (value(&before, parameter), value(&taken, parameter));
        let now = match &now {
            Ok(now) => value(now, parameter).ok_or_else(|| "nothing".to_owned()),
            Err(error) => Err(format!("nothing ({error})")),
        };
        let (outcome, owned) = judge(target, before, taken, now, refusal.as_deref());
        (parameter, target, outcome, owned.map(|owned| Value::Number(owned.into())))
    };
    wanted.iter().map(result).collect()
}

/// What came of a parameter. `taken` is the value in the request that the driver took.
fn judge(
    target: u32,
    before: Option<u32>,
    taken: Option<u32>,
    now: Result<u32, String>,
    refusal: Option<&str>,
) -> (Outcome, Option<u32>) {
    let refusal = || refusal.unwrap_or("the device has no such parameter").to_owned();
    let outcome = match (taken, &now) {
        (_, Ok(now)) if *now == target && before == Some(target) => Outcome::Already,
        (Some(_), Ok(now)) if *now == target => Outcome::Set,
        (Some(taken), Ok(now)) if *now == taken => {
            Outcome::AtLimit { value: now.to_string(), refusal: refusal() }
        }
        (Some(_), Ok(now)) => Outcome::ReadsBack { value: now.to_string() },
        (Some(_), Err(nothing)) => Outcome::ReadsBack { value: nothing.clone() },
        (None, _) => Outcome::Failed { reason: refusal() },
    };
    let owned = match now {
        Ok(now) if outcome.is_ok() => Some(now),
        // Nothing was changed. What others set later is theirs.
        Ok(now) if before == Some(now) => Some(target),
        _ => None,
    };
    (outcome, owned)
}

/// Whether an error says that the driver does not take these values, and not that it takes none
/// from this process.
fn is_refusal(error: &io::Error) -> bool {
    let refusals = [Errno::INVAL, Errno::RANGE, Errno::OPNOTSUPP].map(|errno| Some(errno.raw_os_error()));
    refusals.contains(&errno(error))
}

fn failed(wanted: &[(Coalescing, u32)], error: &io::Error) -> Vec<Attempt> {
    let failed = |&(parameter, target): &(Coalescing, u32)| {
        let owned = Some(Value::Number(target.into()));
        (parameter, target, Outcome::Failed { reason: error.to_string() }, owned)
    };
    wanted.iter().map(failed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver that refuses values beyond its limits as a whole, and one for sending.
    struct Driver {
        values: Vec<(Coalescing, u32)>,
        most: u32,
        writes: usize,
        error: Errno,
    }

    impl Driver {
        fn new(most: u32, error: Errno) -> Self {
            let values = Coalescing::ALL.map(|parameter| (parameter, u32::from(parameter.is_switch())));
            Self { values: values.to_vec(), most, writes: 0, error }
        }
    }

    impl CoalescingDevice for Driver {
        fn read(&mut self) -> io::Result<Vec<(Coalescing, u32)>> {
            Ok(self.values.clone())
        }

        fn write(&mut self, values: &[(Coalescing, u32)]) -> io::Result<()> {
            self.writes += 1;
            let is_refused = |(parameter, value): &(Coalescing, u32)| match parameter {
                Coalescing::RxUsecs => *value > self.most,
                Coalescing::TxUsecs => true,
                _ => false,
            };
            if values.iter().any(is_refused) {
                return Err(self.error.into());
            }
            for (parameter, value) in &mut self.values {
                let set = values.iter().find(|(which, _)| which == parameter);
                *value = set.map_or(*value, |(_, value)| *value);
            }
            Ok(())
        }
    }

    const WANTED: [(Coalescing, u32); 6] = [
        (Coalescing::AdaptiveRx, 0),
        (Coalescing::AdaptiveTx, 0),
        (Coalescing::RxUsecs, 65_534),
        (Coalescing::RxFrames, 512),
        (Coalescing::TxUsecs, 1024),
        (Coalescing::TxFrames, 256),
    ];

    #[test]
    fn a_known_limit_is_set_by_three_writes_and_an_unknown_one_approached_by_six() {
        for (driver, most, error, set, writes) in [
            (Some("igb"), 10_000, Errno::INVAL, "10000", 3),
            (Some("mlx5_core"), 4095, Errno::RANGE, "4095", 3),
            (Some("new"), 60_000, Errno::INVAL, "8160", 3),
            (None, 3000, Errno::RANGE, "1000", 5),
            (None, 255, Errno::INVAL, "100", 6),
        ] {
            let mut device = Driver::new(most, error);
            let results = set_within_limits(&mut device, driver, &WANTED);
            assert_eq!(device.writes, writes, "{driver:?}");
            let of = |wanted| results.iter().find(|(parameter, ..)| *parameter == wanted).unwrap();
            let (.., outcome, owned) = of(Coalescing::RxUsecs);
            let refusal = io::Error::from(error).to_string();
            assert_eq!(*outcome, Outcome::AtLimit { value: set.to_owned(), refusal: refusal.clone() });
            assert_eq!(owned.as_ref().unwrap().to_string(), set);
            assert_eq!(of(Coalescing::AdaptiveRx).2, Outcome::Set);
            assert_eq!(of(Coalescing::TxUsecs).2, Outcome::Failed { reason: refusal });
        }
    }

    #[test]
    fn a_device_that_takes_all_is_written_once_and_one_that_has_all_is_not_written() {
        let mut device = Driver::new(u32::MAX, Errno::INVAL);
        let wanted = WANTED
            .map(|(parameter, value)| (parameter, if parameter == Coalescing::TxUsecs { 0 } else { value }));
        let results = set_within_limits(&mut device, None, &wanted);
        assert_eq!(device.writes, 1);
        assert!(results.iter().all(|(.., outcome, _)| outcome.is_ok()), "{results:?}");
        let results = set_within_limits(&mut device, None, &wanted);
        assert_eq!(device.writes, 1);
        assert!(results.iter().all(|(.., outcome, _)| *outcome == Outcome::Already), "{results:?}");
    }

    #[test]
    fn a_process_that_may_not_set_coalescing_tries_once() {
        let mut device = Driver::new(0, Errno::PERM);
        let results = set_within_limits(&mut device, Some("igb"), &WANTED);
        assert_eq!(device.writes, 1);
        let refused = |outcome: &Outcome| matches!(outcome, Outcome::Failed { reason } if reason.contains("not permitted"));
        assert!(results.iter().all(|(.., outcome, _)| refused(outcome)), "{results:?}");
        // What others set later is theirs.
        assert_eq!(results[2].3, Some(Value::Number(65_534)));
    }

    #[test]
    fn a_value_that_a_refusing_driver_has_changed_stays_owned() {
        let (outcome, owned) = judge(100, Some(8), None, Ok(54), Some("invalid"));
        assert_eq!((outcome, owned), (Outcome::Failed { reason: "invalid".to_owned() }, None));
    }
}
