//! What avoiding the crossings between user space and kernel can save on this machine.
//!
//! The model is the one of Magoutis, Seltzer and Gabber, "The Case Against User-Level Networking"
//! (2004): a request costs the application a and the kernel's path for a record of b bytes o(b), of
//! which crossings cost δ. δ over all is what a user-level network stack that is otherwise the same
//! saves.

mod crossing_cost;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use loadgen::medians::Interval;
use policies::Policy;
use policies::host::Machine;
use runtime::DriverKind;
use serde::Serialize;

use crossing_cost::{BATCH, CrossingCost};

use super::check::vulnerabilities;
use crate::Error;
use crate::cores::{CoreAssignment, run_on};
use crate::network::{Network, PollingConfig};
use crate::peers::{EchoServerSpec, Peer, PeerService, RequestShape};
use crate::processes::{ExperimentProcess, ProcessRole, ServerReady};
use crate::report::tables::{interval_text, sections};
use crate::report::{Document, Section, Table};
use crate::rounds::{Figure, LoadKind, LoadPlan, LoadResult, Results, Row, Runner, Turn, share_of_time};

const DRIVERS: [DriverKind; 2] = [DriverKind::Epoll, DriverKind::Uring];

/// A server of Lull on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    Echo,
    Memcached,
}

policies::names!(Server, "server": Echo = "echo", Memcached = "memcached");

/// What memcached is asked: a value of 200 bytes under a key of 30.
const GET: &[u8] = b"get key-of-thirty-bytes-0123456789\r\n";
const VALUE: usize = 200;

impl Server {
    /// The bytes of a reply.
    fn reply(self) -> usize {
        match self {
            Self::Echo => RequestShape::SMALL.reply,
            // With the key and the protocol's lines.
            Self::Memcached => VALUE + 51,
        }
    }

    fn role(self, driver: DriverKind, cores: CoreAssignment) -> ProcessRole {
        let (policy, polling) = (Policy::Vanilla, PollingConfig::default());
        let network = Network { policy, driver, interface: None, packing_core: cores.packing, polling };
        let address = Ipv4Addr::LOCALHOST;
        match self {
            Self::Echo => ProcessRole::EchoServer(EchoServerSpec {
                peer: Peer::Lull,
                core: cores.server,
                service: PeerService::Echo,
                shape: RequestShape::SMALL,
                address,
                network: Some(network),
                work: Duration::ZERO,
            }),
            Self::Memcached => {
                let (core, address) = (cores.server, IpAddr::V4(address));
                ProcessRole::Server { network, core, address, memory: 0 }
            }
        }
    }

    /// Under vanilla: CPU time in µs, and system calls that wait, poll or submit, of a request.
    fn measure(
        self,
        driver: DriverKind,
        cores: CoreAssignment,
        config: &ModelConfig,
    ) -> Result<(f64, f64), Error> {
        let mut server = ExperimentProcess::start(&self.role(driver, cores), None)?;
        let address = server.receive::<ServerReady>()?.address;
        let request = match self {
            Self::Echo => vec![b'r'; RequestShape::SMALL.request],
            Self::Memcached => {
                store(address)?;
                GET.to_vec()
            }
        };
        let mut streams = (0..CONNECTIONS).map(|_| connect(address)).collect::<io::Result<Vec<_>>>()?;
        let mut load = |seconds| {
            let duration = Duration::from_secs_f64(seconds);
            run_on(cores.client, || Ok(exchange(&mut streams, &request, self.reply(), duration)?))
        };
        load(config.warm_up)?;
        let (waits, cpu) = (server.waits()?, server.cpu_seconds()?.0);
        let requests = load(config.duration)? as f64;
        let (cpu, waits) = (server.cpu_seconds()?.0 - cpu, server.waits()? - waits);
        Ok((cpu * 1e6 / requests, waits as f64 / requests))
    }
}

/// Connections of the load, each with a request in flight.
const CONNECTIONS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(5);

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a request on each connection, then reads all replies, for `duration`: while there is work,
/// neither side sleeps between two requests. Returns the number of requests.
fn exchange(streams: &mut [TcpStream], request: &[u8], reply: usize, duration: Duration) -> io::Result<u64> {
    let (mut reply, mut requests, begun) = (vec![0; reply], 0, Instant::now());
    while requests == 0 || begun.elapsed() < duration {
        for stream in &mut *streams {
            stream.write_all(request)?;
        }
        for stream in &mut *streams {
            stream.read_exact(&mut reply)?;
        }
        requests += streams.len() as u64;
    }
    Ok(requests)
}

