//! Tries grace times on a policy's queues while it runs.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::device::Device;
use crate::grace_time::{GraceTime, nanos};
use crate::grace_time_search::GraceTimeSearch;
use crate::netlink::netdev::{NapiSetting, Netdev};
use crate::supervisor::Change;
use crate::{Guard, Knob, Policy, Value};

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

pub(crate) struct GraceTimeTuner {
    queues: Vec<Adapted>,
    received: Received,
    looked: Instant,
    tried: Option<Instant>,
}

struct Adapted {
    queue: u32,
    /// `None` while it has none.
    napi: Option<u32>,
    search: GraceTimeSearch,
    /// What is in force between trials.
    held: Duration,
    /// What had been received when it was last looked at.
    received: u64,
    loaded: bool,
    /// Looks in a row without a load.
    idle: u32,
}

/// After so many looks without a load it is gone, and the shortest is best.
const GONE_AFTER: u32 = 2;

impl GraceTimeTuner {
    /// For the queues whose grace time the guard has set, where it is to be adapted.
    pub(crate) fn new(guard: &Guard, mut received: Received) -> Self {
        let grace = guard.plan().settings.gro_flush_timeout;
        let adapts =
            guard.plan().policy == Policy::KernelPolling && matches!(grace, GraceTime::Adaptive { .. });
        let set = guard.applied().iter().filter(|applied| adapts && applied.outcome.is_ok());
        let queues = set
            .filter_map(|applied| match (&applied.knob, &applied.target) {
                (Knob::NapiGroFlushTimeout { queue }, Value::Number(nanos)) => Some(Adapted {
                    queue: *queue,
                    napi: None,
                    search: GraceTimeSearch::new(grace.candidates(), u64::from(*queue)),
                    held: Duration::from_nanos(*nanos),
                    received: received(*queue),
                    loaded: false,
                    idle: 0,
                }),
                _ => None,
            })
            .collect();
        Self { queues, received, looked: Instant::now(), tried: None }
    }

    /// Tries candidates, where there is a load to try them under; called about once a second.
    pub(crate) fn run(&mut self, guard: &mut Guard, stop: &AtomicBool, tell: &mut dyn FnMut(&Change)) {
        if self.queues.is_empty() {
            return;
        }
        self.look();
        let mut loaded = self.queues.iter().filter(|adapted| adapted.loaded).peekable();
        let any = loaded.peek().is_some();
        let settled = loaded.all(|adapted| adapted.search.is_settled());
        let due = any && !(settled && self.tried.is_some_and(|tried| tried.elapsed() < LOOK_AFTER));
        let calm = |adapted: &Adapted| adapted.idle >= GONE_AFTER && adapted.held != adapted.search.chosen();
        if !due && !self.queues.iter().any(calm) {
            return;
        }
        let Ok(mut netdev) = Netdev::open() else { return };
        self.find(guard, tell);
        let before: Vec<(u32, Duration)> =
            self.queues.iter().map(|adapted| (adapted.queue, adapted.held)).collect();
        let mut outcome = Ok(());
        if due {
            let burst = if settled { Duration::ZERO } else { BURST };
            outcome = self.try_out(guard, &mut netdev, stop, burst);
            self.tried = Some(Instant::now());
        }
        // Also after an error: no candidate is left behind by chance.
        outcome = outcome.and(self.settle(guard, &mut netdev));
        if let Err(error) = outcome.as_ref()
            && is_final(error)
        {
            for adapted in self.queues.drain(..) {
                let (queue, time) = (adapted.queue, adapted.held);
                tell(&Change::TuningStopped { queue, time, reason: error.to_string() });
            }
        }
        for adapted in &self.queues {
            if !before.contains(&(adapted.queue, adapted.held)) {
                tell(&Change::GraceTime { queue: adapted.queue, time: adapted.held });
            }
        }
    }

