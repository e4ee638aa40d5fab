//! The policies on the two-namespace testbed. Each test moves its own child process into a namespace,
//! so that they run side by side and nothing of the host is touched.

use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::{AsyncReadExt, AsyncWriteExt};
use lab::namespace::Namespace;
use lab::testbed::{CLIENT_INTERFACE, SERVER_ADDRESS, SERVER_INTERFACE, Testbed};
use net::{TcpListener, TcpStream};
use policies::counters::Snapshot;
use policies::{Cpus, Policy, host};
use runtime::{AsyncFd, Builder, Direction, DriverKind, Running, Runtime, SourceKind};

/// Runs the test `name` again in a process of its own, where `INSIDE` is set; `true` in there. It runs
/// on each driver that can poll with suspension, one after the other.
fn in_own_process(name: &str) -> bool {
    if std::env::var_os("INSIDE").is_some() {
        return true;
    }
    if tests::root().is_none() {
        return false;
    }
    // One at a time: they measure delays, and there may be two cores.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for driver in [DriverKind::Epoll, DriverKind::Hybrid] {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env("INSIDE", driver.to_string())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "on {driver}: {}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    false
}

/// The driver that this process is to test.
fn driver() -> DriverKind {
    std::env::var("INSIDE").unwrap().parse().unwrap()
}

/// Makes the testbed, and this process a citizen of the server's side.
fn enter(queues: u32) -> Testbed {
    let testbed = Testbed::new(queues).unwrap();
    // The test harness has threads, so only this one moves; runtimes are made from it.
    let file = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(testbed.server.file()));
    Namespace::open(&file).unwrap().enter_process().unwrap();
    testbed
}

fn server_runtime(policy: Policy, workers: usize) -> Runtime {
    Builder::new()
        .ignore_environment()
        .policy(policy)
        .driver(driver())
        .interface(SERVER_INTERFACE)
        .cores(Cpus::one(0))
        .workers(workers)
        .build()
        .unwrap()
}

/// Echoes on the server's side until the sender goes; `client` runs on the other side.
fn echo_with<T: Send + 'static>(
    testbed: Testbed,
    mut runtime: Runtime,
    beside: impl Future<Output = ()> + 'static,
    client: impl FnOnce(std::net::SocketAddr) -> T + Send + 'static,
) -> (T, policies::counters::Delta, net::Alignment) {
    runtime.block_on(async move {
        let listener = TcpListener::bind((SERVER_ADDRESS, 0).into()).unwrap();
        let address = listener.local_addr().unwrap();
        let serving = listener
            .serve(|mut stream: TcpStream| async move {
                let mut buffer = [0; 1024];
                stream.set_nodelay(true).unwrap();
                while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                    if stream.write_all(&buffer[..length]).await.is_err() {
                        break;
                    }
                }
            })
            .unwrap();
        let interface = host::interface(SERVER_INTERFACE).unwrap();
        let before = Snapshot::take(&interface).unwrap();
        let beside = runtime::spawn(beside);
        let (done, finished) = std::os::unix::net::UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let result = testbed.client.run(|| Ok(client(address))).unwrap();
            drop(done);
            result
        });
        finished.set_nonblocking(true).unwrap();
        AsyncFd::new(finished, SourceKind::Other).unwrap().ready(Direction::Read).await;
        beside.abort();
        let delta = Snapshot::take(&interface).unwrap().since(&before);
        (thread.join().unwrap(), delta, serving.alignment())
    })
}

