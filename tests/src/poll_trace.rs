//! Which of the kernel's three loops polled a NAPI, counted by tracepoints.
//!
//! A NAPI with a kernel thread (`threaded`) is polled by that thread after an interrupt and after
//! its timer, and by the worker's thread in busy polls.

use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use policies::Pid;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const TRACEFS: &str = "/sys/kernel/tracing";
const POLL: &str = "events/napi/napi_poll";
const TIMER: &str = "events/timer/hrtimer_expire_entry";
/// More than `struct napi_struct` takes: its timer is within this distance of its address.
const NAPI_BYTES: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Polls {
    pub busy: u64,
    pub busy_packets: u64,
    /// Polls by the NAPI's thread, after an interrupt or the timer.
    pub thread: u64,
    pub thread_packets: u64,
    /// How often the NAPI's timer has expired (`napi_watchdog`).
    pub timer: u64,
}

impl Polls {
    pub fn busy_share(&self) -> f64 {
        self.busy_packets as f64 / (self.busy_packets + self.thread_packets).max(1) as f64
    }
}

/// A private instance of the kernel's tracing. It is removed on drop.
#[derive(Debug)]
pub struct PollTrace {
    instance: PathBuf,
    mounted: bool,
}

impl PollTrace {
    pub fn new(interface: &str) -> io::Result<Self> {
        let mounted = !Path::new(TRACEFS).join("instances").exists();
        if mounted {
            mount("tracefs", TRACEFS, "tracefs", MountFlags::empty(), None)?;
        }
        let instance = Path::new(TRACEFS).join(format!("instances/lull-test-{}", std::process::id()));
        let trace = Self { instance, mounted };
        fs::create_dir(&trace.instance)?;
        // KiB for each CPU: a busy second of an unoptimized server takes one megabyte.
        trace.write("buffer_size_kb", "8192")?;
        // Addresses as they are: the timer's is within the NAPI's structure.
        trace.write("options/hash-ptr", "0")?;
        trace.write(&format!("{POLL}/filter"), &format!("dev_name == \"{interface}\""))?;
        trace.write(&format!("{TIMER}/filter"), "function.function == napi_watchdog")?;
        trace.write(&format!("{POLL}/enable"), "1")?;
        trace.write(&format!("{TIMER}/enable"), "1")?;
        Ok(trace)
    }

    /// Forgets what was traced so far.
    pub fn clear(&self) {
        self.write("trace", "").expect("the trace can be cleared");
    }

    /// Counts the polls since the last [`PollTrace::clear`], of the NAPI that `thread` polls for
    /// the kernel and `worker` for the application.
    pub fn count(&self, worker: Pid, thread: Pid) -> Polls {
        let text = fs::read_to_string(self.instance.join("trace")).expect("a trace");
        assert!(!text.contains("LOST") && !self.has_overrun(), "events were lost");
        let events: Vec<Event> = text.lines().filter_map(Event::parse).collect();
        let (worker, thread) = (worker.as_raw_nonzero().get(), thread.as_raw_nonzero().get());
        // Other testbeds have interfaces of the same name.
        let napi = events.iter().find_map(|event| match event.what {
            What::Poll { napi, .. } if event.pid == worker || event.pid == thread => Some(napi),
            What::Poll { .. } | What::Timer(_) => None,
        });
        let Some(napi) = napi else { return Polls::default() };
        let mut polls = Polls::default();
        for event in &events {
            match event.what {
                What::Poll { napi: other, work } if other == napi && event.pid == worker => {
                    polls.busy += 1;
                    polls.busy_packets += work;
                }
                What::Poll { napi: other, work } if other == napi => {
                    polls.thread += 1;
                    polls.thread_packets += work;
                }
                What::Timer(timer) if within(napi).contains(&timer) => polls.timer += 1,
                What::Poll { .. } | What::Timer(_) => {}
            }
        }
        polls
    }

    fn has_overrun(&self) -> bool {
        let cpus = fs::read_dir(self.instance.join("per_cpu")).into_iter().flatten().flatten();
        cpus.filter_map(|cpu| fs::read_to_string(cpu.path().join("stats")).ok())
            .any(|stats| stats.lines().any(|line| line.starts_with("overrun:") && line != "overrun: 0"))
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::write(self.instance.join(file), text)
    }
}

impl Drop for PollTrace {
    fn drop(&mut self) {
        // Fails if it was not created.
        let _ = fs::remove_dir(&self.instance);
        if self.mounted {
            let _ = unmount(TRACEFS, UnmountFlags::DETACH);
        }
    }
}

fn within(napi: u64) -> RangeInclusive<u64> {
    napi..=napi + NAPI_BYTES
}

/// A line of `trace`.
struct Event {
    pid: i32,
    what: What,
}

enum What {
    Poll { napi: u64, work: u64 },
    Timer(u64),
}

impl Event {
    /// Parses `comm-pid [cpu] flags time: name: …`; the command may contain spaces and hyphens.
    fn parse(line: &str) -> Option<Self> {
        let (head, rest) = line.split_once(" [")?;
        let pid = head.trim().rsplit('-').next()?.parse().ok()?;
        let what = if let Some((_, poll)) = rest.split_once("napi_poll: napi poll on napi struct ") {
            let mut words = poll.split_whitespace();
            let napi = address(words.next()?)?;
            let work = words.skip_while(|word| *word != "work").nth(1)?.parse().ok()?;
            What::Poll { napi, work }
        } else {
            let (_, timer) = rest.split_once("hrtimer_expire_entry: hrtimer=")?;
            What::Timer(address(timer.split_whitespace().next()?)?)
        };
        Some(Self { pid, what })
    }
}

fn address(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}
