//! The machine's conditions around a turn.

use std::io;
use std::time::{Duration, Instant};

use procfs::CurrentSI;
use serde::Serialize;

use super::classes::CoreDistance;
use crate::Error;
use crate::cores::{CoreAssignment, round_trip};

/// Steal, as a share of one core, above which a turn is repeated.
pub(crate) const STEAL_LIMIT: f64 = 0.02;
/// The most of a turn that others may have one of the cores, as a share: what was in flight then is
/// not counted.
pub(crate) const MOST_PAUSED: f64 = 0.02;
/// How long a distance is measured: twice a turn, so it has to be short beside the turn.
const DISTANCE_DURATION: Duration = Duration::from_millis(10);

/// What the machine did during a turn that no contender caused.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Conditions {
    /// CPU time that the hypervisor took (steal), as a share of one core.
    pub steal: f64,
    pub distance: Option<CoreDistance>,
}

impl Conditions {
    /// With the round trips of a cache line before and after, in ns.
    pub(crate) fn new(steal: f64, distance: Option<(f64, f64)>) -> Self {
        Self { steal, distance: distance.map(|(before, after)| CoreDistance { before, after }) }
    }
}

/// Measures a turn, and the conditions meanwhile. Neither server nor load may run yet, or they
/// would be in the way.
pub(crate) fn observed<T>(
    cores: &CoreAssignment,
    measure: impl FnOnce() -> Result<T, Error>,
) -> Result<(T, Conditions), Error> {
    let before = distance(cores)?;
    let (steal, begun) = (steal_of(cores)?, Instant::now());
    let measured = measure()?;
    let steal = (steal_of(cores)? - steal) / begun.elapsed().as_secs_f64();
    Ok((measured, Conditions::new(steal, before.zip(distance(cores)?))))
}

/// The distance between the first worker's and the first fleet's core in nanoseconds; `None` if they share a
/// core, if the fleet is on another machine, or if something else kept a core busy.
fn distance(cores: &CoreAssignment) -> io::Result<Option<f64>> {
    let (Some(&server), Some(&client)) = (cores.servers.first(), cores.clients.first()) else {
        return Ok(None);
    };
    if server == client {
        return Ok(None);
    }
    match round_trip(server, client, DISTANCE_DURATION) {
        Ok(distance) => Ok(Some(distance)),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
        Err(error) => Err(error),
    }
}

/// What the hypervisor took of the cores of workers and fleets so far, in seconds of a core.
fn steal_of(cores: &CoreAssignment) -> io::Result<f64> {
    let stat = procfs::KernelStats::current().map_err(io::Error::other)?;
    let of = |core: u32| stat.cpu_time.get(core as usize).and_then(|time| time.steal).unwrap_or(0);
    let ticks: u64 = cores.used().into_iter().map(of).sum();
    Ok(ticks as f64 / procfs::ticks_per_second() as f64)
}