/// Closed-loop requests of one connection each, from plain blocking threads.
fn hammer(address: std::net::SocketAddr, connections: usize, time: Duration) -> u64 {
    use std::io::{Read, Write};
    let end = Instant::now() + time;
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            // Threads of a namespace's thread are in that namespace.
            std::thread::spawn(move || {
                let mut count = 0;
                let mut buffer = [0; 64];
                while Instant::now() < end {
                    stream.write_all(b"ping").unwrap();
                    stream.read_exact(&mut buffer[..4]).unwrap();
                    count += 1;
                }
                count
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).sum()
}

/// Round trips one after the other with pauses; the longest of them. The first is not counted: it
/// waits for the connection to be taken on.
fn worst_round_trip(address: std::net::SocketAddr, pause: Duration, time: Duration) -> Duration {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut trips = Vec::new();
    let end = Instant::now() + time;
    let mut buffer = [0; 4];
    while Instant::now() < end {
        let start = Instant::now();
        stream.write_all(b"ping").unwrap();
        stream.read_exact(&mut buffer).unwrap();
        trips.push(start.elapsed());
        std::thread::sleep(pause);
    }
    trips.remove(0);
    trips.sort_unstable();
    // The hypervisor takes the core away now and then, for longer than any of these delays; what the
    // loop does wrong it does again and again.
    trips[trips.len() * 95 / 100]
}

#[test]
fn kernel_polling_gets_most_packets_by_polling_and_vanilla_none() {
    if !in_own_process("kernel_polling_gets_most_packets_by_polling_and_vanilla_none") {
        return;
    }
    // Saturation by the real pair of server and load, as `lab` runs them; medians of three rounds.
    let output = Command::new(lab_binary())
        .args(["--quick", "--rounds", "3", "--format", "json", "--gro-flush-timeout", "50"])
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    let share = |policy: &str| {
        let rows = report["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["asked"] == policy).unwrap();
        assert_eq!(row["ran"], policy, "{row}");
        row["busy_poll_share"].as_f64().unwrap()
    };
    assert!(share("kernel-polling") > 0.7, "kernel polling's share: {}", share("kernel-polling"));
    assert_eq!(share("vanilla"), 0.0, "vanilla's share");
}

/// The `lab` command, built beside this test.
fn lab_binary() -> std::path::PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap().to_owned();
    let binary = folder.join("lab");
    assert!(binary.is_file(), "build the lab command first: cargo build --workspace");
    binary
}

#[test]
fn a_packet_in_an_unpolled_gap_is_not_delayed_by_the_loop() {
    if !in_own_process("a_packet_in_an_unpolled_gap_is_not_delayed_by_the_loop") {
        return;
    }
    let testbed = enter(1);
    let runtime = server_runtime(Policy::KernelPolling, 1);
    // The loop polls, finds nothing, and leaves a gap: the packet comes into that.
    let (worst, _, alignment) = echo_with(testbed, runtime, std::future::ready(()), |address| {
        worst_round_trip(address, Duration::from_millis(3), Duration::from_millis(900))
    });
    assert_eq!(alignment.aligned, 1, "{alignment:?}");
    // A packet that nobody polls for waits for the suspension to end, after 20 ms.
    assert!(worst < Duration::from_millis(5), "{worst:?}");
}

#[test]
fn a_storm_of_cross_thread_wakes_does_not_starve_the_network() {
    if !in_own_process("a_storm_of_cross_thread_wakes_does_not_starve_the_network") {
        return;
    }
    static WAKES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let testbed = enter(1);
    let runtime = server_runtime(Policy::KernelPolling, 1);
    let storm = async {
        let slot = std::sync::Arc::new(std::sync::Mutex::new(None::<std::task::Waker>));
        let waking = std::sync::Arc::downgrade(&slot);
        std::thread::spawn(move || {
            while let Some(slot) = waking.upgrade() {
                if let Some(waker) = slot.lock().unwrap().as_ref() {
                    waker.wake_by_ref();
                }
                // The client needs a core, too.
                std::thread::yield_now();
            }
        });
        std::future::poll_fn(|context| {
            *slot.lock().unwrap() = Some(context.waker().clone());
            WAKES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::task::Poll::Pending
        })
        .await
    };
    let (worst, ..) = echo_with(testbed, runtime, storm, |address| {
        worst_round_trip(address, Duration::from_millis(1), Duration::from_millis(900))
    });
    let wakes = WAKES.load(std::sync::atomic::Ordering::Relaxed);
    assert!(wakes > 1000, "{wakes} wakes are no storm");
    assert!(worst < Duration::from_millis(5), "{worst:?}");
}

#[test]
fn a_descriptor_that_is_always_ready_does_not_starve_the_network() {
    if !in_own_process("a_descriptor_that_is_always_ready_does_not_starve_the_network") {
        return;
    }
    let testbed = enter(1);
    let runtime = server_runtime(Policy::KernelPolling, 1);
    let always_ready = async {
        use std::io::{Read, Write};
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        std::thread::spawn(move || while theirs.write_all(&[0; 512]).is_ok() {});
        ours.set_nonblocking(true).unwrap();
        let ours = AsyncFd::new(ours, SourceKind::Other).unwrap();
        let mut buffer = [0; 256];
        loop {
            ours.io(Direction::Read, |mut stream| stream.read(&mut buffer)).await.unwrap();
            runtime::yield_now().await;
        }
    };
    let (worst, ..) = echo_with(testbed, runtime, always_ready, |address| {
        worst_round_trip(address, Duration::from_millis(1), Duration::from_millis(900))
    });
    assert!(worst < Duration::from_millis(5), "{worst:?}");
}

#[test]
fn with_two_queues_every_connection_is_on_its_napis_worker() {
    if !in_own_process("with_two_queues_every_connection_is_on_its_napis_worker") {
        return;
    }
    let testbed = enter(2);
    let runtime = server_runtime(Policy::KernelPolling, 2);
    assert_eq!(runtime.reports().first().map(|report| report.running), Some(Running::KernelPolling));
    let (count, _, alignment) = echo_with(testbed, runtime, std::future::ready(()), |address| {
        hammer(address, 32, Duration::from_millis(300))
    });
    assert!(count > 0);
    assert_eq!(alignment.accepted, 32, "{alignment:?}");
    assert_eq!(alignment.aligned, 32, "{alignment:?}");
    assert_eq!(alignment.misaligned, 0, "{alignment:?}");
}

#[test]
fn what_a_killed_process_left_is_put_back_by_the_next_start() {
    let name = "what_a_killed_process_left_is_put_back_by_the_next_start";
    if std::env::var_os("APPLY").is_none() && !in_own_process(name) {
        return;
    }
    if let Ok(policy) = std::env::var("APPLY") {
        // In the grandchild, which inherits the namespaces: hold the policy until killed.
        let runtime = server_runtime(policy.parse().unwrap(), 1);
        assert!(runtime.applied().iter().all(|step| step.outcome.is_ok()), "{:?}", runtime.applied());
        println!("applied");
        std::thread::sleep(Duration::from_secs(60));
        drop(runtime);
        return;
    }
    let _testbed = enter(1);
    let state = || {
        let interface = host::interface(SERVER_INTERFACE).unwrap();
        let queue = &interface.queues[0];
        let napi = queue.napi.clone().unwrap();
        (
            queue.rps_cpus.clone(),
            napi.defer_hard_irqs,
            napi.gro_flush_timeout,
            napi.irq_suspend_timeout,
            napi.threaded,
        )
    };
    let fresh = state();
    let hold = |policy: Policy| {
        use std::io::BufRead;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact", "--nocapture", "--test-threads=1"])
            .env("APPLY", policy.name())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(child.stdout.take().unwrap());
        assert!(out.lines().map_while(Result::ok).any(|line| line.contains("applied")), "{policy}");
        assert_ne!(state(), fresh, "{policy} set nothing");
        child
    };
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut child = hold(Policy::KernelPolling);
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
        assert!(!child.wait().unwrap().success());
        assert_eq!(state(), fresh, "{signal:?} left something set");
        assert!(!std::path::Path::new("/run/lull").exists(), "{signal:?} left the journal");
    }
    for policy in Policy::ALL {
        let mut child = hold(policy);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_ne!(state(), fresh, "{policy} was put back by nobody");
        // The next start, of another policy that needs nothing of these.
        let next =
            Builder::new().ignore_environment().workers(1).interface(SERVER_INTERFACE).build().unwrap();
        assert_eq!(state(), fresh, "{policy}");
        drop(next);
        let left: Vec<_> = std::fs::read_dir("/run/lull").into_iter().flatten().collect();
        assert!(!std::path::Path::new("/run/lull").exists(), "{policy} left its journal: {left:?}");
    }
}

