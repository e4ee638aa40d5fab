//! A run of load on a fleet's connections.

use loadgen::stream::Response;
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::connections::{Fleet, InFlight, UNMEASURED, closed, nanos};
use super::link::PolledQueue;
use super::pacing::{FleetPacing, Pacer};
use super::recorder::{FleetLatency, FleetMeasurement, Recorder};
use crate::Error;

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FleetLoad {
    pub pacing: FleetPacing,
    pub warm_up: f64,
    pub duration: f64,
}

/// How long replies to measured requests are awaited after the measurement, in ns, while the load
/// goes on.
const DRAIN: u64 = 30_000_000;
/// How long replies are awaited after the load has ended, in ns.
const QUIET: u64 = 500_000_000;
/// A pass of the loop that takes longer was paused: something else ran on the fleet's core, or the
/// hypervisor took it away. In ns; an undisturbed pass takes some ten µs at most.
const PAUSE: u64 = 250_000;
/// Requests of the closed loop that one pass sends at most, so that it is short.
const SENDS_PER_PASS: usize = 8;
/// Acknowledgements that are sent at a time when a load has ended, and the time between, in ns.
const ACKS_AT_A_TIME: usize = 32;
const ACK_INTERVAL: u64 = 200_000;

struct Run {
    pacer: Pacer,
    recorder: Recorder,
    /// The clock's last reading, in ns.
    now: u64,
    /// The measured time, in ns.
    from: u64,
    to: u64,
    sending: bool,
    /// Begins at 1. Each pause begins a new one: requests that were in flight then are not
    /// measured. Comparing numbers costs the same with any number of connections; a walk over them
    /// would itself be a pause.
    epoch: u64,
    /// Measured requests in flight.
    awaited: u64,
    /// Whether the next request of the open loop waits for a connection.
    blocked: bool,
}

impl Run {
    #[inline]
    fn reply(&mut self, outcome: Response, request: InFlight) {
        let now = self.now;
        self.recorder.counts.all_replies += 1;
        self.recorder.replies += u64::from((self.from..self.to).contains(&now));
        self.recorder.outcome(outcome, request.keys);
        if request.epoch == self.epoch {
            self.awaited -= 1;
            self.latency(request.due, now);
        }
    }

    /// Records a request that was due and is answered, or given up, now.
    #[inline]
    fn latency(&mut self, due: u64, now: u64) {
        let latency = now.saturating_sub(due);
        self.recorder.latencies.saturating_record(latency);
    }
}

impl Fleet {
    pub fn run(&mut self, load: &FleetLoad) -> Result<FleetMeasurement, Error> {
        let begin = self.link.now();
        let from = begin + nanos(load.warm_up);
        let to = from + nanos(load.duration);
        self.runs += 1;
        let mut run = Run {
            pacer: Pacer::new(
                load.pacing,
                self.config.seed.wrapping_add(self.runs),
                begin,
                from,
                self.clients.len(),
            ),
            recorder: Recorder::new(),
            now: begin,
            from,
            to,
            sending: true,
            epoch: UNMEASURED + 1,
            awaited: 0,
            blocked: false,
        };
        if !run.pacer.is_open() {
            self.free.clear();
        }
        self.queue.as_mut().map_or(Ok(()), PolledQueue::take)?;
        let counts = self.link.counts;
        self.ring_drops()?;
        let mut busy = 0;
        loop {
            let (before, pauses) = (run.now, run.recorder.counts.pauses);
            let worked = self.step(&mut run)?;
            self.tick(&mut run);
            let Run { now, from, to, .. } = run;
            if worked && run.recorder.counts.pauses == pauses && before >= from && now <= to {
                busy += now - before;
            }
            if now >= to {
                let answered = run.awaited == 0 && !(run.pacer.is_open() && run.pacer.due() < to);
                if answered || now >= to + DRAIN {
                    break;
                }
            }
        }
        self.finish(&mut run)?;
        if self.lost > 0 {
            return Err(closed(self.lost));
        }
        let Run { recorder, from, to, .. } = run;
        let seconds = ((to - from) as f64 / 1e9 - recorder.counts.paused).max(1e-9);
        Ok(FleetMeasurement {
            seconds,
            qps: recorder.replies as f64 / seconds,
            latency: FleetLatency::of(&recorder.latencies),
            latencies: recorder.buckets(),
            send_lag: FleetLatency::of(&recorder.lags),
            dropped: self.link.counts.dropped - counts.dropped,
            retransmitted: self.link.counts.retransmitted - counts.retransmitted,
            ring_drops: self.ring_drops()?,
            busy: (busy as f64 / 1e9 / seconds).min(1.0),
            ..recorder.counts
        })
    }

    /// Reads the clock, and forgives a pause since the last reading.
    #[inline]
    fn tick(&mut self, run: &mut Run) {
        let (before, now) = (run.now, self.link.now());
        run.now = now;
        if now - before > PAUSE {
            forgive_pause(before, now, run);
        }
    }

