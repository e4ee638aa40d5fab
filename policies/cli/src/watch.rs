//! What goes on on an interface, each second: on a screen, or in lines.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::{cursor, execute, style, terminal};
use policies::counters::{Delta, Snapshot};
use policies::status::{self, WorkerStatus};
use policies::{Error, Interface, JournalDir, host};
use serde::Serialize;

use super::tables::{or_dash, table};

#[derive(Args)]
pub struct Arguments {
    /// The interface, for example eth0
    pub interface: String,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_interval)]
    interval: f64,
    /// Stop after so many looks
    #[arg(long, value_name = "COUNT")]
    count: Option<u64>,
    /// What the queues are sorted by
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("write a number of seconds from 0.1 to 3600".to_owned()),
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// By number
    #[default]
    Queue,
    /// Most interrupts a second first
    Interrupts,
    /// Most packets a second first
    Packets,
    /// By core
    Core,
}

/// A receive queue within one interval.
#[derive(Debug, Serialize)]
struct Row {
    queue: u32,
    napi: Option<u32>,
    irq: Option<u32>,
    core: Option<u32>,
    interrupts_per_second: Option<f64>,
    tx_interrupts_per_second: Option<f64>,
    packets_per_second: Option<f64>,
    packets_per_interrupt: Option<f64>,
    /// Whether its interrupt stayed away while packets came; `None` where nothing suspends it.
    suspended: Option<&'static str>,
    worker: Option<Shares>,
}

/// What a worker did, as shares of the interval.
#[derive(Debug, Serialize)]
struct Shares {
    worker: usize,
    thread: i32,
    running: String,
    useful: f64,
    polling: f64,
    idle: f64,
}

/// All queues within one interval.
#[derive(Debug, Serialize)]
struct Look {
    interface: String,
    up: bool,
    seconds: f64,
    packets_per_second: f64,
    busy_poll_share: f64,
    net_rx_softirqs_per_second: f64,
    queues: Vec<Row>,
}

struct Watcher<'a> {
    name: &'a str,
    journals: &'a JournalDir,
    before: Snapshot,
    workers: Vec<WorkerStatus>,
}

impl<'a> Watcher<'a> {
    fn new(name: &'a str, journals: &'a JournalDir) -> Result<Self, Error> {
        let interface = host::interface(name)?;
        let before = Snapshot::take(&interface)?;
        Ok(Self { name, journals, before, workers: status::workers(journals, interface.index) })
    }

    fn look(&mut self) -> Result<Look, Error> {
        // Looked up each time: links are reopened, interrupts moved, queues added.
        let interface = host::interface(self.name)?;
        let now = Snapshot::take(&interface)?;
        let delta = now.since(&self.before);
        let workers = status::workers(self.journals, interface.index);
        let look = make(&interface, &delta, &self.workers, &workers);
        (self.before, self.workers) = (now, workers);
        Ok(look)
    }
}

fn make(interface: &Interface, delta: &Delta, before: &[WorkerStatus], now: &[WorkerStatus]) -> Look {
    let seconds = delta.elapsed.as_secs_f64();
    let packets = match &delta.rx_packets {
        policies::counters::RxPackets::PerQueue(queues) => queues.clone(),
        policies::counters::RxPackets::Interface(sum) if interface.queues.len() == 1 => {
            vec![(interface.queues[0].index, *sum)]
        }
        policies::counters::RxPackets::Interface(_) => Vec::new(),
    };
    let of = |counts: &[(u32, u64)], queue: u32| {
        counts.iter().find(|(other, _)| *other == queue).map(|(_, count)| *count as f64)
    };
    let row = |queue: &policies::RxQueue| {
        let napi = queue.napi.as_ref();
        let (interrupts, received) = (of(&delta.irqs, queue.index), of(&packets, queue.index));
        let may_suspend =
            napi.is_some_and(|napi| napi.irq_suspend_timeout.is_some_and(|timeout| timeout > 0));
        Row {
            queue: queue.index,
            napi: napi.map(|napi| napi.id),
            irq: queue.irq,
            core: queue.irq_effective.as_ref().and_then(|cpus| cpus.iter().next()),
            interrupts_per_second: interrupts.map(|count| count / seconds),
            tx_interrupts_per_second: of(&delta.tx_irqs, queue.index).map(|count| count / seconds),
            packets_per_second: received.map(|count| count / seconds),
            packets_per_interrupt: received
                .zip(interrupts)
                .filter(|(received, _)| *received > 0.0)
                .map(|(received, interrupts)| received / interrupts),
            suspended: may_suspend.then_some(received.zip(interrupts)).map(suspended),
            worker: napi.and_then(|napi| shares(napi.id, before, now)),
        }
    };
    Look {
        interface: interface.name.clone(),
        up: interface.up,
        seconds,
        packets_per_second: delta.rx_packets.total() as f64 / seconds,
        busy_poll_share: delta.busy_poll_share(),
        net_rx_softirqs_per_second: delta.net_rx.iter().sum::<u64>() as f64 / seconds,
        queues: interface.queues.iter().map(row).collect(),
    }
}

