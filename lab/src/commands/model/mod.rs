//! What avoiding the crossings between user space and kernel can save on this machine.
//!
//! The model is the one of Magoutis, Seltzer and Gabber, "The Case Against User-Level Networking"
//! (2004): a request costs the application a and the kernel's path for a record of b bytes o(b), of
//! which crossings cost δ. δ over all is what a user-level network stack that is otherwise the same
//! saves.

mod crossing_cost;
mod exchange;
mod predictions;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use loadgen::medians::Interval;
use policies::Policy;
use policies::host::Machine;
use runtime::DriverKind;
use serde::Serialize;

use crossing_cost::{BATCH, CrossingCost};
use exchange::{Clients, Connections, REQUEST, SIZES};
use predictions::{CrossingModel, Prediction, SERVERS, request_cost};

use super::check::vulnerabilities;
use crate::Error;
use crate::cores::CoreAssignment;
use crate::network::{Network, PollingConfig};
use crate::peers::{EchoServerSpec, Peer, PeerService, RequestShape};
use crate::processes::{ExperimentProcess, ProcessRole, ServerReady, ServerSpec};
use crate::report::plots::{Axis, lines};
use crate::report::tables::{interval_text, sections, series};
use crate::report::{Document, Section, Table};
use crate::rounds::{Figure, LoadKind, LoadPlan, LoadResult, Phases, Results, Runner};

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
                ProcessRole::Server(ServerSpec { network, core, address, memory: 0 })
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
        let mut clients = Clients::connect(address)?;
        let mut load = |seconds| {
            let duration = Duration::from_secs_f64(seconds);
            clients.load(cores.client, [&request, &request], self.reply(), duration)
        };
        load(config.warm_up)?;
        let (waits, cpu) = (server.waits()?, server.cpu_seconds()?);
        let requests = load(config.duration)? as f64;
        let (cpu, waits) = (server.cpu_seconds()? - cpu, server.waits()? - waits);
        Ok((cpu * 1e6 / requests, waits as f64 / requests))
    }
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
    /// Seconds of an exchange at one size.
    pub exchange: f64,
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
            exchange: if quick { 0.02 } else { 0.05 },
            warm_up: if quick { 0.1 } else { 0.2 },
            duration: if quick { 0.2 } else { 0.8 },
            seconds: seconds.unwrap_or(if quick { 50.0 } else { 270.0 }),
        }
    }

    pub fn steps(&self) -> usize {
        1 + self.rounds * (SIZES.len() + DRIVERS.len() * SERVERS)
    }
}

#[derive(Debug, Serialize)]
pub struct ModelReport {
    pub machine: Machine,
    pub cores: CoreAssignment,
    pub config: ModelConfig,
    pub verdict: String,
    pub model: CrossingModel,
    pub vulnerabilities: Vec<(String, String)>,
    /// δ.
    pub crossing: CrossingCost,
    /// The exchange at each size, then each server on epoll and on uring.
    pub results: Results,
}

