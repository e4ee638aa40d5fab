//! Tries grace times on a policy's queues while it runs.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::grace_search::GraceSearch;
use crate::grace_time::GraceTime;
use crate::keeper::Change;
use crate::netlink::netdev::{NapiSetting, Netdev};
use crate::{Guard, Knob, Policy};

/// How long a candidate is in force before what it brings is counted: connections that wait for each
/// other's answers need some round trips to find their new pace.
const SETTLE: Duration = Duration::from_millis(2);
/// For how long it is counted.
const SLICE: Duration = Duration::from_millis(10);
/// How long the search may take at once, between looks at the link.
const BURST: Duration = Duration::from_millis(600);
/// How often a settled search is looked after.
const LOOK_AFTER: Duration = Duration::from_secs(5);
/// Below so many bytes a second there is nothing to compare: some two thousand small requests.
const LOAD: f64 = 100_000.0;

/// Bytes that the worker of a receive queue has received so far.
pub(crate) type Received = Box<dyn FnMut(u32) -> u64 + Send>;

pub(crate) struct Adapter {
    queues: Vec<Adapted>,
    received: Received,
    looked: Instant,
    tried: Option<Instant>,
}

struct Adapted {
    queue: u32,
    napi: u32,
    search: GraceSearch,
    /// What it had when it was last told of.
    told: Duration,
    /// What had been received then.
    received: u64,
}

impl Adapter {
    /// For the queues whose grace time the guard has set, where it is to be adapted.
    pub(crate) fn new(guard: &Guard, mut received: Received) -> Self {
        let grace = guard.plan().settings.gro_flush_timeout;
        let adapts =
            guard.plan().policy == Policy::KernelPolling && matches!(grace, GraceTime::Adapted { .. });
        let set = guard.applied().iter().filter(|applied| adapts && applied.outcome.is_ok());
        let queues = set.filter_map(|applied| match applied.knob {
            Knob::NapiGroFlushTimeout { queue } => Some(queue),
            _ => None,
        });
        let queues = queues
            .enumerate()
            .map(|(position, queue)| Adapted {
                queue,
                napi: 0,
                search: GraceSearch::new(grace.candidates(), position),
                told: grace.first(),
                received: received(queue),
            })
            .collect();
        Self { queues, received, looked: Instant::now(), tried: None }
    }

    /// Tries candidates, where there is a load to try them under; called about once a second.
    pub(crate) fn run(&mut self, guard: &mut Guard, stop: &AtomicBool, tell: &mut dyn FnMut(&Change)) {
        if self.queues.is_empty() || !self.is_loaded() {
            return;
        }
        let settled = self.queues.iter().all(|adapted| adapted.search.is_settled());
        if settled && self.tried.is_some_and(|tried| tried.elapsed() < LOOK_AFTER) {
            return;
        }
        if let Err(error) = self.try_out(guard, stop, if settled { Duration::ZERO } else { BURST }) {
            for adapted in self.queues.drain(..) {
                let time = adapted.told;
                tell(&Change::NotAdapted { queue: adapted.queue, time, reason: error.to_string() });
            }
            return;
        }
        self.tried = Some(Instant::now());
        for adapted in &mut self.queues {
            let time = adapted.search.chosen();
            if std::mem::replace(&mut adapted.told, time) != time {
                tell(&Change::GraceTime { queue: adapted.queue, time });
            }
        }
    }

    fn is_loaded(&mut self) -> bool {
        let seconds = std::mem::replace(&mut self.looked, Instant::now()).elapsed().as_secs_f64();
        let mut loaded = false;
        for adapted in &mut self.queues {
            let now = (self.received)(adapted.queue);
            let before = std::mem::replace(&mut adapted.received, now);
            loaded |= now.wrapping_sub(before) as f64 > LOAD * seconds;
        }
        loaded
    }

    /// At least one round, and more for so long; leaves what was chosen in force.
    fn try_out(&mut self, guard: &mut Guard, stop: &AtomicBool, time: Duration) -> io::Result<()> {
        // Looked up each time: a link that was reopened has other NAPIs.
        let device = Device::new(&guard.plan().interface, guard.plan().ifindex);
        for adapted in &mut self.queues {
            match device.napi(adapted.queue) {
                Ok(napi) => adapted.napi = napi.id,
                // The link is down, or the interface gone: the next look at it tells.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let mut netdev = Netdev::open()?;
        let start = Instant::now();
        let mut outcome = Ok(());
        while outcome.is_ok() && !stop.load(Ordering::Acquire) {
            outcome = self.round(guard, &mut netdev);
            if start.elapsed() >= time {
                break;
            }
        }
        // Also after an error: no candidate is left behind by chance.
        for adapted in &self.queues {
            let chosen = adapted.search.chosen();
            outcome = outcome.and(guard.set_grace_time(&mut netdev, adapted.napi, chosen));
            guard.settle_grace_time(adapted.queue, chosen);
        }
        // Its NAPIs went while they were tried.
        outcome.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
    }

    /// Each candidate for a moment, on all queues at once.
    fn round(&mut self, guard: &Guard, netdev: &mut Netdev) -> io::Result<()> {
        let orders: Vec<Vec<usize>> = self.queues.iter().map(|adapted| adapted.search.order()).collect();
        let mut rates: Vec<Vec<f64>> = orders.iter().map(|order| vec![0.0; order.len()]).collect();
        let turns = orders.first().map_or(0, Vec::len);
        for turn in 0..turns {
            for (adapted, order) in self.queues.iter().zip(&orders) {
                guard.set_grace_time(netdev, adapted.napi, adapted.search.candidates()[order[turn]])?;
            }
            thread::sleep(SETTLE);
            let (start, before) = (Instant::now(), self.count());
            thread::sleep(SLICE);
            let (after, seconds) = (self.count(), start.elapsed().as_secs_f64());
            for (queue, order) in orders.iter().enumerate() {
                rates[queue][order[turn]] = after[queue].wrapping_sub(before[queue]) as f64 / seconds;
            }
        }
        for (adapted, rates) in self.queues.iter_mut().zip(&rates) {
            adapted.search.record(rates);
        }
        Ok(())
    }

    fn count(&mut self) -> Vec<u64> {
        self.queues.iter().map(|adapted| (self.received)(adapted.queue)).collect()
    }
}

impl Guard {
    /// Gives a NAPI a grace time, unless the host has been put back meanwhile.
    fn set_grace_time(&self, netdev: &mut Netdev, napi: u32, time: Duration) -> io::Result<()> {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.while_held(|| netdev.set_napi(napi, NapiSetting::GroFlushTimeout, nanos)).unwrap_or(Ok(()))
    }
}
