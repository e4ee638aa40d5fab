//! Servers are attached under load, polled, and left as they were.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lab::testbed::{SERVER_INTERFACE, Testbed};
use policies::attach::{AttachConfig, AttachEvent, Attachment, Fitness, Observation, Target, observe};
use policies::controller::{QueueMode, Reason};
use policies::epoll_params::EpollParams;
use policies::pidfd::duplicate;
use policies::socket_options::stop_steering;
use policies::{Change, JournalDir, host};
use rustix::process::{Pid, Signal, kill_process};
use tests::closed_loop::Load;
use tests::isolated::{HungThread, stop_if_asked};
use tests::memcached::wait_until;
use tests::testbed::enter_plain;
use tests::{KillOnDrop, policies_command, testbed_test};

use super::servers::{self, Server, serve_if_asked};

pub const CONNECTIONS: usize = 12;

/// An attachment and what it has reported.
pub struct Observed {
    pub attachment: Attachment,
    events: Arc<Mutex<Vec<AttachEvent>>>,
}

impl Observed {
    /// Attaches, and polls whenever packets come.
    pub fn start(target: Target) -> Self {
        Self::start_with(AttachConfig::new(target))
    }

    pub fn start_with(config: AttachConfig) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&events);
        let config = AttachConfig { polls_always: true, ..config };
        let on_event = move |event: &AttachEvent| {
            println!("{event}");
            seen.lock().unwrap().push(event.clone());
        };
        Self { attachment: Attachment::start(config, on_event).unwrap(), events }
    }

    /// How many events there were so far of a kind.
    pub fn count(&self, kind: impl Fn(&AttachEvent) -> bool) -> usize {
        self.events.lock().unwrap().iter().filter(|event| kind(event)).count()
    }

    pub fn wait_attached(&self, instances: usize) {
        wait_until("the instances are attached", || {
            self.count(|event| matches!(event, AttachEvent::Attached { .. })) >= instances
        });
    }

    /// Waits until these queues are attached.
    pub fn wait_queues(&self, queues: &[u32]) {
        wait_until("the queues are attached", || {
            let attached = self.attachment.status().queues;
            attached.iter().map(|attached| attached.queue.queue).eq(queues.iter().copied())
        });
    }

    /// Detaches under the load, and ends the load. Nothing is left.
    pub fn end(self, load: Load) {
        self.attachment.detach();
        load.end();
        nothing_is_left();
    }

    pub fn wait_polls(&self) {
        wait_until("the queue is polled", || self.count(polls) > 0);
    }

    pub fn wait_packets(&self) {
        wait_until("busy polls bring packets", || {
            let queues = self.attachment.status().queues;
            println!("{queues:?}");
            queues.iter().any(|queue| queue.busy_poll_share > 0.2)
        });
    }
}

/// The command `policies attach` or `policies run`, and what it prints.
pub struct AttachCommand {
    pub child: KillOnDrop,
    printed: tempfile::NamedTempFile,
}

impl AttachCommand {
    pub fn start(arguments: &[&str]) -> Self {
        let printed = tempfile::NamedTempFile::new().unwrap();
        let child = policies_command(arguments).stdout(printed.reopen().unwrap()).spawn().unwrap().into();
        Self { child, printed }
    }

    /// `policies attach --pid`, which polls soon.
    pub fn to(server: &Server) -> Self {
        let pid = server.pid().to_string();
        let started = Self::start(&["attach", "--pid", &pid, "--polls-always"]);
        server.wait_polls();
        started
    }

    pub fn text(&self) -> String {
        std::fs::read_to_string(self.printed.path()).unwrap()
    }

    pub fn wait_printed(&self, text: &str) {
        wait_until(&format!("it prints {text:?}"), || self.text().contains(text));
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it in order. Returns its exit code, and what it has printed.
    pub fn end(self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), std::fs::read_to_string(self.printed.path()).unwrap())
    }
}

fn polls(event: &AttachEvent) -> bool {
    matches!(event, AttachEvent::Queue { change: Change::QueueSettings { settings, .. }, .. } if settings.polls())
}