impl ModelReport {
    pub fn measure(
        config: ModelConfig,
        cores: CoreAssignment,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Self, Error> {
        progress("crossings");
        let crossing = crossing_cost::measure(cores.server, config.batches)?;
        let crossing_us = crossing.system_call.median / 1e3;
        let shares = [&[0.2 / SIZES.len() as f64; SIZES.len()][..], &[0.4; SERVERS]].concat();
        let mut phases = Phases::new(config.seconds, &shares);
        let mut runner = Runner::new(cores, progress);
        let (mut connections, exchange) =
            (Connections::open(cores)?, Duration::from_secs_f64(config.exchange));
        let plan = |name: &str, bytes: usize, limit| {
            LoadPlan::new(name, LoadKind::Closed, bytes as f64, config.rounds, limit)
        };
        for bytes in SIZES {
            let plan = plan(&format!("{bytes} B"), bytes, phases.next_limit()?);
            runner.measure(plan, &["exchange".to_owned()], |_| {
                let [cpu_us, calls] = connections.measure(bytes, exchange)?;
                Ok(request_cost(cpu_us, calls, crossing_us))
            })?;
        }
        for server in Server::ALL {
            let names = DRIVERS.map(|driver| format!("{server}, {driver}"));
            let plan = plan(server.name(), server.reply(), phases.next_limit()?);
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
        let model = CrossingModel::new(&crossing, &results);
        let verdict = verdict(&model, &results);
        Self { machine: Machine::read(), cores, config, verdict, model, vulnerabilities, crossing, results }
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
        let results = &self.results;
        // They are closed loops, and nothing else.
        let tables = sections(&results.loads, &[]).into_iter().flat_map(|section| section.tables);
        let mut section = Section {
            caption: format!(
                "exchanges on loopback with requests of {REQUEST} B, and servers in a closed loop; n·δ: crossings at δ each; \
                 a + o(b): without them; PD: their share"
            ),
            tables: tables.collect(),
            notes: results.notes.clone(),
            ..Section::new("costs", "A request's CPU time")
        };
        if let Some((intercept, slope)) = self.model.path {
            section.notes.push(format!(
                "the exchange's server without crossings: {intercept:.2} µs + {slope:.3} ns per byte (a line through the medians)"
            ));
        }
        let loads: Vec<&LoadResult> = results.leading().collect();
        let x = Axis { title: "bytes of a reply", logarithmic: true };
        let y = Axis { title: "CPU time in crossings, %", logarithmic: false };
        let plot = lines(x, y, &series(&loads, Figure::Potential, |load, _| Some(load.at)));
        section.add_plot("potential", "The share of crossings by the size of replies", plot);
        section
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
        let rows = self.model.predictions.iter().map(row).collect();
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

fn verdict(model: &CrossingModel, results: &Results) -> String {
    let most = CrossingModel::most(results);
    let Some((most, share)) = most.and_then(|most| Some((most, most.value(Figure::Potential)?))) else {
        return "No server was measured: the machine disturbed every round.".to_owned();
    };
    let mut text = format!(
        "Of the servers' CPU time, crossings themselves are the largest share in {}: {} %. Avoiding them, as a user-level \
         network stack does, saves this share, if nothing else changes.",
        most.contender,
        interval_text(share, 1)
    );
    if model.predictions.iter().any(|it| it.agrees == Some(false)) {
        text.push_str(" A change that avoids crossings may change more than them: see the predictions that were missed.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::predictions::tests::measurements;
    use super::*;

    fn report(rounds: usize, echo_uring: f64) -> ModelReport {
        let cores = CoreAssignment::choose().unwrap();
        let (crossing, results) = measurements(rounds, echo_uring);
        let vulnerabilities = vec![("spectre_v2".to_owned(), "Mitigation: Retpolines".to_owned())];
        ModelReport::new(ModelConfig::new(true, None), cores, vulnerabilities, crossing, results)
    }

    #[test]
    fn the_text_has_all_costs_the_tables_and_the_verdict() {
        // 0.2 µs for each of 2.5 crossings, of 5 µs.
        let report = report(6, 4.66);
        let text = report.document().text();
        for part in [
            "200 [200, 200]",
            "mitigation of spectre_v2: Retpolines",
            "4.50 [4.50, 4.50]",
            "largest share in epoll: 10.0 [10.0, 10.0] %",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(!text.contains("missed"), "{text}");
        let plot = &report.document().sections[1].plots[0];
        assert!(plot.svg.contains("uring") && plot.svg.contains("<polyline"), "{}", plot.svg);
    }

    #[test]
    fn a_gain_that_is_not_predicted_and_too_few_rounds_are_said() {
        let text = report(6, 3.5).document().text();
        assert!(text.contains("no: the model does not predict this") && text.contains("missed"), "{text}");
        assert!(text.contains("30.0 [29.8, 30.2]"), "{text}");
        let text = report(5, 3.5).document().text();
        assert!(
            text.contains("too few rounds to tell") && text.contains("(no interval, 5 rounds)"),
            "{text}"
        );
    }
}
