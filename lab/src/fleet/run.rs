//! A run of load on a fleet's connections.

use rand::RngExt;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::FleetError;
use super::engine::{Fleet, InFlight, UNMEASURED, nanos};
use super::measurement::{FleetMeasurement, Recorder};
use super::pacing::{FleetPacing, Pacer};

/// A run of load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FleetLoad {
    /// When requests are due.
    pub pacing: FleetPacing,
    /// Seconds of load before the measurement.
    pub warm_up: f64,
    /// Seconds of measurement.
    pub duration: f64,
}

/// Load between the announcement of a measurement and its beginning, in ns: the server's counters are read meanwhile.
const GUARD: u64 = 15_000_000;
/// How long replies to measured requests are awaited after the measurement, in ns, while the load goes on.
const DRAIN: u64 = 30_000_000;
/// How long replies are awaited after the load has ended, in ns.
const QUIET: u64 = 500_000_000;
/// A pass of the loop that takes longer was paused: something else ran on the fleet's core, or the hypervisor took it
/// away. In ns; an undisturbed pass takes some ten µs at most.
const PAUSE: u64 = 250_000;
/// Requests of the closed loop that one pass sends at most, so that it is short.
const SENDS_PER_PASS: usize = 8;
/// Acknowledgements that are sent at a time when a load has ended, and the time between, in ns.
const ACKS_AT_A_TIME: usize = 32;
const ACK_INTERVAL: u64 = 200_000;

/// The load in progress.
struct Run {
    pacer: Pacer,
    recorder: Recorder,
    /// The measured time, in ns.
    from: u64,
    to: u64,
    sending: bool,
    /// Begins at 1. Each pause begins a new one: requests that were in flight then are not measured. Comparing numbers
    /// costs the same with any number of connections; a walk over them would itself be a pause.
    epoch: u64,
    /// Measured requests in flight.
    awaited: u64,
    /// Whether the next request of the open loop waits for a connection.
    blocked: bool,
    /// Pauses of the fleet's core in the measured time, and their length in ns.
    pauses: u64,
    paused: u64,
}

impl Fleet {
    /// Loads the server. Calls `measuring` when the warm-up is over, 15 ms before the measurement.
    ///
    /// # Errors
    /// If the server closes connections, or if its replies can't be parsed.
    pub fn run(
        &mut self,
        load: &FleetLoad,
        mut measuring: impl FnMut(),
    ) -> Result<FleetMeasurement, FleetError> {
        let begin = self.link.now();
        let announce = begin + nanos(load.warm_up);
        let from = announce + GUARD;
        let to = from + nanos(load.duration);
        self.runs += 1;
        let mut run = Run {
            pacer: Pacer::new(
                load.pacing,
                self.config.seed.wrapping_add(self.runs),
                begin,
                self.clients.len(),
                self.config.depth,
                nanos(load.warm_up) / 2,
            ),
            recorder: Recorder::new()?,
            from,
            to,
            sending: true,
            epoch: UNMEASURED + 1,
            awaited: 0,
            blocked: false,
            pauses: 0,
            paused: 0,
        };
        self.choosing = run.pacer.is_open();
        self.queue.take()?;
        let counts = self.link.counts;
        self.ring_drops()?;
        (self.duplicates, self.looks, self.packets) = (0, 0, 0);
        let (mut announced, mut begun) = (false, None);
        let (mut busy, mut measured_busy) = (0, (0, 0));
        let mut cpu = 0.0;
        let mut now = begin;
        loop {
            let worked = self.step(now, &mut run)?;
            let after = self.link.now();
            if after - now > PAUSE {
                forgive_pause(now, after, &mut run);
            } else if worked {
                busy += after - now;
            }
            now = after;
            if !announced && now >= announce {
                announced = true;
                run.recorder.all_replies = 0;
                measuring();
            }
            if begun.is_none() && now >= from {
                begun = Some((now, thread_cpu()));
                measured_busy.0 = busy;
            }
            if now >= to && measured_busy.1 == 0 {
                measured_busy.1 = busy;
                if let Some((_, before)) = begun {
                    cpu = thread_cpu() - before;
                }
            }
            let over = now >= to && (run.awaited == 0 || now >= to + DRAIN);
            if over && !(run.pacer.is_open() && run.pacer.due() < to && now < to + DRAIN) {
                break;
            }
        }
        self.finish(&mut run, now)?;
        if self.lost > 0 {
            return Err(FleetError::Closed(self.lost));
        }
        let Run { recorder, pauses, paused, .. } = run;
        let seconds = (to - from).saturating_sub(paused).max(1) as f64 / 1e9;
        let busy = ((measured_busy.1 - measured_busy.0) as f64 / 1e9 / seconds).min(1.0);
        Ok(FleetMeasurement {
            seconds,
            requests: recorder.requests,
            qps: recorder.replies as f64 / seconds,
            replies_since_warm_up: recorder.all_replies,
            latency: recorder.latencies(),
            send_lag: recorder.lags(),
            pauses,
            paused: paused as f64 / 1e9,
            forgiven: recorder.forgiven,
            waited: recorder.waited,
            unanswered: recorder.unanswered,
            errors: recorder.errors,
            misses: recorder.misses,
            dropped: self.link.counts.dropped - counts.dropped,
            retransmitted: self.link.counts.retransmitted - counts.retransmitted,
            ring_drops: self.ring_drops()?,
            bare_acks: self.link.counts.bare - counts.bare,
            busy,
            cpu_us: cpu * busy * 1e6 / recorder.replies.max(1) as f64,
            packets_per_look: self.packets as f64 / self.looks.max(1) as f64,
            duplicates: self.duplicates,
        })
    }