#[test]
fn what_someone_else_set_meanwhile_is_left_alone() {
    if !in_own_process("what_someone_else_set_meanwhile_is_left_alone") {
        return;
    }
    let _testbed = enter(1);
    let runtime = server_runtime(Policy::KernelPolling, 1);
    let mut netdev = policies::netlink::netdev::Netdev::open().unwrap();
    let interface = host::interface(SERVER_INTERFACE).unwrap();
    let id = interface.napi_ids()[0];
    netdev.set_napi(id, policies::netlink::netdev::NapiSetting::GroFlushTimeout, 12_345).unwrap();
    drop(runtime);
    let napi = netdev.napi(id).unwrap();
    assert_eq!(napi.gro_flush_timeout, Some(12_345));
    assert_eq!(napi.defer_hard_irqs, Some(0));
}

#[test]
fn a_second_process_is_told_that_all_queues_are_taken_and_polls_none() {
    if !in_own_process("a_second_process_is_told_that_all_queues_are_taken_and_polls_none") {
        return;
    }
    let _testbed = enter(1);
    let first = server_runtime(Policy::KernelPolling, 1);
    let mut second = server_runtime(Policy::Suppression, 1);
    let report = second.block_on(async { runtime::reports() }).remove(0);
    assert!(report.to_string().contains("queues 0 are taken by process"), "{report}");
    assert_eq!(report.running, Running::Blocking, "{report}");
    drop(second);
    let napi = host::interface(SERVER_INTERFACE).unwrap().queues[0].napi.clone().unwrap();
    assert_eq!(napi.irq_suspend_timeout, Some(20_000_000));
    drop(first);
}