    /// Looks which queues have a load.
    fn look(&mut self) {
        let seconds = std::mem::replace(&mut self.looked, Instant::now()).elapsed().as_secs_f64();
        for adapted in &mut self.queues {
            let now = (self.received)(adapted.queue);
            let before = std::mem::replace(&mut adapted.received, now);
            adapted.loaded = now.wrapping_sub(before) as f64 > LOAD * seconds;
            adapted.idle = if adapted.loaded { 0 } else { adapted.idle.saturating_add(1) };
            if adapted.idle == GONE_AFTER {
                adapted.search.forget();
            }
        }
    }

    /// Looks the NAPIs up: a link that was reopened has others. Queues that somebody else has given a value
    /// are left to that.
    fn find(&mut self, guard: &Guard, tell: &mut dyn FnMut(&Change)) {
        let device = Device::new(&guard.plan().interface, guard.plan().ifindex);
        self.queues.retain_mut(|adapted| {
            let napi = device.napi(adapted.queue).ok();
            adapted.napi = napi.as_ref().map(|napi| napi.id);
            let Some(nanos) = napi.and_then(|napi| napi.gro_flush_timeout) else { return true };
            let now = Duration::from_nanos(nanos);
            // 0 is what a device has that has forgotten; the supervisor sees to that.
            let own = now.is_zero() || now == adapted.held || adapted.search.candidates().contains(&now);
            if !own {
                let reason = format!("somebody has made it {} µs", now.as_micros());
                tell(&Change::TuningStopped { queue: adapted.queue, time: now, reason });
            }
            own
        });
    }

    /// At least one round, and more for so long.
    fn try_out(
        &mut self,
        guard: &Guard,
        netdev: &mut Netdev,
        stop: &AtomicBool,
        time: Duration,
    ) -> io::Result<()> {
        let start = Instant::now();
        while !stop.load(Ordering::Acquire) {
            self.round(guard, netdev)?;
            if start.elapsed() >= time {
                break;
            }
        }
        Ok(())
    }

    /// Puts what was chosen in force.
    fn settle(&mut self, guard: &mut Guard, netdev: &mut Netdev) -> io::Result<()> {
        let mut outcome = Ok(());
        for adapted in &mut self.queues {
            let (Some(napi), chosen) = (adapted.napi, adapted.search.chosen()) else { continue };
            match guard.set_grace_time(netdev, napi, chosen) {
                Ok(()) => {
                    adapted.held = chosen;
                    guard.settle_grace_time(adapted.queue, chosen);
                }
                Err(error) => outcome = Err(error),
            }
        }
        outcome
    }

    /// Each candidate for a moment, on all loaded queues at once.
    fn round(&mut self, guard: &Guard, netdev: &mut Netdev) -> io::Result<()> {
        let orders: Vec<Vec<usize>> = self.queues.iter_mut().map(|adapted| adapted.search.order()).collect();
        let mut rates: Vec<Vec<f64>> = orders.iter().map(|order| vec![0.0; order.len()]).collect();
        let turns = orders.first().map_or(0, Vec::len);
        for turn in 0..turns {
            for (adapted, order) in self.queues.iter().zip(&orders).filter(|(adapted, _)| adapted.loaded) {
                let Some(napi) = adapted.napi else { continue };
                guard.set_grace_time(netdev, napi, adapted.search.candidates()[order[turn]])?;
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
            if adapted.loaded && adapted.napi.is_some() {
                adapted.search.record(rates);
            }
        }
        Ok(())
    }

    fn count(&mut self) -> Vec<u64> {
        self.queues.iter().map(|adapted| (self.received)(adapted.queue)).collect()
    }
}

/// Whether it will be no better the next time: a right that is not there, or a kernel that can't. Anything
/// else (a NAPI that has just gone, no free descriptor) may have passed by then.
fn is_final(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported)
}

impl Guard {
    /// Gives a NAPI a grace time, unless the host has been put back meanwhile.
    fn set_grace_time(&self, netdev: &mut Netdev, napi: u32, time: Duration) -> io::Result<()> {
        let set = || netdev.set_napi(napi, NapiSetting::GroFlushTimeout, nanos(time));
        self.while_held(set).unwrap_or(Ok(()))
    }
}
