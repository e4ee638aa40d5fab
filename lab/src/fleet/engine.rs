//! The fleet's loop: receives, sends what is due, and keeps TCP's timers.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use loadgen::stream::Outcome;
use rand::RngExt;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::FleetError;
use super::connection::{Arrived, Connection, RETRANSMISSION_TIMEOUT};
use super::link::Link;
use super::measurement::{FleetMeasurement, Recorder};
use super::pacing::{FleetPacing, Pacer};
use super::packet_socket::PacketRing;
use super::polled_queue::PolledQueue;
use super::requests::{FleetRequests, ReplyParser, RequestSource};
use super::segment::{Ends, SEGMENT_PAYLOAD, Unreadable, parse};

/// The fleet and its server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetConfig {
    /// The interface to send and receive on.
    pub interface: String,
    /// The fleet's hardware address. The kernel must not have it, so that it ignores the fleet's packets.
    pub mac: [u8; 6],
    /// The fleet's address, which the kernel must not have either.
    pub address: Ipv4Addr,
    /// The server's hardware address.
    pub server_mac: [u8; 6],
    /// The server's address.
    pub server: SocketAddrV4,
    /// The number of connections, 1 to 50,000.
    pub connections: usize,
    /// Requests in flight on each connection, at least 1.
    pub depth: usize,
    /// What is asked.
    pub requests: FleetRequests,
    /// The seed of due times and requests.
    pub seed: u64,
}

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

/// The port of the first connection. The others follow.
const FIRST_PORT: u16 = 10_000;
const MOST_CONNECTIONS: usize = 50_000;
/// Handshakes at a time, well below a listener's backlog.
const HANDSHAKES: usize = 64;
/// Records that are stored at a time.
const STORES: usize = 32;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
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
/// How often timers are looked at, in ns.
const TIMER_INTERVAL: u64 = 1_000_000;
/// Packets that are received before due requests are looked at again.
const PACKETS_PER_LOOK: usize = 64;

#[derive(Debug, Clone, Copy)]
struct InFlight {
    due: u64,
    keys: u16,
    measured: bool,
}

#[derive(Debug)]
struct Client {
    tcp: Connection,
    replies: ReplyParser,
    in_flight: VecDeque<InFlight>,
}

/// Connections to one server.
#[derive(Debug)]
pub struct Fleet {
    config: FleetConfig,
    link: Link,
    queue: PolledQueue,
    /// `None` while it hands a packet out.
    ring: Option<PacketRing>,
    source: RequestSource,
    clients: Vec<Client>,
    /// Connections that have room for a request, except in the closed loop, which does not choose.
    free: Vec<u32>,
    choosing: bool,
    /// Requests in flight on all connections.
    outstanding: usize,
    established: usize,
    /// Connections of the closed loop that send again at once.
    again: Vec<u32>,
    /// Connections with the time at which their acknowledgements, or their bytes, are looked at.
    ack_queue: VecDeque<(u64, u32)>,
    retransmission_queue: VecDeque<(u64, u32)>,
    timers_at: u64,
    lost: usize,
    duplicates: u64,
    looks: u64,
    packets: u64,
    runs: u64,
}

/// The load in progress.
struct Run {
    pacer: Pacer,
    recorder: Recorder,
    /// The measured time, in ns.
    from: u64,
    to: u64,
    sending: bool,
    /// Measured requests in flight.
    awaited: u64,
    /// Whether the next request of the open loop waits for a connection.
    blocked: bool,
    /// Pauses of the fleet's core in the measured time, and their length in ns.
    pauses: u64,
    paused: u64,
}