#[test]
fn a_second_process_takes_the_queues_that_the_first_has_left() {
    if !in_own_process("a_second_process_takes_the_queues_that_the_first_has_left") {
        return;
    }
    let _testbed = enter(2);
    let queues = host::interface(SERVER_INTERFACE).unwrap().queues;
    let settings = policies::Settings { queues: Some(vec![0]), ..policies::Settings::default() };
    let interface = host::interface(SERVER_INTERFACE).unwrap();
    let plan = policies::Plan::new(Policy::KernelPolling, &interface, &settings);
    let first = policies::apply(&plan, policies::Lifetime::Process, &policies::JournalDir::default());
    let mut second = server_runtime(Policy::KernelPolling, 1);
    let report = second.block_on(async { runtime::reports() }).remove(0);
    assert_eq!(report.running, Running::KernelPolling, "{report}");
    assert_eq!(report.napi.as_ref().unwrap().id, queues[1].napi.as_ref().unwrap().id, "{report}");
    assert!(report.to_string().contains("took queues 1 instead"), "{report}");
    drop(second);
    let after = host::interface(SERVER_INTERFACE).unwrap().queues;
    assert_eq!(after[1].napi, queues[1].napi, "the second put its queue back");
    assert_ne!(after[0].napi, queues[0].napi, "and left the first's alone");
    drop(first);
    assert_eq!(host::interface(SERVER_INTERFACE).unwrap().queues[0].napi, queues[0].napi);
}

#[test]
fn what_a_reopened_link_has_forgotten_is_set_again_and_told() {
    if !in_own_process("what_a_reopened_link_has_forgotten_is_set_again_and_told") {
        return;
    }
    let _testbed = enter(1);
    let (told, changes) = std::sync::mpsc::channel();
    let runtime = Builder::new()
        .ignore_environment()
        .policy(Policy::KernelPolling)
        .interface(SERVER_INTERFACE)
        .workers(1)
        .cores(Cpus::one(0))
        .driver(driver())
        .on_host_change(move |change| drop(told.send(change.to_string())))
        .build()
        .unwrap();
    let napi = || host::interface(SERVER_INTERFACE).unwrap().queues[0].napi.clone();
    let before = napi().unwrap();
    for state in ["down", "up"] {
        let done = Command::new("ip").args(["link", "set", SERVER_INTERFACE, state]).status().unwrap();
        assert!(done.success());
        // Longer than the second in which the link is looked at.
        std::thread::sleep(Duration::from_millis(1300));
    }
    tests::memcached::wait_until("the new NAPI has the policy's values", || {
        napi().is_some_and(|napi| {
            napi.irq_suspend_timeout == before.irq_suspend_timeout
                && napi.gro_flush_timeout == before.gro_flush_timeout
                && napi.defer_hard_irqs == before.defer_hard_irqs
        })
    });
    assert_ne!(napi().unwrap().id, before.id, "a veth gives its queues new NAPIs");
    let changes: Vec<String> = changes.try_iter().collect();
    for expected in ["the link is down", "the link is up", "gro-flush-timeout set to 200000"] {
        assert!(changes.iter().any(|change| change.contains(expected)), "{expected}: {changes:?}");
    }
    drop(runtime);
    let after = napi().unwrap();
    assert_eq!((after.gro_flush_timeout, after.defer_hard_irqs), (Some(0), Some(0)));
}

#[test]
fn the_testbed_is_gone_when_it_is_dropped() {
    if !in_own_process("the_testbed_is_gone_when_it_is_dropped") {
        return;
    }
    let testbed = Testbed::new(2).unwrap();
    let queues = testbed.client.run(|| Ok(host::interface(CLIENT_INTERFACE).unwrap().queues.len())).unwrap();
    assert_eq!(queues, 2);
    drop(testbed);
    let here = host::interfaces().unwrap();
    assert!(
        here.iter().all(|interface| interface.name != SERVER_INTERFACE && interface.name != CLIENT_INTERFACE)
    );
}
