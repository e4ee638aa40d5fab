//! How the controller of a worker drives its queue, and what of it is visible from outside.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use lab::testbed::{SERVER_INTERFACE, Testbed};
use policies::controller::QueueSettings;
use policies::counters::Snapshot;
use policies::netlink::netdev::{Napi, NapiSetting, Netdev};
use policies::{GraceTime, JournalDir, Lifetime, Plan, Policy, Settings, host};
use runtime::policy::{PollInterval, QueueMode, QueueStatus};
use runtime::{Builder, Running, Runtime};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use serde_json::Value;
use serial_test::serial;
use tests::KillOnDrop;
use tests::isolated;
use tests::memcached::{Memcached, free_port, wait_until};
use tests::testbed::{enter, napi, server_builder, server_runtime};

use super::echo::{hammer, serve};

/// Several times what a client needs for a request in an unoptimized build, so that the server is
/// the bottleneck; and less than the 5 deferrals of a grace time of 50 µs take, so that suspension
/// can begin.
const WORK: Duration = Duration::from_micros(100);

/// Deferrals, grace time in µs, and suspend timeout in µs.
fn values(napi: &Napi) -> (u64, u64, u64) {
    let micros = |nanos: Option<u64>| nanos.unwrap_or(0) / 1_000;
    (napi.defer_hard_irqs.unwrap_or(0), micros(napi.gro_flush_timeout), micros(napi.irq_suspend_timeout))
}