/// Stores what [`GET`] asks for.
fn store(server: SocketAddr) -> io::Result<()> {
    let key = &GET[4..GET.len() - 2];
    let mut stream = TcpStream::connect(server)?;
    stream.write_all(&[&b"set "[..], key, b" 0 0 200\r\n", &[b'v'; VALUE], b"\r\n"].concat())?;
    stream.read_exact(&mut [0; b"STORED\r\n".len()])
}

#[derive(Debug, Clone, Serialize)]
pub struct ModelConfig {
    /// Batches of crossings, at most 400.
    pub batches: usize,
    pub rounds: usize,
    pub warm_up: f64,
    pub duration: f64,
    pub seconds: f64,
}

impl ModelConfig {
    /// About five minutes, or one if `quick`; `seconds` limits it further, or lets it take longer.
    pub fn new(quick: bool, seconds: Option<f64>) -> Self {
        Self {
            batches: if quick { 200 } else { 400 },
            rounds: if quick { 10 } else { 20 },
            warm_up: if quick { 0.1 } else { 0.2 },
            duration: if quick { 0.2 } else { 0.8 },
            seconds: seconds.unwrap_or(if quick { 50.0 } else { 270.0 }),
        }
    }

    pub fn steps(&self) -> usize {
        1 + self.rounds * DRIVERS.len() * Server::ALL.len()
    }
}

#[derive(Debug, Serialize)]
pub struct ModelReport {
    pub machine: Machine,
    pub cores: CoreAssignment,
    pub config: ModelConfig,
    pub verdict: String,
    /// Predictions with measurements that the model wasn't made from.
    pub predictions: Vec<Prediction>,
    pub vulnerabilities: Vec<(String, String)>,
    /// δ.
    pub crossing: CrossingCost,
    /// Each server on epoll and on uring.
    pub results: Results,
}

