//! Load generators compared: how many requests each makes of a second of its own CPU time, against one
//! memcached, in turns. mutilate and mc-crusher are built elsewhere and named by their paths.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use loadgen::medians::{Interval, median_interval};
use loadgen::rounds::{Conditions, Rounds, TurnOrder, figures, ratios};
use procfs::process::Process;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::experiment::Cores;
use crate::report::Machine;

/// What is compared, and how.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The server's command.
    pub memcached: PathBuf,
    /// Of this project; with its path.
    pub loadgen: PathBuf,
    /// mutilate's command, where it takes part.
    pub mutilate: Option<PathBuf>,
    /// mc-crusher's command, where it takes part.
    pub mc_crusher: Option<PathBuf>,
    /// Requests under way on each connection; each is an experiment.
    pub depths: Vec<u16>,
    /// Connections.
    pub connections: u16,
    /// Seconds of a turn.
    pub seconds: u16,
    /// How often each has its turn.
    pub rounds: usize,
}

/// What a generator showed.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Which one.
    pub generator: String,
    /// Requests under way on each connection.
    pub depth: u16,
    /// Requests a second that the server counted.
    pub qps: Interval,
    /// The generator's CPU time for a request, µs.
    pub cpu_us: Interval,
    /// Requests for a second of CPU time over those of the first, by rounds; `None` for the first.
    pub ratio: Option<Interval>,
}

/// The comparison.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// Which core did what.
    pub cores: Cores,
    /// What was compared.
    pub plan: Plan,
    /// What came of it.
    pub rows: Vec<Row>,
}

const RECORDS: u64 = 10_000;
/// mc-crusher's keys: this, and a number, of 30 bytes mostly, as long as those of the others.
const PREFIX: &str = "crusher-------------------";
const VALUE: usize = 200;
const CRUSHER: &str = "mc-crusher";

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header([
            "depth",
            "generator",
            "requests/s",
            "CPU µs a request",
            "requests a CPU second, over the first",
        ]);
        let figure = |interval: &Interval, digits: usize| {
            let Interval { median, low, high, .. } = interval;
            format!("{median:.digits$} [{low:.digits$}, {high:.digits$}]")
        };
        for Row { generator, depth, qps, cpu_us, ratio } in &self.rows {
            let ratio = ratio.as_ref().map_or_else(String::new, |ratio| figure(ratio, 2));
            let depth = depth.to_string();
            table.add_row([depth, generator.clone(), figure(qps, 0), figure(cpu_us, 2), ratio]);
        }
        for index in [0, 2, 3, 4] {
            if let Some(column) = table.column_mut(index) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = String::new();
        // Writing into a String can't fail.
        let _ = writeln!(
            text,
            "{} connections, one thread on core {} against one of memcached's on core {}; median and interval of {} rounds, in turns\n{}",
            self.plan.connections,
            self.cores.client,
            self.cores.server,
            self.plan.rounds,
            table.trim_fmt()
        );
        text
    }
}

/// Ends with its holder.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn failed(what: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", what.display()))
}

/// Starts a command on a core: a child is where its parent is.
fn start_on(core: u32, command: &mut Command) -> io::Result<Child> {
    let before = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set(core as usize);
    sched_setaffinity(None, &one)?;
    let started = command.spawn();
    sched_setaffinity(None, &before)?;
    started.map_err(|error| failed(Path::new(command.get_program()), error))
}