/// The output of the command `policies`.
fn policies(line: &str) -> String {
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let output = tests::policies_command(&arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A thread on the client's side that saturates the server whose address it is sent, for two
/// seconds, and then leaves it idle for one.
fn client(testbed: &Arc<Testbed>) -> (Sender<SocketAddr>, JoinHandle<u64>) {
    let testbed = Arc::clone(testbed);
    let (sender, addresses) = channel();
    let entered = Arc::new(Barrier::new(2));
    let has_entered = Arc::clone(&entered);
    let load = move || {
        has_entered.wait();
        let count = hammer(addresses.recv().unwrap(), 32, Duration::from_secs(2));
        std::thread::sleep(Duration::from_secs(1));
        Ok(count)
    };
    let thread = std::thread::spawn(move || testbed.client.run(load).unwrap());
    // From here on this thread may give up the capability to enter namespaces.
    entered.wait();
    (sender, thread)
}

/// What a worker and its NAPI show every 10 ms.
#[derive(Debug)]
struct Observation {
    status: QueueStatus,
    values: (u64, u64, u64),
}

/// Serves the client, and returns what was observed meanwhile, and the share of packets that busy
/// polling received.
fn observe(
    runtime: &Runtime,
    (address_of, client): (Sender<SocketAddr>, JoinHandle<u64>),
) -> (Vec<Observation>, f64) {
    let interface = host::interface(SERVER_INTERFACE).unwrap();
    let id = napi().id;
    let before = Snapshot::take(&interface).unwrap();
    let seen = runtime.block_on(async move {
        let (address, _serving) = serve(WORK);
        address_of.send(address).unwrap();
        let mut seen = Vec::new();
        while !client.is_finished() {
            runtime::sleep(Duration::from_millis(10)).await;
            let status = runtime::reports()[0].queue_status().unwrap();
            let napi = Netdev::open().and_then(|mut netdev| netdev.napi(id)).unwrap();
            seen.push(Observation { status, values: values(&napi) });
        }
        let count = client.join().unwrap();
        assert!(count > 1000, "only {count} requests");
        seen
    });
    (seen, Snapshot::take(&interface).unwrap().since(&before).busy_poll_share())
}

#[test]
#[isolated(root)]
#[serial]
fn a_plan_says_what_its_fixed_values_are_for() {
    let _testbed = enter(1);
    let planned = |flags: &str| -> Vec<(u64, String)> {
        let line = format!("--format json plan {SERVER_INTERFACE} --policy kernel-polling {flags}");
        let plan: Value = serde_json::from_str(&policies(&line)).unwrap();
        let step =
            |step: &Value| (step["target"].as_u64().unwrap(), step["purpose"].as_str().unwrap().to_owned());
        plan["steps"].as_array().unwrap().iter().map(step).collect()
    };
    for (flags, expected, purpose) in [
        // A veth pair does not say how large its rings are; they count as 256 descriptors.
        (
            "--peak-packet-rate 400000",
            [QueueSettings::GRACE_DEFERRALS, 30_000, 312_500],
            "after an empty poll the timer polls; the interrupt stays masked",
        ),
        ("--defer-hard-irqs 0", [0, 30_000, 1_250_000], "every poll unmasks the interrupt"),
    ] {
        let (targets, purposes): (Vec<u64>, Vec<String>) = planned(flags).into_iter().unzip();
        assert_eq!((targets.as_slice(), purposes[0].as_str()), (expected.as_slice(), purpose), "{flags}");
    }
}

#[test]
#[isolated(root)]
#[serial]
fn a_plan_with_an_adaptive_grace_time_starts_with_interrupts() {
    let _testbed = enter(1);
    let interface = host::interface(SERVER_INTERFACE).unwrap();
    let plan = Plan::new(Policy::KernelPolling, &interface, &Settings::default());
    let targets: Vec<String> = plan.steps.iter().map(|step| step.target.to_string()).collect();
    assert_eq!(targets, ["0", "0", "20000000"], "{plan:?}");
    assert!(plan.steps[0].purpose.starts_with("interrupts at first"), "{plan:?}");
}

#[test]
#[isolated(root, drivers = "epoll, uring")]
#[serial]
fn values_that_a_controller_has_set_are_restored_after_its_process_was_killed() {
    if std::env::var_os("SERVE").is_some() {
        // In the grandchild, which inherits the namespaces: serve until it is killed.
        let runtime = server_runtime(Policy::KernelPolling, 1);
        runtime.block_on(async {
            let (address, _serving) = serve(WORK);
            println!("address {address}");
            std::future::pending().await
        })
    }
    let testbed = Arc::new(enter(1));
    // Values of an operator.
    let id = napi().id;
    let mut netdev = Netdev::open().unwrap();
    let operators = [
        (NapiSetting::DeferHardIrqs, 3),
        (NapiSetting::GroFlushTimeout, 77_000),
        (NapiSetting::IrqSuspendTimeout, 5_000_000),
    ];
    for (setting, value) in operators {
        netdev.set_napi(id, setting, value).unwrap();
    }
    let fresh = napi();
    let mut server = isolated::once_more();
    let mut child: KillOnDrop = server.env("SERVE", "1").stdout(Stdio::piped()).spawn().unwrap().into();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.filter_map(|line| line.split_once("address ")?.1.parse().ok()).next();
    let address: SocketAddr = address.expect("the server's address");
    assert_eq!(values(&napi()), (0, 0, 20_000));
    let load = {
        let testbed = Arc::clone(&testbed);
        let load = move || {
            load_until_closed(address);
            Ok(())
        };
        std::thread::spawn(move || testbed.client.run(load).unwrap())
    };
    let pid = Pid::from_child(&child);
    wait_until("the controller polls", || {
        if values(&napi()).0 == 0 {
            return false;
        }
        // It may give polling up at this moment.
        kill_process(pid, Signal::STOP).unwrap();
        let polls = values(&napi()).0 != 0;
        if !polls {
            kill_process(pid, Signal::CONT).unwrap();
        }
        polls
    });
    child.kill().unwrap();
    child.wait().unwrap();
    load.join().unwrap();
    assert_ne!(values(&napi()).0, 0, "nobody was left to restore them");
    let next = Builder::new().ignore_environment().workers(1).interface(SERVER_INTERFACE).build().unwrap();
    assert_eq!(napi(), fresh);
    drop(next);
    assert!(!std::path::Path::new("/run/lull").exists());
}

/// Closed-loop requests of up to 32 connections until the server is gone.
fn load_until_closed(address: SocketAddr) {
    // The controller may choose before all are there, and then the server ends.
    let connect = |_| {
        let stream = TcpStream::connect(address).ok()?;
        stream.set_nodelay(true).ok()?;
        Some(stream)
    };
    let request = |mut stream: TcpStream| {
        let mut buffer = [b'.'; 64];
        while stream.write_all(&buffer).and_then(|()| stream.read_exact(&mut buffer)).is_ok() {}
    };
    let threads: Vec<_> =
        (0..32).map_while(connect).map(|stream| std::thread::spawn(move || request(stream))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll")]
#[serial]
fn without_capabilities_a_worker_polls_a_prepared_queue_and_keeps_its_values() {
    let testbed = Arc::new(enter(1));
    let fresh = napi();
    // As `policies apply` prepares it. The timer must not fire while the worker computes, or
    // interrupts take over.
    let prepared = QueueSettings::fixed(PollInterval::new(WORK * 2).unwrap());
    let settings = Settings {
        worker_cores: vec![0],
        defer_hard_irqs: prepared.defer_hard_irqs,
        gro_flush_timeout: GraceTime::Fixed(prepared.grace_time),
        ..Settings::default()
    };
    let interface = host::interface(SERVER_INTERFACE).unwrap();
    let plan = Plan::new(Policy::KernelPolling, &interface, &settings);
    let journals = JournalDir::default();
    let applied = policies::apply(&plan, Lifetime::Host, &journals).unwrap().keep();
    assert!(applied.iter().all(|step| step.outcome.is_ok()), "{applied:?}");
    let prepared = napi();
    assert_eq!(values(&prepared), (QueueSettings::GRACE_DEFERRALS, 200, 20_000));
    let client = client(&testbed);
    // Drops the effective capabilities of this thread and of those that it starts; the permitted
    // ones remain.
    let sets = capabilities(None).unwrap();
    set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets }).unwrap();
    let runtime = server_runtime(Policy::KernelPolling, 1);
    let report = runtime.block_on(async { runtime::reports() }).remove(0);
    assert_eq!(report.running, Running::KernelPolling, "{report}");
    assert!(report.steps_down.is_empty(), "{report}");
    let [kept] = &report.notes[..] else { panic!("{report}") };
    let kept_values =
        format!("keeps defer-hard-irqs {} and a grace time of 200 µs", QueueSettings::GRACE_DEFERRALS);
    assert!(kept.contains(&kept_values), "{report}");
    let (seen, share) = observe(&runtime, client);
    drop(runtime);
    assert!(seen.iter().all(|it| it.values == values(&prepared)), "the prepared values are kept");
    assert!(seen.iter().any(|it| it.status.mode == QueueMode::Grace), "never in grace mode");
    assert_eq!(seen.last().unwrap().status.mode, QueueMode::Interrupts);
    assert!(share > 0.0, "busy polling received nothing");
    assert_eq!(napi(), prepared);
    set_capabilities(None, sets).unwrap();
    policies::restore(&journals, None, false).unwrap();
    assert_eq!(napi(), fresh);
}

/// Worker 0 starts in `block_on`.
#[test]
#[ignore = "timing"]
#[isolated(root, drivers = "epoll, uring")]
#[serial]
fn a_thread_that_gives_up_its_capabilities_after_build_keeps_its_controller() {
    let testbed = Arc::new(enter(1));
    let fresh = napi();
    let client = client(&testbed);
    let runtime = server_runtime(Policy::KernelPolling, 1);
    let sets = capabilities(None).unwrap();
    set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets }).unwrap();
    let report = runtime.block_on(async { runtime::reports() }).remove(0);
    assert_eq!(report.running, Running::KernelPolling, "{report}");
    assert!(report.steps_down.is_empty() && report.notes.is_empty(), "{report}");
    let (seen, _) = observe(&runtime, client);
    assert!(seen.iter().any(|it| it.values.0 > 0), "the controller has set nothing");
    drop(runtime);
    assert_eq!(napi(), fresh);
    assert!(!std::path::Path::new("/run/lull").exists());
    set_capabilities(None, sets).unwrap();
}