impl ModelReport {
    pub fn measure(
        config: ModelConfig,
        cores: CoreAssignment,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, Error> {
        progress("crossings");
        let crossing = run_on(cores.server, || crossing_cost::measure(config.batches))?;
        let crossing_us = crossing.system_call.median / 1e3;
        let deadline = Instant::now() + Duration::from_secs_f64(config.seconds);
        let mut runner = Runner::new(cores, progress);
        for (index, server) in Server::ALL.into_iter().enumerate() {
            let names = DRIVERS.map(|driver| format!("{server}, {driver}"));
            let limit = share_of_time(deadline, Server::ALL.len() - index);
            let at = server.reply() as f64;
            let plan = LoadPlan::new(server.name(), LoadKind::Closed, at, config.rounds, limit);
            runner.measure(plan, &names, |index| {
                let (cpu_us, waits) = server.measure(DRIVERS[index], cores, &config)?;
                // Beside the worker's waits, on epoll a record is received by one `recv(2)`, and
                // its reply sent by one `send(2)`. On a ring both are operations, for which the
                // waits submit.
                let transfers = if DRIVERS[index] == DriverKind::Uring { 0.0 } else { 2.0 };
                let mut turn = request_cost(cpu_us, waits + transfers, crossing_us);
                turn.set(Figure::Waits, waits);
                Ok(turn)
            })?;
        }
        Ok(Self::new(config, cores, vulnerabilities(), crossing, runner.finish(&[0])))
    }

    fn new(
        config: ModelConfig,
        cores: CoreAssignment,
        vulnerabilities: Vec<(String, String)>,
        crossing: CrossingCost,
        results: Results,
    ) -> Self {
        let predictions =
            results.leading().filter_map(|load| prediction(load, &crossing)).collect::<Vec<_>>();
        let verdict = verdict(&predictions, &results);
        let machine = Machine::read();
        Self { machine, cores, config, verdict, predictions, vulnerabilities, crossing, results }
    }

    pub fn document(&self) -> Document {
        let mut conditions = vec![format!(
            "{}; server on core {}, client on core {}",
            self.machine, self.cores.server, self.cores.client
        )];
        let active = self.vulnerabilities.iter().filter_map(|(name, state)| {
            Some(format!("mitigation of {name}: {}", state.strip_prefix("Mitigation: ")?))
        });
        conditions.extend(active);
        Document {
            title: "What crossings into the kernel cost".to_owned(),
            findings: vec![self.verdict.clone()],
            conditions,
            sections: vec![self.crossings(), self.costs(), self.predictions()],
        }
    }

    fn crossings(&self) -> Section {
        let crossing = &self.crossing;
        let nanos = |interval: Option<&Interval>| {
            interval.map_or_else(|| "not available".to_owned(), |it| interval_text(it, 0))
        };
        let rows = [
            ("δ: an empty system call (getppid), ns".to_owned(), nanos(Some(&crossing.system_call))),
            ("a NOP in a ring with its own enter, ns".to_owned(), nanos(crossing.nop.as_ref())),
            (format!("a NOP among {BATCH} of one enter, ns"), nanos(crossing.nop_in_batch.as_ref())),
        ];
        let rows = rows.map(|(name, value)| vec![name, value]).into();
        Section {
            tables: vec![Table::new("", &["cost", "median"], rows)],
            ..Section::new("crossings", "Crossings")
        }
    }

    fn costs(&self) -> Section {
        // They are closed loops, and nothing else.
        let tables = sections(&self.results.loads, &[]).into_iter().flat_map(|section| section.tables);
        Section {
            caption: format!(
                "servers in a closed loop of {CONNECTIONS} connections; n·δ: crossings at δ each; a + o(b): without them; PD: \
                 their share"
            ),
            tables: tables.collect(),
            notes: self.results.notes.clone(),
            ..Section::new("costs", "A request's CPU time")
        }
    }

    fn predictions(&self) -> Section {
        let row = |it: &Prediction| {
            let outcome = match it.agrees {
                Some(true) => "yes",
                Some(false) => "no: the model does not predict this",
                None => "too few rounds to tell",
            };
            let (predicted, measured) = (format!("{:.1}", it.predicted), interval_text(&it.measured, 1));
            vec![it.change.clone(), predicted, measured, outcome.to_owned()]
        };
        let rows = self.predictions.iter().map(row).collect();
        let mut section = Section::new("predictions", "Predictions");
        section.caption = "beside what the model was not made from".to_owned();
        section.tables =
            vec![Table::new("", &["change", "predicted gain %", "measured gain %", "agrees"], rows)];
        if self.crossing.nop.is_none() {
            section.notes.push(
                "io_uring is not available: no NOPs were measured, and uring is not predicted".to_owned(),
            );
        }
        section
    }
}

fn verdict(predictions: &[Prediction], results: &Results) -> String {
    let Some((most, share)) = most(results).and_then(|most| Some((most, most.value(Figure::Potential)?)))
    else {
        return "No server was measured: the machine disturbed every round.".to_owned();
    };
    let mut text = format!(
        "Of the servers' CPU time, crossings themselves are the largest share in {}: {} %. Avoiding them, as a user-level \
         network stack does, saves this share, if nothing else changes.",
        most.contender,
        interval_text(share, 1)
    );
    if predictions.iter().any(|it| it.agrees == Some(false)) {
        text.push_str(" A change that avoids crossings may change more than them: see the predictions that were missed.");
    }
    text
}

/// The server on which crossings are the largest share of CPU time.
fn most(results: &Results) -> Option<&Row> {
    let shares = results.leading().flat_map(|load| &load.rows);
    let shares = shares.filter_map(|row| Some((row, row.median(Figure::Potential)?)));
    shares.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(row, _)| row)
}

/// The share of a request's crossings is the paper's potential degradation, δ / (a + o(b)), of
/// which o(b) contains the crossings.
fn request_cost(cpu_us: f64, calls: f64, crossing_us: f64) -> Turn {
    let crossings = calls * crossing_us;
    Turn::new([
        (Figure::CpuPerRequest, cpu_us),
        (Figure::Calls, calls),
        (Figure::Crossings, crossings),
        (Figure::Rest, cpu_us - crossings),
        (Figure::Potential, (crossings / cpu_us).clamp(0.0, 1.0) * 100.0),
    ])
}

/// Operations of a request on a ring, of which each costs a NOP's share of a batch: a receive and a
/// send.
const OPERATIONS: f64 = 2.0;

/// A prediction of the gain in CPU time per request, %, with what was measured; negative for a
/// loss.
#[derive(Debug, Clone, Serialize)]
pub struct Prediction {
    /// The change, for example `echo: epoll to uring`.
    pub change: String,
    pub predicted: f64,
    pub measured: Interval,
    /// Whether the measured interval contains the prediction. `None`: too few rounds to tell.
    pub agrees: Option<bool>,
}