impl Fleet {
    /// Connects to the server.
    ///
    /// # Errors
    /// If the configuration is invalid, without `CAP_NET_RAW`, or if the server doesn't accept the connections.
    pub fn connect(config: FleetConfig) -> Result<Self, FleetError> {
        if !(1..=MOST_CONNECTIONS).contains(&config.connections) || config.depth == 0 {
            return Err(FleetError::Config(format!(
                "a fleet has 1 to {MOST_CONNECTIONS} connections with at least 1 request in flight, not {} with {}",
                config.connections, config.depth
            )));
        }
        let links = policies::netlink::route::links()?;
        let interface = links.iter().find(|link| link.name == config.interface);
        let interface = interface.ok_or_else(|| FleetError::NoInterface(config.interface.clone()))?.index;
        let ends = Ends {
            client_mac: config.mac,
            client: config.address,
            server_mac: config.server_mac,
            server: *config.server.ip(),
            server_port: config.server.port(),
        };
        // The ring first: it must not miss an answer.
        let ring = PacketRing::open(interface)?;
        let link = Link::open(interface, ends)?;
        let queue = PolledQueue::open(&config.interface, config.server.into())?;
        let client = |index: usize| Client {
            tcp: Connection::new(
                FIRST_PORT + index as u16,
                (config.seed as u32).wrapping_add(index as u32 * 64),
            ),
            replies: ReplyParser::new(&config.requests),
            in_flight: VecDeque::new(),
        };
        let mut fleet = Self {
            link,
            queue,
            ring: Some(ring),
            source: RequestSource::new(&config.requests, config.seed)?,
            clients: (0..config.connections).map(client).collect(),
            free: Vec::new(),
            choosing: true,
            outstanding: 0,
            established: 0,
            again: Vec::new(),
            ack_queue: VecDeque::new(),
            retransmission_queue: VecDeque::new(),
            timers_at: 0,
            lost: 0,
            duplicates: 0,
            looks: 0,
            packets: 0,
            runs: 0,
            config,
        };
        fleet.establish()?;
        Ok(fleet)
    }

    fn establish(&mut self) -> Result<(), FleetError> {
        let mut now = self.link.now();
        let deadline = now + nanos(CONNECT_TIMEOUT.as_secs_f64());
        let mut started = 0;
        while self.established + self.lost < self.clients.len() && now < deadline {
            while started < self.clients.len() && started - self.established - self.lost < HANDSHAKES {
                self.clients[started].tcp.connect(&mut self.link, now)?;
                self.queue_retransmission(now, started as u32);
                started += 1;
            }
            self.receive(now, &mut |_, _, _| {})?;
            self.keep_timers(now)?;
            now = self.link.now();
        }
        match self.clients.len() - self.established {
            0 => Ok(()),
            missing => Err(FleetError::NotConnected {
                missing,
                connections: self.clients.len(),
                seconds: CONNECT_TIMEOUT.as_secs(),
            }),
        }
    }

    /// Stores records from 0 to `records`, if the protocol has records.
    ///
    /// # Errors
    /// If the server closes connections, answers with errors, or doesn't answer.
    pub fn store_records(&mut self, records: u64) -> Result<(), FleetError> {
        let mut recorder = Recorder::new()?;
        let mut now = self.link.now();
        let deadline = now + nanos(CONNECT_TIMEOUT.as_secs_f64());
        let mut record = 0;
        while (record < records || self.outstanding > 0) && now < deadline {
            // Few at a time, so that the server's queue does not overflow.
            while record < records && self.outstanding < STORES {
                let Some(index) = self.free.pop() else { break };
                if !self.source.append_set(record, &mut self.clients[index as usize].tcp.out) {
                    self.free.push(index);
                    return Ok(());
                }
                self.dispatch(index, InFlight { due: now, keys: 0, measured: false }, now)?;
                record += 1;
            }
            self.receive(now, &mut |_, outcome, _| {
                recorder.replies += 1;
                recorder.outcome(outcome, 0);
            })?;
            self.keep_timers(now)?;
            now = self.link.now();
        }
        if self.lost > 0 {
            return Err(FleetError::Closed(self.lost));
        }
        match records.saturating_sub(recorder.replies) + recorder.errors {
            0 => Ok(()),
            missing => Err(FleetError::NotStored(missing)),
        }
    }

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
                self.forgive_pause(now, after, &mut run);
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