#[test]
#[isolated(root, drivers = "epoll, uring")]
#[serial]
fn without_capabilities_a_worker_leaves_an_unprepared_queue_to_interrupts_and_says_so() {
    let _testbed = enter(1);
    let fresh = napi();
    let sets = capabilities(None).unwrap();
    set_capabilities(None, CapabilitySets { effective: CapabilitySet::empty(), ..sets }).unwrap();
    let runtime = server_runtime(Policy::KernelPolling, 1);
    let report = runtime.block_on(async { runtime::reports() }).remove(0);
    assert_eq!((report.running, report.epoll), (Running::Blocking, None), "{report}");
    assert!(report.steps_down.iter().any(|why| why.contains("CAP_NET_ADMIN")), "{report}");
    drop(runtime);
    set_capabilities(None, sets).unwrap();
    assert_eq!(napi(), fresh);
}

#[test]
#[isolated(root, drivers = "uring")]
#[serial]
fn on_uring_the_controller_drives_the_queue_and_a_fixed_grace_time_is_polled_without_suspension() {
    let _testbed = enter(1);
    let fresh = napi();
    assert_eq!((values(&fresh).0, values(&fresh).1), (0, 0));
    let on_uring = || server_builder(Policy::KernelPolling, 1);
    let report = |runtime: Runtime| {
        let report = runtime.block_on(async { runtime::reports() }).remove(0);
        let (deferrals, grace_time, _) = values(&napi());
        (report, (deferrals, grace_time))
    };
    let (adaptive, present) = report(on_uring().build().unwrap());
    assert_eq!((adaptive.running, present), (Running::KernelPolling, (0, 0)), "{adaptive}");
    assert!(adaptive.steps_down.is_empty() && adaptive.queue.is_some(), "{adaptive}");
    let fixed = on_uring().grace_time(GraceTime::Fixed(Duration::from_micros(20)));
    let (fixed, present) = report(fixed.build().unwrap());
    assert_eq!((fixed.running, present), (Running::BusyPollingWithDeferral, (100, 20)), "{fixed}");
    assert!(fixed.steps_down.iter().any(|why| why.contains("epoll driver")), "{fixed}");
    assert_eq!(napi(), fresh);
}