/// Whether a queue's interrupt stayed away, by how many came with how many packets.
fn suspended(counts: Option<(f64, f64)>) -> &'static str {
    match counts {
        Some((received, 0.0)) if received > 0.0 => "yes",
        Some((received, interrupts)) if interrupts * 10.0 < received => "mostly",
        Some((received, _)) if received > 0.0 => "no",
        _ => "-",
    }
}

fn shares(napi: u32, before: &[WorkerStatus], now: &[WorkerStatus]) -> Option<Shares> {
    let worker = now.iter().find(|worker| worker.napi == napi)?;
    let then = before.iter().find(|then| then.thread == worker.thread && then.worker == worker.worker)?;
    let spent = |now: u64, then: u64| now.saturating_sub(then) as f64;
    let useful = spent(worker.running_ns, then.running_ns);
    let polling = spent(worker.polling_ns, then.polling_ns);
    let idle = spent(worker.parked_ns, then.parked_ns);
    let all = (useful + polling + idle).max(1.0);
    Some(Shares {
        worker: worker.worker,
        thread: worker.thread,
        running: worker.running.clone(),
        useful: useful / all,
        polling: polling / all,
        idle: idle / all,
    })
}

fn sort(look: &mut Look, by: Sort) {
    let most_first = |value: Option<f64>| std::cmp::Reverse((value.unwrap_or(-1.0) * 1e3) as i64);
    match by {
        Sort::Queue => look.queues.sort_by_key(|row| row.queue),
        Sort::Interrupts => look.queues.sort_by_key(|row| most_first(row.interrupts_per_second)),
        Sort::Packets => look.queues.sort_by_key(|row| most_first(row.packets_per_second)),
        Sort::Core => look.queues.sort_by_key(|row| row.core.unwrap_or(u32::MAX)),
    }
}

fn render(look: &Look) -> String {
    let mut rows = table(&[
        "queue",
        "NAPI",
        "irq",
        "core",
        "irqs/s",
        "tx irqs/s",
        "packets/s",
        "pkts/irq",
        "suspended",
        "worker",
        "runs",
        "useful",
        "poll",
        "idle",
    ]);
    let number = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.0}")));
    for row in &look.queues {
        let worker = row.worker.as_ref();
        let share = |share: fn(&Shares) -> f64| {
            or_dash(worker.map(|worker| format!("{:.0} %", share(worker) * 100.0)))
        };
        rows.add_row([
            format!("rx-{}", row.queue),
            or_dash(row.napi),
            or_dash(row.irq),
            or_dash(row.core),
            number(row.interrupts_per_second),
            number(row.tx_interrupts_per_second),
            number(row.packets_per_second),
            or_dash(row.packets_per_interrupt.map(|value| format!("{value:.1}"))),
            or_dash(row.suspended),
            or_dash(worker.map(|worker| format!("{} ({})", worker.worker, worker.thread))),
            or_dash(worker.map(|worker| worker.running.clone())),
            share(|worker| worker.useful),
            share(|worker| worker.polling),
            share(|worker| worker.idle),
        ]);
    }
    format!(
        "{} ({}): {:.0} packets/s, {:.1} % received by busy polling, {:.0} NET_RX softirqs/s\n{rows}",
        look.interface,
        if look.up { "up" } else { "down" },
        look.packets_per_second,
        look.busy_poll_share * 100.0,
        look.net_rx_softirqs_per_second
    )
}

fn terminal_error(source: io::Error) -> Error {
    Error::Kernel { operation: "use the terminal".to_owned(), source }
}

/// On a terminal a screen, else lines.
pub fn run(arguments: &Arguments, journals: &JournalDir) -> Result<(), Error> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return lines(arguments, journals, false);
    }
    let mut watcher = Watcher::new(&arguments.interface, journals)?;
    let screen = Screen::open().map_err(terminal_error)?;
    let result = screen_loop(&mut watcher, arguments);
    drop(screen);
    result
}