/// Everything that an attachment may set, for processes.
pub fn state(pids: &[u32]) -> (serde_json::Value, Vec<(u32, i32, EpollParams)>) {
    let mut interface = serde_json::json!(host::interface(SERVER_INTERFACE).unwrap());
    for queue in interface["queues"].as_array_mut().unwrap() {
        // Other NAPIs follow a link that goes down and up.
        queue["napi"]["id"].take();
    }
    (interface, pids.iter().flat_map(|pid| epolls(*pid)).collect())
}

pub fn epolls(pid: u32) -> Vec<(u32, i32, EpollParams)> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let epolls = fds.filter(|fd| {
        std::fs::read_link(fd.path()).is_ok_and(|link| link.to_string_lossy().contains("[eventpoll]"))
    });
    let numbers = epolls.filter_map(|fd| fd.file_name().to_str()?.parse().ok());
    let mut found: Vec<_> = numbers
        .filter_map(|fd: i32| Some((pid, fd, EpollParams::read(duplicate(pid, fd).ok()?).ok()?)))
        .collect();
    found.sort_by_key(|(_, fd, _)| *fd);
    found
}

/// A process and its children, by their names.
pub fn family(pid: u32) -> Vec<u32> {
    let children = Command::new("pgrep").args(["-P", &pid.to_string()]).output().unwrap();
    let children = String::from_utf8_lossy(&children.stdout).into_owned();
    std::iter::once(pid).chain(children.lines().map(|line| line.parse().unwrap())).collect()
}

pub fn nothing_is_left() {
    wait_until("the journal is removed", || !std::path::Path::new("/run/lull").exists());
}

/// Whether any instance can be attached to now.
pub fn is_aligned(observation: &Observation) -> bool {
    observation.instances().any(|instance| instance.fitness == Fitness::Aligned)
}

/// Loads a server, attaches it until busy polls bring packets, and detaches it. Everything is as
/// before.
fn attach_and_detach(testbed: &Testbed, server: &Server) {
    let load = server.load(testbed);
    let family = family(server.pid());
    let before = state(&family);
    let target = Target::Process(server.pid());
    let observation = observe(&target, None, &JournalDir::default()).unwrap();
    println!("{}\n{:?}", observation.verdict(), observation.findings);
    assert!(is_aligned(&observation) && !observation.is_prevented(), "{observation:?}");
    assert_eq!(state(&family), before, "looking has changed something");
    let attached = Observed::start(target);
    attached.wait_polls();
    // First the queue's values are set, then those of its instances.
    server.wait_polls();
    attached.wait_packets();
    attached.attachment.detach();
    assert_eq!(state(&family), before, "something is left");
    nothing_is_left();
    let served = load.requests();
    wait_until("the server still serves", || load.requests() > served + 100);
    load.end();
}

macro_rules! polled_while_attached {
    ($($test:ident: $server:expr;)*) => {$(
        #[testbed_test]
        fn $test() {
            serve_if_asked();
            let testbed = enter_plain(1);
            let Some(server) = $server else { return };
            attach_and_detach(&testbed, &server);
        }
    )*};
}

polled_while_attached! {
    memcached_is_polled_while_it_is_attached: servers::memcached();
    a_worker_of_nginx_is_polled_while_it_is_attached: servers::nginx(1, "");
    redis_is_polled_while_it_is_attached: servers::redis();
    haproxy_is_polled_while_it_is_attached: servers::haproxy();
    a_java_server_is_polled_while_it_is_attached: servers::java();
    a_go_server_is_polled_while_it_is_attached: servers::go();
    a_tokio_server_is_polled_while_it_is_attached: Some(servers::own("tokio"));
}

#[testbed_test]
fn threads_of_memcached_that_take_their_queues_are_attached_to_one_each() {
    let testbed = enter_plain(2);
    let Some(server) = servers::memcached_with(&["-t", "2", "-N", "2"]) else { return };
    let load = server.load_by(&testbed, 2 * CONNECTIONS, Duration::ZERO);
    let attached = Observed::start(Target::Process(server.pid()));
    attached.wait_attached(2);
    attached.wait_queues(&[0, 1]);
    attached.end(load);
}