    /// Keeps a pause of the fleet's own core out of the measurement: requests in flight are not measured, because their
    /// replies were not seen in time, and what was due meanwhile is due after it.
    fn forgive_pause(&mut self, from: u64, to: u64, run: &mut Run) {
        if to > run.from && from < run.to {
            run.pauses += 1;
            run.paused += to.min(run.to) - from.max(run.from);
        }
        run.pacer.postpone(to - from);
        for client in &mut self.clients {
            for request in client.in_flight.iter_mut().filter(|request| request.measured) {
                request.measured = false;
                run.awaited -= 1;
                run.recorder.forgiven += 1;
            }
        }
    }

    /// Ends the load: counts what was due and has no reply, and awaits the replies that are outstanding, so that the
    /// next run begins with idle connections.
    fn finish(&mut self, run: &mut Run, now: u64) -> Result<(), FleetError> {
        run.sending = false;
        for client in &mut self.clients {
            for request in client.in_flight.iter_mut().filter(|request| request.measured) {
                request.measured = false;
                run.recorder.unanswered += 1;
                run.recorder.latency(now.saturating_sub(request.due));
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
        self.free.clear();
        for (index, client) in self.clients.iter_mut().enumerate() {
            client.tcp.acknowledge_now(&mut self.link, now)?;
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
        self.dispatch(index, InFlight { due, keys, measured }, now)
    }

    /// Sends the request that was appended to a connection.
    #[inline]
    fn dispatch(&mut self, index: u32, request: InFlight, now: u64) -> Result<(), FleetError> {
        let client = &mut self.clients[index as usize];
        client.in_flight.push_back(request);
        client.tcp.flush(&mut self.link, now)?;
        self.outstanding += 1;
        if self.choosing && client.in_flight.len() < self.config.depth {
            self.free.push(index);
        }
        self.queue_retransmission(now, index);
        Ok(())
    }

    #[inline]
    fn receive_run(&mut self, now: u64, run: &mut Run) -> Result<bool, FleetError> {
        let Run { pacer, recorder, from, to, sending, awaited, .. } = run;
        let mut again = std::mem::take(&mut self.again);
        let received = self.receive(now, &mut |index, outcome, request: InFlight| {
            recorder.all_replies += 1;
            recorder.replies += u64::from((*from..*to).contains(&now));
            recorder.outcome(outcome, request.keys);
            if request.measured {
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

    /// Receives packets, at most [`PACKETS_PER_LOOK`]. Returns whether there were any.
    #[inline]
    fn receive(
        &mut self,
        now: u64,
        report: &mut impl FnMut(u32, Outcome, InFlight),
    ) -> Result<bool, FleetError> {
        if !self.queue.poll()? {
            return Err(FleetError::Closed(1));
        }
        let mut received = 0;
        while received < PACKETS_PER_LOOK {
            let mut outcome = Ok(());
            // The ring is lent out of the fleet meanwhile.
            let Some(mut ring) = self.ring.take() else { break };
            let some = ring.receive(|packet| outcome = self.handle(packet.bytes, now, report));
            self.ring = Some(ring);
            outcome?;
            if !some {
                break;
            }
            received += 1;
        }
        if received > 0 {
            self.looks += 1;
            self.packets += received as u64;
        }
        Ok(received > 0)
    }

    /// Handles a packet.
    #[inline]
    fn handle(
        &mut self,
        packet: &[u8],
        now: u64,
        report: &mut impl FnMut(u32, Outcome, InFlight),
    ) -> Result<(), FleetError> {
        let segment = match parse(packet) {
            Ok(segment) => segment,
            Err(Unreadable::Truncated) => return Err(FleetError::LongPacket(SEGMENT_PAYLOAD)),
            Err(Unreadable::NotTcp) => return Ok(()),
        };
        let server = self.config.server;
        if segment.source != *server.ip() || segment.source_port != server.port() {
            return Ok(());
        }
        let index = segment.port.wrapping_sub(FIRST_PORT);
        let Some(client) = self.clients.get_mut(usize::from(index)) else { return Ok(()) };
        let index = u32::from(index);
        match client.tcp.receive(&mut self.link, now, &segment)? {
            Arrived::Nothing => self.duplicates += u64::from(!segment.payload.is_empty()),
            Arrived::Established => {
                self.established += 1;
                self.free.push(index);
            }
            Arrived::Lost => self.lost += 1,
            Arrived::Payload(from) => {
                if let Some(deadline) = client.tcp.ack_deadline()
                    && !client.tcp.in_ack_queue
                {
                    client.tcp.in_ack_queue = true;
                    self.ack_queue.push_back((deadline, index));
                }
                let Client { replies, in_flight, .. } = client;
                let before = in_flight.len();
                let mut out_of_step = false;
                replies.feed(&segment.payload[from..], |outcome| match in_flight.pop_front() {
                    Some(request) => report(index, outcome, request),
                    None => out_of_step = true,
                })?;
                if out_of_step {
                    return Err(FleetError::OutOfStep);
                }
                let after = in_flight.len();
                self.outstanding -= before - after;
                if self.choosing && before >= self.config.depth && after < self.config.depth {
                    self.free.push(index);
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn queue_retransmission(&mut self, now: u64, index: u32) {
        let tcp = &mut self.clients[index as usize].tcp;
        if !tcp.in_retransmission_queue {
            tcp.in_retransmission_queue = true;
            self.retransmission_queue.push_back((now + RETRANSMISSION_TIMEOUT, index));
        }
    }

    /// Sends acknowledgements and retransmissions whose time has come. All delays of a queue are equal, so a queue is in
    /// the order of its times. A connection whose deadline has moved is queued again.
    fn keep_timers(&mut self, now: u64) -> Result<(), FleetError> {
        self.timers_at = now + TIMER_INTERVAL;
        while let Some(index) = pop_due(&mut self.ack_queue, now) {
            let tcp = &mut self.clients[index as usize].tcp;
            match tcp.ack_deadline() {
                Some(deadline) if deadline > now => {
                    self.ack_queue.push_back((deadline, index));
                    continue;
                }
                Some(_) => tcp.acknowledge_now(&mut self.link, now)?,
                None => {}
            }
            tcp.in_ack_queue = false;
        }
        while let Some(index) = pop_due(&mut self.retransmission_queue, now) {
            let tcp = &mut self.clients[index as usize].tcp;
            if tcp.retransmission_deadline().is_some_and(|deadline| deadline <= now) {
                tcp.retransmit(&mut self.link, now)?;
            }
            match tcp.retransmission_deadline() {
                Some(deadline) => self.retransmission_queue.push_back((deadline, index)),
                None => tcp.in_retransmission_queue = false,
            }
        }
        Ok(())
    }

    fn ring_drops(&self) -> Result<u64, FleetError> {
        Ok(self.ring.as_ref().map_or(Ok(0), PacketRing::take_drops)?)
    }

    /// Resets all connections.
    ///
    /// # Errors
    /// If the interface is gone.
    pub fn close(mut self) -> Result<(), FleetError> {
        let now = self.link.now();
        for client in &mut self.clients {
            client.tcp.reset(&mut self.link, now)?;
        }
        Ok(())
    }
}

/// Takes the first connection of a queue whose time has come.
fn pop_due(queue: &mut VecDeque<(u64, u32)>, now: u64) -> Option<u32> {
    if queue.front()?.0 > now {
        return None;
    }
    queue.pop_front().map(|(_, index)| index)
}

/// Seconds as nanoseconds.
fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// CPU time of this thread, in seconds.
fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