    /// Ends the load: counts what was due and has no reply, and awaits the replies that are outstanding, so that the
    /// next run begins with idle connections.
    fn finish(&mut self, run: &mut Run, now: u64) -> Result<(), FleetError> {
        run.sending = false;
        for client in &mut self.clients {
            for request in &mut client.in_flight {
                if request.epoch == run.epoch {
                    run.recorder.unanswered += 1;
                    run.recorder.latency(now.saturating_sub(request.due));
                }
                request.epoch = UNMEASURED;
            }
        }
        while run.pacer.is_open() && run.pacer.due() < run.to {
            if run.pacer.due() >= run.from {
                run.recorder.requests += 1;
                run.recorder.unanswered += 1;
                run.recorder.waited += 1;
                run.recorder.latency(now.saturating_sub(run.pacer.due()));
            }
            run.pacer.advance();
        }
        let (mut now, deadline) = (now, now + QUIET);
        while self.outstanding > 0 && self.lost == 0 && now < deadline {
            self.step(now, run)?;
            now = self.link.now();
        }
        for index in 0..self.clients.len() {
            if index % ACKS_AT_A_TIME == ACKS_AT_A_TIME - 1 {
                // The server's queue has room for some hundred packets, and its core has to get there.
                let until = self.link.now() + ACK_INTERVAL;
                while self.link.now() < until {
                    self.receive(now, &mut |_, _, _| {})?;
                }
            }
            self.clients[index].tcp.acknowledge_now(&mut self.link, now)?;
        }
        // After everything that was received, so that each connection is in there once.
        self.free.clear();
        for (index, client) in self.clients.iter().enumerate() {
            if client.in_flight.len() < self.config.depth {
                self.free.push(index as u32);
            }
        }
        self.choosing = true;
        self.again.clear();
        self.queue.release()
    }

    /// Sends what is due, receives, and looks after timers. Returns whether there was anything to do.
    #[inline]
    fn step(&mut self, now: u64, run: &mut Run) -> Result<bool, FleetError> {
        let mut worked = false;
        if run.sending {
            if run.pacer.is_open() {
                let due = run.pacer.due();
                if due <= now && !self.free.is_empty() {
                    if (run.from..run.to).contains(&due) {
                        if run.blocked {
                            run.recorder.waited += 1;
                        } else {
                            run.recorder.lag(now - due);
                        }
                    }
                    let slot = run.pacer.random().random_range(0..self.free.len());
                    let index = self.free.swap_remove(slot);
                    run.pacer.advance();
                    self.send(index, due, now, run)?;
                    worked = true;
                    // A request that is late because those before it waited has waited, too.
                    run.blocked &= run.pacer.due() <= now;
                } else if due <= now {
                    run.blocked = true;
                }
            } else if let Some(index) = run.pacer.thought(now) {
                self.send(index, now, now, run)?;
                worked = true;
            }
        }
        worked |= self.receive_run(now, run)?;
        if now >= self.timers_at {
            self.keep_timers(now)?;
        }
        Ok(worked)
    }

    /// Sends a request of the run on a connection that has room for it.
    #[inline]
    fn send(&mut self, index: u32, due: u64, now: u64, run: &mut Run) -> Result<(), FleetError> {
        let keys = self.source.append_next(&mut self.clients[index as usize].tcp.out);
        let measured = (run.from..run.to).contains(&due);
        if measured {
            run.recorder.requests += 1;
            run.awaited += 1;
        }
        let epoch = if measured { run.epoch } else { UNMEASURED };
        self.dispatch(index, InFlight { due, keys, epoch }, now)
    }

    #[inline]
    fn receive_run(&mut self, now: u64, run: &mut Run) -> Result<bool, FleetError> {
        let Run { pacer, recorder, from, to, sending, epoch, awaited, .. } = run;
        let mut again = std::mem::take(&mut self.again);
        let received = self.receive(now, &mut |index, outcome, request: InFlight| {
            recorder.all_replies += 1;
            recorder.replies += u64::from((*from..*to).contains(&now));
            recorder.outcome(outcome, request.keys);
            if request.epoch == *epoch {
                *awaited -= 1;
                recorder.latency(now.saturating_sub(request.due));
            }
            if *sending && let Some(index) = pacer.think(now, index) {
                again.push(index);
            }
        })?;
        let now_sent = again.len().min(SENDS_PER_PASS);
        for index in again.drain(..now_sent) {
            self.send(index, now, now, run)?;
        }
        self.again = again;
        Ok(received)
    }
}

/// Keeps a pause of the fleet's own core out of the measurement: requests in flight are not measured, because their
/// replies were not seen in time, and what was due meanwhile is due after it.
fn forgive_pause(from: u64, to: u64, run: &mut Run) {
    if to > run.from && from < run.to {
        run.pauses += 1;
        run.paused += to.min(run.to) - from.max(run.from);
    }
    run.pacer.postpone(to - from);
    run.recorder.forgiven += run.awaited;
    run.awaited = 0;
    run.epoch += 1;
}

/// CPU time of this thread, in seconds.
fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
