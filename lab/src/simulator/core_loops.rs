//! One core that serves one queue: the kernel's loops, step by step, on a simulated clock.

use super::costs::Costs;
use super::rules::{Drive, FinishedWait, Rule};

/// `busy_poll_budget`: packets that one poll receives at most.
const POLL_BUDGET: usize = 64;

/// What a run leaves behind. Times are in nanoseconds since its start.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The time from arrival to the end of the service, of each request in the order of arrival.
    pub delays: Vec<u64>,
    /// The end of the last service.
    pub end: u64,
    /// When the core was busy, in total.
    pub busy: u64,
    /// When the core was idle, in total.
    pub idle: u64,
    /// When the worker's thread slept, in total.
    pub asleep: u64,
    pub sleeps: u64,
    /// When the queue began to be driven in another way.
    pub changes: Vec<u64>,
    /// The time from each empty wait to the next arrival.
    pub gaps: Vec<u64>,
    /// The first request of the measured part.
    pub measured_from: usize,
    /// The busy time when that request was next.
    pub busy_before: u64,
}

/// Serves requests that arrive at these times (in ns, ascending), and measures from the request of this index.
pub(super) fn serve_all(arrivals: &[u64], measured_from: usize, costs: Costs, rule: &mut dyn Rule) -> Run {
    let mut core = Core::new(arrivals, costs);
    let mut drive = rule.drive();
    let mut is_measured = false;
    while core.served < arrivals.len() {
        if !is_measured && core.served >= measured_from {
            is_measured = true;
            (core.run.measured_from, core.run.busy_before) = (core.served, core.run.busy);
        }
        let wait = match drive {
            Drive::Plain => core.wait_plain(),
            Drive::Polling { ticks, spin, .. } => core.wait_polling(ticks, spin, rule),
        };
        core.run.gaps.extend(wait.gap);
        rule.waited(&wait);
        // Those that become ready meanwhile are for the next wait.
        for _ in 0..wait.events {
            core.work(costs.service, drive == Drive::Plain);
            core.run.delays.push(core.now - arrivals[core.served]);
            core.served += 1;
        }
        let next = rule.drive();
        if next != drive {
            core.run.changes.push(core.now);
            drive = next;
        }
    }
    core.run.end = core.now;
    core.run
}

struct Core<'a> {
    costs: Costs,
    arrivals: &'a [u64],
    now: u64,
    /// How many packets are out of the receive ring.
    received: usize,
    /// How many requests are served.
    served: usize,
    run: Run,
}

impl<'a> Core<'a> {
    fn new(arrivals: &'a [u64], costs: Costs) -> Self {
        let run = Run { delays: Vec::with_capacity(arrivals.len()), ..Run::default() };
        Self { costs, arrivals, now: 0, received: 0, served: 0, run }
    }

    fn next_arrival(&self) -> u64 {
        self.arrivals.get(self.received).copied().unwrap_or(u64::MAX)
    }

    fn has_ready(&self) -> bool {
        self.received > self.served
    }

    fn compute(&mut self, time: u64) {
        self.now += time;
        self.run.busy += time;
    }

    /// Idles until then, if it is not past, and for the time in which the core leaves its idle state.
    fn idle_until(&mut self, time: u64) {
        let until = time.max(self.now) + self.costs.idle_exit();
        self.run.idle += until - self.now;
        self.now = until;
    }

    /// Receives what is in the ring, and what comes meanwhile. Returns whether that was anything.
    fn receive(&mut self, limit: usize) -> bool {
        let before = self.received;
        while self.next_arrival() <= self.now && self.received - before < limit {
            self.compute(self.costs.receive);
            self.received += 1;
        }
        self.received > before
    }

    fn poll(&mut self) -> bool {
        self.compute(self.costs.pass);
        self.receive(POLL_BUDGET)
    }

    fn interrupt(&mut self) {
        self.compute(self.costs.irq);
        self.receive(usize::MAX);
    }

    /// Computes for this long. Interrupts take their time from it.
    fn work(&mut self, mut time: u64, is_interruptible: bool) {
        while is_interruptible && self.next_arrival() < self.now + time {
            let before = self.next_arrival().saturating_sub(self.now);
            self.compute(before);
            time -= before;
            self.interrupt();
        }
        self.compute(time);
    }

    fn wait_plain(&mut self) -> FinishedWait {
        let started = self.now;
        // Left in the ring by polling.
        if self.next_arrival() <= self.now {
            self.interrupt();
        }
        if self.has_ready() {
            return self.finished(started, None);
        }
        self.work(self.costs.falling_asleep(), true);
        let asleep_from = self.now;
        if !self.has_ready() {
            self.idle_until(self.next_arrival());
            self.interrupt();
        }
        self.woken(asleep_from);
        self.work(self.costs.waking(), true);
        self.finished(started, Some(started))
    }

    fn wait_polling(&mut self, ticks: u32, spin: u64, rule: &mut dyn Rule) -> FinishedWait {
        let started = self.now;
        // Received by interrupts before the first wait that polls.
        if self.has_ready() || self.poll() {
            return self.finished(started, None);
        }
        let empty = self.now;
        if !rule.needs_pass() && spin > 0 && self.spin(spin) {
            return self.finished(started, Some(empty));
        }
        // `busy_poll_stop`, and the poll that `napi_resume_irqs` schedules.
        if self.poll() || self.poll() {
            return self.finished(started, Some(empty));
        }
        if rule.needs_pass() {
            return self.finished(started, None);
        }
        let polled = self.now;
        self.work(self.costs.falling_asleep(), ticks == 0);
        let asleep_from = self.now;
        if !self.has_ready() && !self.timer_receives(polled, ticks, rule) {
            self.idle_until(self.next_arrival());
            self.interrupt();
        }
        self.woken(asleep_from);
        // Found packets defer the interrupt again.
        self.compute(self.costs.waking());
        self.finished(started, Some(empty))
    }

    /// Polls until something arrives, or for this long. Returns whether something has arrived.
    fn spin(&mut self, spin: u64) -> bool {
        let wait = self.next_arrival().saturating_sub(self.now);
        if wait > spin {
            self.compute(spin);
            return false;
        }
        let pass = self.costs.pass.max(1);
        self.compute(wait.div_ceil(pass).max(1) * pass);
        self.receive(POLL_BUDGET)
    }

    /// Lets the timer poll until it finds packets, or until it has polled `ticks` times. Returns whether it has found any.
    fn timer_receives(&mut self, armed: u64, ticks: u32, rule: &mut dyn Rule) -> bool {
        let mut armed = armed;
        for _ in 0..ticks {
            let Drive::Polling { grace, .. } = rule.drive() else { break };
            self.idle_until(armed + grace);
            self.compute(self.costs.tick);
            let found = self.receive(POLL_BUDGET);
            rule.ticked(found);
            if found {
                return true;
            }
            armed = self.now;
        }
        false
    }

    fn woken(&mut self, asleep_from: u64) {
        self.run.asleep += self.now - asleep_from;
        self.run.sleeps += 1;
    }

    /// `empty_from`: since when the queue was empty, if it was.
    fn finished(&self, started: u64, empty_from: Option<u64>) -> FinishedWait {
        FinishedWait {
            started,
            ended: self.now,
            events: (self.received - self.served) as u64,
            gap: empty_from.map(|empty| self.arrivals[self.served].saturating_sub(empty)),
            awake: self.now - self.run.asleep,
        }
    }
}

#[cfg(test)]
mod tests;