/// A line of JSON, or a table, for each look.
pub fn lines(arguments: &Arguments, journals: &JournalDir, json: bool) -> Result<(), Error> {
    let mut watcher = Watcher::new(&arguments.interface, journals)?;
    let mut done = 0;
    while arguments.count.is_none_or(|count| done < count) {
        std::thread::sleep(Duration::from_secs_f64(arguments.interval));
        let mut look = watcher.look()?;
        sort(&mut look, arguments.sort);
        let text = if json { serde_json::json!(look).to_string() } else { render(&look) };
        // Whoever reads may have had enough.
        if writeln!(io::stdout(), "{text}").is_err() {
            return Ok(());
        }
        done += 1;
    }
    Ok(())
}

/// The terminal's other screen, with keys as they come; the terminal is as before when it is dropped.
struct Screen;

impl Screen {
    fn open() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Screen;
        execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)?;
        Ok(screen)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is nothing to do about a terminal that is gone.
        let _ = execute!(io::stdout(), cursor::Show, terminal::LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

fn screen_loop(watcher: &mut Watcher<'_>, arguments: &Arguments) -> Result<(), Error> {
    let interval = Duration::from_secs_f64(arguments.interval);
    let (mut by, mut done) = (arguments.sort, 0);
    let mut look = None;
    let mut next = Instant::now() + interval;
    draw("looking …").map_err(terminal_error)?;
    loop {
        let wait = next.saturating_duration_since(Instant::now());
        if event::poll(wait).map_err(terminal_error)? {
            if let Event::Key(key) = event::read().map_err(terminal_error)?
                && key.kind == KeyEventKind::Press
            {
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Char('n') => by = Sort::Queue,
                    KeyCode::Char('i') => by = Sort::Interrupts,
                    KeyCode::Char('p') => by = Sort::Packets,
                    KeyCode::Char('c') => by = Sort::Core,
                    _ => continue,
                }
            }
        } else {
            match watcher.look() {
                Ok(seen) => look = Some(seen),
                // A link that is being reopened or renamed comes back, or the next look says why not.
                Err(error) => {
                    look = None;
                    draw(&format!("{error}\n\nq: quit")).map_err(terminal_error)?;
                }
            }
            next = Instant::now() + interval;
            done += 1;
            if arguments.count.is_some_and(|count| done > count) {
                return Ok(());
            }
        }
        if let Some(look) = &mut look {
            sort(look, by);
            let keys = "sort by n: number, i: interrupts, p: packets, c: core    q: quit";
            draw(&format!("{}\n\n{keys}", render(look))).map_err(terminal_error)?;
        }
    }
}

fn draw(text: &str) -> io::Result<()> {
    // Some terminals don't know their size, and say 0.
    let known = terminal::size().ok().filter(|&(width, height)| width > 0 && height > 0);
    let (width, height) = known.unwrap_or((80, 24));
    let mut out = io::stdout().lock();
    execute!(out, terminal::Clear(terminal::ClearType::All), cursor::MoveTo(0, 0))?;
    for (number, line) in text.lines().take(height.into()).enumerate() {
        let line: String = line.chars().take(width.into()).collect();
        execute!(out, cursor::MoveTo(0, number as u16), style::Print(line))?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(thread: i32, times: [u64; 3]) -> WorkerStatus {
        let [running_ns, polling_ns, parked_ns] = times;
        let running = "kernel-polling".to_owned();
        WorkerStatus { worker: 0, thread, napi: 9, running, running_ns, polling_ns, parked_ns }
    }

    #[test]
    fn a_workers_shares_are_those_of_the_interval_and_of_the_same_thread() {
        let shares = shares(9, &[worker(7, [100, 100, 100])], &[worker(7, [150, 125, 125])]).unwrap();
        assert_eq!((shares.useful, shares.polling, shares.idle), (0.5, 0.25, 0.25));
        assert!(super::shares(9, &[worker(6, [0, 0, 0])], &[worker(7, [1, 1, 1])]).is_none());
    }

    #[test]
    fn queues_are_sorted_with_the_most_first_and_unknown_ones_last() {
        let row = |queue, packets| Row {
            queue,
            napi: None,
            irq: None,
            core: None,
            interrupts_per_second: None,
            tx_interrupts_per_second: None,
            packets_per_second: packets,
            packets_per_interrupt: None,
            suspended: None,
            worker: None,
        };
        let mut look = Look {
            interface: "eth0".to_owned(),
            up: true,
            seconds: 1.0,
            packets_per_second: 3.0,
            busy_poll_share: 0.5,
            net_rx_softirqs_per_second: 1.0,
            queues: vec![row(0, None), row(1, Some(1.0)), row(2, Some(2.0))],
        };
        sort(&mut look, Sort::Packets);
        assert_eq!(look.queues.iter().map(|row| row.queue).collect::<Vec<_>>(), [2, 1, 0]);
        assert!(render(&look).contains("50.0 % received by busy polling"), "{}", render(&look));
    }
}