#[test]
#[isolated(root, drivers = "epoll, uring")]
#[serial]
fn watch_shows_mode_and_reason() {
    let _testbed = enter(1);
    let runtime = server_runtime(Policy::KernelPolling, 1);
    // Starts the worker.
    runtime.block_on(async {});
    let watch = format!("watch {SERVER_INTERFACE} --count 1 --interval 0.2");
    // The supervisor writes the workers' status once a second.
    wait_until("the status file", || policies(&watch).contains("rx-0: interrupts: "));
    let sample: Value = serde_json::from_str(&policies(&format!("--format json {watch}"))).unwrap();
    let queue = &sample["queues"][0]["worker"]["queue"];
    assert_eq!(queue["mode"], "interrupts", "{sample}");
    assert!(queue["reason"].is_string(), "{sample}");
    drop(runtime);
}

#[test]
#[isolated(root)]
#[serial]
fn memcached_says_how_its_queues_are_driven() {
    let _testbed = enter(1);
    let start = |flags: &str| {
        let port = free_port();
        let line = format!(
            "-t 1 -p {port} --cores 0 --policy kernel-polling --interface {SERVER_INTERFACE} {flags}"
        );
        let mut command = tests::memcached::command();
        let server = Memcached::run(command.args(line.split_whitespace()), port);
        String::from_utf8_lossy(&server.talk(b"stats policy\r\n")).into_owned()
    };
    let adapted = start("--driver epoll -u root --poll-interval 50");
    assert!(adapted.contains(" mode=interrupts grace_time_us=0 spin_us=0 why="), "{adapted}");
    let fixed = start("--driver epoll -u root --gro-flush-timeout 30");
    assert!(fixed.contains(" mode=grace grace_time_us=30 spin_us=0 why=fixed"), "{fixed}");
    // After it has switched to another user, its guardian sets the values.
    let switched = start("--driver epoll -u nobody");
    assert!(switched.contains(" mode=interrupts grace_time_us=0 spin_us=0 why="), "{switched}");
}