#[testbed_test]
fn workers_of_nginx_that_mix_queues_are_left_alone() {
    let testbed = enter_plain(2);
    let Some(server) = servers::nginx(2, "reuseport") else { return };
    // Until all are served a worker may have no epoll instance.
    let load = server.load_by(&testbed, 4 * CONNECTIONS, Duration::ZERO);
    wait_until("each worker serves", || load.requests() > 1000);
    let target = Target::Process(server.pid());
    let family = family(server.pid());
    let before = state(&family);
    let observation = observe(&target, None, &JournalDir::default()).unwrap();
    let several = observation.instances().filter(|it| it.fitness == Fitness::SeveralQueues).count();
    assert!(several > 0, "{observation:?}");
    let remedies: String = observation.findings.iter().filter_map(|it| it.remedy.clone()).collect();
    assert!(remedies.contains("reuseport") && remedies.contains("--steer"), "{remedies}");
    let attached = Observed::start(target);
    wait_until("an instance is left alone", || {
        attached.count(|event| matches!(event, AttachEvent::LeftAlone { .. })) > 0
    });
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(attached.count(|event| matches!(event, AttachEvent::Attached { .. })), 0);
    assert_eq!(state(&family), before);
    drop(attached);
    load.end();
}

#[testbed_test]
fn workers_of_nginx_are_steered_to_one_queue_each_until_they_are_detached() {
    let testbed = enter_plain(2);
    let Some(server) = servers::nginx(2, "reuseport") else { return };
    let workers = &family(server.pid())[1..];
    // The group's program, removed if there is one.
    let is_steered = || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", workers[0])).unwrap().flatten();
        let numbers = fds.filter_map(|fd| fd.file_name().to_str()?.parse().ok());
        let mut sockets = numbers.filter_map(|fd: i32| duplicate(workers[0], fd).ok());
        sockets.any(|socket| stop_steering(&socket).is_ok())
    };
    assert!(!is_steered());
    let target = Target::Process(server.pid());
    let config = AttachConfig { steer: true, ..AttachConfig::new(target) };
    let attached = Observed::start_with(config.clone());
    let steered = |event: &AttachEvent| matches!(event, AttachEvent::Steered { listeners: 2, .. });
    wait_until("the listeners are steered", || attached.count(steered) == 1);
    let load = server.load_by(&testbed, 4 * CONNECTIONS, Duration::ZERO);
    attached.wait_attached(2);
    attached.wait_queues(&[0, 1]);
    attached.attachment.detach();
    assert!(!is_steered(), "the program is left");
    nothing_is_left();
    load.end();

    // Killed, and restored.
    let pid = server.pid().to_string();
    let command = AttachCommand::start(&["attach", "--pid", &pid, "--steer"]);
    command.wait_printed("steered to its 2 listeners");
    command.kill();
    let restored = policies_command(&["restore"]).output().unwrap();
    let text = String::from_utf8_lossy(&restored.stdout).into_owned();
    assert!(restored.status.success() && text.contains("listener"), "{restored:?}");
    assert!(!is_steered(), "the program is left");
    nothing_is_left();
}

#[testbed_test]
fn a_server_whose_queue_nobody_sets_any_more_is_left_to_interrupts() {
    if stop_if_asked() {
        return;
    }
    serve_if_asked();
    let testbed = enter_plain(1);
    let server = servers::own("tokio");
    let load = server.load(&testbed);
    let before = state(&[server.pid()]);
    let attached = Observed::start(Target::Process(server.pid()));
    attached.wait_polls();
    let hung = loop {
        server.wait_polls();
        let hung = HungThread::start("lull-supervisor");
        // The queue may have been given back to interrupts before the thread was stopped.
        if server.polls() {
            break hung;
        }
    };
    load.end();
    wait_until("it no longer polls", || !server.polls());
    wait_until("the status says why", || {
        let queues = attached.attachment.status().queues;
        queues.iter().any(|queue| {
            (queue.status.mode, queue.status.why) == (QueueMode::Interrupts, Reason::Unsupervised)
        })
    });
    drop(hung);
    attached.attachment.detach();
    assert_eq!(state(&[server.pid()]), before, "something is left");
    nothing_is_left();
}
