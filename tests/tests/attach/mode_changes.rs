//! What a change of an attached queue's settings does to the server's requests: between interrupts and grace mode, and from one
//! grace time to another.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lab::testbed::SERVER_INTERFACE;
use policies::attach::{AttachConfig, Target};
use policies::descriptors::{EpollParams, duplicate};
use policies::host::{self, scheduler};
use policies::law::{ForcedSettings, QueueSettings, Reason};
use policies::netlink::netdev::Netdev;
use rustix::process::Pid;
use serial_test::serial;
use tests::isolated;
use tests::pairs::each_after_each;
use tests::testbed::{enter, preempt_other_programs};

use super::attached::{CONNECTIONS, Observed, epolls, nothing_is_left};
use super::load::Load;
use super::servers;

/// How often each change is made. The hypervisor pauses a core now and then, but not at most changes of a kind.
const ROUNDS: usize = 9;
/// The pause of each client between two requests.
const PAUSE: Duration = Duration::from_micros(300);
/// A step of a change is seen a moment after it. A request that it delays was not answered before, and was sent soon after it.
const BEFORE: Duration = Duration::from_millis(2);
const AFTER: Duration = Duration::from_millis(5);
/// By how much a request may be later than those without a change. A suspension that nobody ends takes 20 ms.
const LATER: Duration = Duration::from_millis(1);

/// What a change sets, one after the other.
struct Watched {
    netdev: Netdev,
    napi: u32,
    epolls: Vec<OwnedFd>,
}

/// Deferrals, grace time in nanoseconds, and whether an instance polls.
type State = (u64, u64, bool);

impl Watched {
    fn state(&mut self) -> State {
        let napi = self.netdev.napi(self.napi).unwrap();
        let polls = self.epolls.iter().any(|epoll| EpollParams::read(epoll).unwrap().prefer_busy_poll == 1);
        (napi.defer_hard_irqs.unwrap(), napi.gro_flush_timeout.unwrap(), polls)
    }

    /// Waits until these settings are in effect. Returns when each step was taken.
    fn wait_for(&mut self, settings: &QueueSettings) -> Vec<Instant> {
        let wanted = (settings.defer_hard_irqs, settings.grace_time.as_nanos() as u64, settings.polls());
        let (mut steps, mut present) = (Vec::new(), self.state());
        let give_up = Instant::now() + Duration::from_secs(10);
        while present != wanted {
            assert!(Instant::now() < give_up, "not {settings}: {present:?}");
            std::thread::sleep(Duration::from_micros(500));
            let before = std::mem::replace(&mut present, self.state());
            if present != before {
                steps.push(Instant::now());
            }
        }
        steps
    }
}

/// The longest request around these instants.
fn longest(requests: &[(Instant, Duration)], instants: &[Instant]) -> Duration {
    let is_around =
        |sent: Instant, took, step: &Instant| sent + took + BEFORE >= *step && sent <= *step + AFTER;
    let around = requests.iter().filter(|(sent, took)| instants.iter().any(|it| is_around(*sent, *took, it)));
    around.map(|(_, took)| *took).max().expect("requests")
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "timing"]
#[isolated(root)]
#[serial]
fn a_request_at_a_change_of_an_attached_queue_waits_no_longer_than_at_other_times() {
    let testbed = enter(1);
    let Some(server) = servers::memcached(&["-t", "1"]) else { return };
    for thread in std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap() {
        let thread = thread.unwrap().file_name().to_string_lossy().parse().unwrap();
        scheduler::set_fifo_priority(Pid::from_raw(thread).unwrap(), 1).unwrap();
    }
    let forced = ForcedSettings::default();
    let target = Target::Process(server.pid());
    let attached =
        Observed::start_with(AttachConfig { forced: Some(forced.clone()), ..AttachConfig::new(target) });
    // The clients inherit it.
    preempt_other_programs();
    let load = Load::start_paced(&testbed, server.address, server.exchange, CONNECTIONS, PAUSE);
    attached.wait_attached(1);
    let epolls = epolls(server.pid()).into_iter().map(|(pid, fd, _)| duplicate(pid, fd).unwrap()).collect();
    let napi = host::interface(SERVER_INTERFACE).unwrap().napi_ids()[0];
    let mut watched = Watched { netdev: Netdev::open().unwrap(), napi, epolls };
    let grace = |micros| QueueSettings::grace(Duration::from_micros(micros), Reason::Fixed);
    let all = [QueueSettings::plain(Reason::Fixed), grace(20), grace(160)];

    let mut instants = Vec::new();
    for _ in 0..ROUNDS {
        let mut present = 0;
        for next in each_after_each(all.len()) {
            forced.choose(all[next]);
            let steps = watched.wait_for(&all[next]);
            std::thread::sleep(Duration::from_millis(100));
            let quiet: Vec<Instant> = steps.iter().map(|step| *step + Duration::from_millis(60)).collect();
            instants.push((present, next, steps, quiet));
            present = next;
        }
    }
    let requests = load.end_with_instants();
    attached.attachment.detach();
    nothing_is_left();

    let mut late = Vec::new();
    for (from, to) in (0..all.len()).flat_map(|from| (0..all.len()).map(move |to| (from, to))) {
        let changes = instants.iter().filter(|it| (it.0, it.1) == (from, to));
        let times: Vec<Duration> = changes.map(|it| longest(&requests, &it.2)).collect();
        if from == to {
            continue;
        }
        assert!(times.len() >= ROUNDS, "{times:?}");
        let steady = [from, to].map(|mode| {
            let quiet = instants.iter().filter(|it| it.1 == mode);
            median(quiet.map(|it| longest(&requests, &it.3)).collect())
        });
        let (longest, steady) = (median(times), steady[0].max(steady[1]));
        let line = format!("{} to {}: {longest:?}, without a change {steady:?}", all[from], all[to]);
        println!("{line}");
        if longest > steady + LATER {
            late.push(line);
        }
    }
    assert!(late.is_empty(), "a change makes requests late: {late:#?}");
}