    /// Ends the load: counts what was due and has no reply, and awaits the replies that are
    /// outstanding, so that the next run begins with idle connections.
    fn finish(&mut self, run: &mut Run) -> Result<(), Error> {
        run.sending = false;
        let now = run.now;
        for client in &mut self.clients {
            if let Some(request) = &mut client.in_flight {
                if request.epoch == run.epoch {
                    run.recorder.counts.unanswered += 1;
                    run.latency(request.due, now);
                }
                request.epoch = UNMEASURED;
            }
        }
        run.awaited = 0;
        while run.pacer.is_open() && run.pacer.due() < run.to {
            if run.pacer.due() >= run.from {
                run.recorder.counts.requests += 1;
                run.recorder.counts.unanswered += 1;
                run.latency(run.pacer.due(), now);
            }
            run.pacer.advance();
        }
        while self.outstanding > 0 && self.lost == 0 && run.now < now + QUIET {
            self.step(run)?;
            run.now = self.link.now();
        }
        let now = run.now;
        for index in 0..self.clients.len() {
            if index % ACKS_AT_A_TIME == ACKS_AT_A_TIME - 1 {
                // The server's queue has room for some hundred packets, and its core has to get
                // there.
                let until = self.link.now() + ACK_INTERVAL;
                while self.link.now() < until {
                    self.poll()?;
                }
            }
            self.clients[index].tcp.acknowledge_now(&mut self.link, now)?;
        }
        // After everything that was received, so that each connection is in there once.
        self.free.clear();
        for (index, client) in self.clients.iter().enumerate() {
            if client.in_flight.is_none() {
                self.free.push(index as u32);
            }
        }
        self.queue.as_mut().map_or(Ok(()), PolledQueue::release)
    }

    /// Sends what is due, receives, and looks after timers. Returns whether there was anything to
    /// do.
    #[inline]
    fn step(&mut self, run: &mut Run) -> Result<bool, Error> {
        let mut worked = run.sending && self.send_due(run)?;
        if worked {
            self.tick(run);
        }
        self.poll()?;
        self.tick(run);
        worked |= self.receive_run(run)?;
        worked |= self.keep_timers(run.now)?;
        Ok(worked)
    }

    #[inline]
    fn send_due(&mut self, run: &mut Run) -> Result<bool, Error> {
        let now = run.now;
        if !run.pacer.is_open() {
            let Some(index) = run.pacer.next_to_begin(now) else { return Ok(false) };
            self.send(index, now, run)?;
            return Ok(true);
        }
        let due = run.pacer.due();
        if due > now {
            return Ok(false);
        }
        if self.free.is_empty() {
            run.blocked = true;
            return Ok(false);
        }
        if (run.from..run.to).contains(&due) && !run.blocked {
            run.recorder.lags.saturating_record(now - due);
        }
        let slot = run.pacer.random.random_range(0..self.free.len());
        let index = self.free.swap_remove(slot);
        run.pacer.advance();
        self.send(index, due, run)?;
        // A request that is late because those before it waited has waited, too.
        run.blocked &= run.pacer.due() <= now;
        Ok(true)
    }

    /// Sends a request of the run on a connection that has room for it.
    #[inline]
    fn send(&mut self, index: u32, due: u64, run: &mut Run) -> Result<(), Error> {
        let client = &mut self.clients[index as usize];
        let keys = self.source.append_next(&mut client.tcp.out);
        let measured = (run.from..run.to).contains(&due);
        if measured {
            run.recorder.counts.requests += 1;
            run.awaited += 1;
        }
        let epoch = if measured { run.epoch } else { UNMEASURED };
        client.in_flight = Some(InFlight { due, keys, epoch });
        client.tcp.flush(&mut self.link, run.now)?;
        self.outstanding += 1;
        Ok(())
    }

    #[inline]
    fn receive_run(&mut self, run: &mut Run) -> Result<bool, Error> {
        let received = self.drain(run.now, &mut |outcome, request| run.reply(outcome, request))?;
        if !run.sending || run.pacer.is_open() {
            return Ok(received);
        }
        let mut free = std::mem::take(&mut self.free);
        let count = free.len().min(SENDS_PER_PASS);
        for index in free.drain(..count) {
            self.tick(run);
            let now = run.now;
            self.send(index, now, run)?;
        }
        self.free = free;
        Ok(received || count > 0)
    }
}

/// Keeps a pause of the fleet's own core out of the measurement: requests in flight are not
/// measured, because their replies were not seen in time, and what was due meanwhile is due after
/// it.
fn forgive_pause(from: u64, to: u64, run: &mut Run) {
    run.pacer.postpone(to - from);
    if to > run.from && from < run.to {
        run.recorder.counts.pauses += 1;
        run.recorder.counts.paused += (to.min(run.to) - from.max(run.from)) as f64 / 1e9;
    }
    run.recorder.counts.forgiven += run.awaited;
    run.awaited = 0;
    run.epoch += 1;
}