fn start_server(path: &Path, core: u32) -> io::Result<(Server, SocketAddr)> {
    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let mut command = Command::new(path);
    command.args([
        "-u",
        "root",
        "-l",
        "127.0.0.1",
        "-t",
        "1",
        "-m",
        "256",
        "-p",
        &address.port().to_string(),
    ]);
    let mut server = Server(start_on(core, command.stderr(Stdio::null()))?);
    let give_up = Instant::now() + Duration::from_secs(5);
    while TcpStream::connect(address).is_err() {
        if let Some(status) = server.0.try_wait()? {
            return Err(failed(path, format!("it ended ({status}) and did not listen")));
        }
        if Instant::now() > give_up {
            return Err(failed(path, "it does not listen within 5 s"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((server, address))
}

/// Gets that the server has counted.
fn gets(server: SocketAddr) -> io::Result<u64> {
    let mut stream = TcpStream::connect(server)?;
    stream.write_all(b"stats\r\n")?;
    for line in BufReader::new(stream).lines() {
        if let Some(count) = line?.strip_prefix("STAT cmd_get ") {
            return count.trim().parse().map_err(io::Error::other);
        }
    }
    Err(io::Error::other("the server counts no gets"))
}

/// Stores mc-crusher's records, which it would not do for itself in order.
fn store(server: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(server)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    for record in 0..RECORDS {
        stream
            .write_all(format!("set {PREFIX}{record} 0 0 {VALUE}\r\n{}\r\n", "x".repeat(VALUE)).as_bytes())?;
        line.clear();
        answers.read_line(&mut line)?;
        if line != "STORED\r\n" {
            return Err(io::Error::other(format!("the server does not store a record, but says {line:?}")));
        }
    }
    Ok(())
}

/// CPU time of the children that have ended.
fn children_cpu() -> io::Result<f64> {
    let stat = Process::myself().and_then(|process| process.stat()).map_err(io::Error::other)?;
    Ok((stat.cutime + stat.cstime) as f64 / procfs::ticks_per_second() as f64)
}

/// One of the generators, and how it is called for a turn.
struct Generator<'a> {
    name: &'static str,
    path: &'a Path,
    arguments: Vec<String>,
}

fn generators<'a>(plan: &'a Plan, depth: u16, server: SocketAddr, crusher: &Path) -> Vec<Generator<'a>> {
    let Plan { connections, seconds, .. } = plan;
    let line = |line: String| -> Vec<String> { line.split_whitespace().map(str::to_owned).collect() };
    let mutilate = plan.mutilate.as_deref().map(|path| Generator {
        name: "mutilate -B",
        path,
        arguments: line(format!(
            "-s {server} --noload -K 30 -V {VALUE} -r {RECORDS} -T 1 -c {connections} -d {depth} -t {seconds} -B"
        )),
    });
    let crusher = plan.mc_crusher.as_deref().map(|path| Generator {
        name: CRUSHER,
        path,
        arguments: [
            line(format!("--ip {} --port {} --timeout {seconds} --conf", server.ip(), server.port())),
            vec![crusher.display().to_string()],
        ]
        .concat(),
    });
    let own = Generator {
        name: "loadgen",
        path: &plan.loadgen,
        arguments: line(format!(
            "-s {server} --noload -K 30 -V {VALUE} -r {RECORDS} -c {connections} -d {depth} -t {seconds} -w 0 --quiet"
        )),
    };
    [Some(own), mutilate, crusher].into_iter().flatten().collect()
}

/// One turn: requests a second, and CPU time for each in µs.
fn turn(generator: &Generator<'_>, server: SocketAddr, core: u32) -> io::Result<(f64, f64)> {
    let (before, cpu, begun) = (gets(server)?, children_cpu()?, Instant::now());
    let mut command = Command::new(generator.path);
    command.args(&generator.arguments).stdout(Stdio::null()).stderr(Stdio::null());
    let status = start_on(core, &mut command)?.wait()?;
    let (seconds, count) = (begun.elapsed().as_secs_f64(), gets(server)? - before);
    // loadgen's figures are not looked at, so it may call them invalid; mc-crusher ends with whatever is in its
    // registers.
    let ended = status.success() || status.code() == Some(3) || generator.name == CRUSHER;
    if count == 0 || !ended {
        return Err(failed(generator.path, format!("it ended ({status}) after {count} requests")));
    }
    Ok((count as f64 / seconds, (children_cpu()? - cpu) * 1e6 / count as f64))
}

/// Compares, and tells before each turn what comes.
///
/// # Errors
/// Where a program can't be started, or does nothing.
pub fn run(plan: &Plan, cores: Cores, mut tell: impl FnMut(&str)) -> io::Result<Vec<Row>> {
    let (_server, address) = start_server(&plan.memcached, cores.server)?;
    let loaded = Command::new(&plan.loadgen)
        .args(["-s", &address.to_string(), "--loadonly", "--quiet", "-K", "30"])
        .args(["-V", &VALUE.to_string(), "-r", &RECORDS.to_string()])
        .stderr(Stdio::null())
        .status()
        .map_err(|error| failed(&plan.loadgen, error))?;
    if !loaded.success() {
        return Err(failed(&plan.loadgen, format!("it could not store the records ({loaded})")));
    }
    store(address)?;
    let crusher = std::env::temp_dir().join(format!("lab-{}.conf", std::process::id()));
    let mut rows = Vec::new();
    for &depth in &plan.depths {
        let conf = format!(
            "send=ascii_get,recv=blind_read,conns={},key_prefix={PREFIX},key_count={RECORDS},pipelines={depth}\n",
            plan.connections
        );
        std::fs::write(&crusher, conf).map_err(|error| failed(&crusher, error))?;
        let all = generators(plan, depth, address, &crusher);
        let mut rounds = Rounds::new(all.len(), plan.rounds).order(TurnOrder::Fixed);
        let mut measure = || -> io::Result<()> {
            while let Some(next) = rounds.next_turn() {
                let generator = &all[next.contestant()];
                tell(&format!("depth {depth}, round {}, {}", next.round() + 1, generator.name));
                let seen = turn(generator, address, cores.client)?;
                rounds.finish_turn(next, Some(seen), Conditions::default());
            }
            Ok(())
        };
        let measured = measure();
        // It is in nobody's way, but it is ours.
        let _ = std::fs::remove_file(&crusher);
        measured?;
        let rounds = rounds.finish().rounds;
        for (index, generator) in all.iter().enumerate() {
            rows.push(Row {
                generator: generator.name.to_owned(),
                depth,
                qps: median_interval(&figures(&rounds, index, |turn| turn.0)),
                cpu_us: median_interval(&figures(&rounds, index, |turn| turn.1)),
                ratio: (index > 0).then(|| median_interval(&ratios(&rounds, index, 0, |turn| 1.0 / turn.1))),
            });
        }
    }
    Ok(rows)
}