/// From epoll to uring: the crossings that are saved, less what the operations cost on the ring.
fn prediction(load: &LoadResult, crossing: &CrossingCost) -> Option<Prediction> {
    let [epoll, uring] = &load.rows[..] else { return None };
    let operations = OPERATIONS * crossing.nop_in_batch?.median / 1e3;
    let saved = epoll.median(Figure::Crossings)? - uring.median(Figure::Crossings)?;
    let predicted = (saved - operations) / epoll.median(Figure::CpuPerRequest)? * 100.0;
    let gain = |ratio: f64| (1.0 - ratio) * 100.0;
    let mut measured = *uring.ratio(Figure::CpuPerRequest)?;
    (measured.median, measured.low, measured.high) =
        (gain(measured.median), gain(measured.high), gain(measured.low));
    let agrees = measured.reaches_target().then_some((measured.low..=measured.high).contains(&predicted));
    Some(Prediction { change: format!("{}: epoll to uring", load.name), predicted, measured, agrees })
}

#[cfg(test)]
mod tests {
    use loadgen::medians::median_interval;

    use super::*;
    use crate::rounds::results_of;

    /// A crossing of 200 ns, an echo server of 5 µs on epoll and of `echo_uring` µs on uring, and a
    /// memcached server whose gain is what the model predicts.
    fn measurements(rounds: usize, echo_uring: f64) -> (CrossingCost, Results) {
        let loads = ["echo", "memcached"].map(|name| (name, LoadKind::Closed, 200.0, None));
        let results = results_of(&loads, &["epoll", "uring"], &[0], rounds, |load, contender, round| {
            let [epoll, uring] = if load == "echo" { [5.0, echo_uring] } else { [8.0, 8.0 - 0.34] };
            // uring's differ a little between rounds.
            let noise = (round % 3) as f64 * 0.01 - 0.01;
            let (cpu_us, calls) = if contender == 0 { (epoll, 2.5) } else { (uring + noise, 0.5) };
            request_cost(cpu_us, calls, 0.2)
        });
        let nanos = |value: f64| median_interval(&[value; 8]);
        let (nop, nop_in_batch) = (Some(nanos(300.0)), Some(nanos(30.0)));
        (CrossingCost { system_call: nanos(200.0), nop, nop_in_batch }, results)
    }

    fn report_on((crossing, results): (CrossingCost, Results)) -> ModelReport {
        let cores = CoreAssignment::choose().unwrap();
        let vulnerabilities = vec![("spectre_v2".to_owned(), "Mitigation: Retpolines".to_owned())];
        ModelReport::new(ModelConfig::new(true, None), cores, vulnerabilities, crossing, results)
    }

    #[test]
    fn a_request_is_what_its_crossings_and_all_else_cost() {
        // 0.2 µs for each of 2.5 crossings, of 8 µs.
        let turn = request_cost(8.0, 2.5, 0.2);
        let figures = [Figure::Crossings, Figure::Rest, Figure::Potential].map(|figure| turn.get(figure));
        assert_eq!(figures, [0.5, 7.5, 6.25]);
        assert!(request_cost(0.0, 0.0, 0.2).get(Figure::Potential).is_nan());
        assert_eq!(most(&measurements(6, 4.66).1).unwrap().median(Figure::Potential), Some(10.0));
    }

    #[test]
    fn a_driver_is_predicted_from_crossings_and_operations() {
        let (mut crossing, results) = measurements(6, 5.0 - 0.34);
        let predictions = report_on((crossing, results.clone())).predictions;
        // 2 crossings of 0.2 µs less 2 operations of 0.03 µs, of 5 µs.
        assert!((predictions[0].predicted - 6.8).abs() < 1e-9, "{predictions:?}");
        assert_eq!(predictions[0].agrees, Some(true));
        crossing.nop_in_batch = None;
        let predictions = report_on((crossing, results)).predictions;
        assert!(predictions.is_empty(), "without a ring there is no prediction");
    }

    #[test]
    fn the_text_has_all_costs_the_tables_and_the_verdict() {
        // 0.2 µs for each of 2.5 crossings, of 5 µs.
        let text = report_on(measurements(6, 4.66)).document().text();
        for part in [
            "200 [200, 200]",
            "mitigation of spectre_v2: Retpolines",
            "4.50 [4.50, 4.50]",
            "largest share in epoll: 10.0 [10.0, 10.0] %",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(!text.contains("missed"), "{text}");
    }

    #[test]
    fn a_gain_that_is_not_predicted_and_too_few_rounds_are_said() {
        let text = report_on(measurements(6, 3.5)).document().text();
        assert!(text.contains("no: the model does not predict this") && text.contains("missed"), "{text}");
        assert!(text.contains("30.0 [29.8, 30.2]"), "{text}");
        let text = report_on(measurements(5, 3.5)).document().text();
        assert!(
            text.contains("too few rounds to tell") && text.contains("(no interval, 5 rounds)"),
            "{text}"
        );
    }
}
