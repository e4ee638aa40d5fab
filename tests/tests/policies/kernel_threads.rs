//! Kernel threads that poll a veth's queues: those from before a policy, and those of
//! `kernel-thread`, which poll all the time, or vanilla where the kernel has none.

use lab::testbed::{INTERRUPT_THREAD_PRIORITY, SERVER_INTERFACE};
use policies::host::scheduler::{fifo_priority, set_fifo_priority};
use policies::netlink::netdev::THREADED_BUSY_POLL;
use policies::{Cpus, Pid, Plan, Policy, RxQueue, Settings, Value, host};
use runtime::{Running, WorkerReport};
use tests::testbed::{apply, enter, enter_plain, server_builder, steer_to};
use tests::testbed_test;

/// Whether this kernel has threads that poll all the time.
fn kernel_has_polling_threads() -> bool {
    kernel_version() >= (6, 19)
}

fn kernel_version() -> (u16, u16) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn queues() -> Vec<RxQueue> {
    host::interface(SERVER_INTERFACE).unwrap().queues
}

fn thread_of(queue: &RxQueue) -> Option<Pid> {
    Pid::from_raw(i32::try_from(queue.napi.as_ref()?.pid?).unwrap())
}

/// The thread of the first queue.
fn thread() -> Option<Pid> {
    thread_of(&queues()[0])
}

/// What the policies may change: the NAPI's `threaded`, the steering, and the thread's priority and
/// cores.
type State = (Option<u64>, Option<Cpus>, Option<(u32, Cpus)>);

fn state() -> State {
    let queue = queues().remove(0);
    let of_thread = |thread| (fifo_priority(thread).unwrap(), Cpus::of_thread(Some(thread)).unwrap());
    (queue.napi.unwrap().threaded, queue.rps_cpus, thread().map(of_thread))
}

/// A runtime's report under a policy, and the state while it runs.
fn run(policy: Policy, packing: u32) -> (WorkerReport, State) {
    let builder = server_builder(policy, 1).packing_cores(Cpus::one(packing));
    let runtime = builder.build().unwrap();
    let report = runtime.block_on(async { runtime::reports() }).remove(0);
    (report, state())
}

/// Steers the first queue to core 0. Workers are on the first and the last core, packing on that.
fn steered_settings() -> (Settings, u32) {
    steer_to(0);
    let last = Cpus::allowed().unwrap().iter().last().unwrap();
    (Settings { worker_cores: vec![0, last], packing_cores: Cpus::one(last), ..Settings::default() }, last)
}

#[testbed_test]
fn a_thread_from_before_moves_to_its_queues_core_and_keeps_its_class_and_no_steering_stays() {
    let _testbed = enter(2);
    let (settings, last) = steered_settings();
    let check = |policy: Policy, queue: &RxQueue, worker| {
        let thread = thread_of(queue).unwrap_or_else(|| panic!("{policy}: no thread for {queue:?}"));
        let core = if policy == Policy::Packing { last } else { worker };
        assert_eq!(Cpus::of_thread(Some(thread)).unwrap(), Cpus::one(core), "{policy}");
        assert_eq!(fifo_priority(thread).unwrap(), INTERRUPT_THREAD_PRIORITY, "{policy}");
        assert_eq!(queue.rps_cpus, Some(Cpus::none()), "{policy}");
    };
    let restored = |policy, queue: &RxQueue| {
        let cores = thread_of(queue).map(|thread| Cpus::of_thread(Some(thread)).unwrap());
        assert_eq!(cores, Some(Cpus::one(0)), "{policy}");
    };
    check_each_policy(&settings, check, restored);
}

#[testbed_test]
fn no_policy_but_kernel_thread_starts_a_thread_and_those_that_block_steer_to_their_core() {
    let _testbed = enter_plain(2);
    let (settings, last) = steered_settings();
    let check = |policy, queue: &RxQueue, worker| {
        assert_eq!(queue.napi.as_ref().unwrap().threaded, Some(0), "{policy}");
        let steered = match policy {
            Policy::Vanilla => Cpus::one(worker),
            Policy::Packing => Cpus::one(last),
            _ => Cpus::none(),
        };
        assert_eq!(queue.rps_cpus, Some(steered), "{policy}");
    };
    check_each_policy(&settings, check, |_, _| ());
}

/// Applies each policy without polling threads, and checks each queue with its worker's core while
/// it is applied, then each queue after it. The steering is restored.
fn check_each_policy(
    settings: &Settings,
    check: impl Fn(Policy, &RxQueue, u32),
    restored: impl Fn(Policy, &RxQueue),
) {
    for policy in Policy::ALL.into_iter().filter(|policy| !policy.has_polling_threads()) {
        let guard = apply(policy, settings);
        assert!(guard.applied().iter().all(|step| step.outcome.is_ok()), "{:?}", guard.applied());
        queues().iter().zip(&settings.worker_cores).for_each(|(queue, worker)| check(policy, queue, *worker));
        drop(guard);
        queues().iter().for_each(|queue| restored(policy, queue));
        assert_eq!(queues()[0].rps_cpus, Some(Cpus::one(0)), "{policy}");
    }
}

#[testbed_test(drivers = "epoll, uring")]
fn kernel_thread_polls_on_the_packing_core_or_runs_vanilla_and_says_which_linux_it_needs() {
    let _testbed = enter(1);
    steer_to(0);
    let core = Cpus::allowed().unwrap().iter().last().unwrap();
    let before = state();
    let (_, vanilla) = run(Policy::Vanilla, core);
    assert_eq!(vanilla, (Some(1), Some(Cpus::none()), Some((INTERRUPT_THREAD_PRIORITY, Cpus::one(0)))));
    let (report, running) = run(Policy::KernelThread, core);
    let said = report.to_string();
    if kernel_has_polling_threads() {
        assert_eq!(report.running, Running::KernelThread, "{said}");
        assert!(report.steps_down.is_empty(), "{said}");
        assert_eq!(running, (Some(THREADED_BUSY_POLL), Some(Cpus::none()), Some((0, Cpus::one(core)))));
    } else {
        assert_eq!(report.running, Running::Vanilla, "{said}");
        // Nothing is left of the placement that relies on the thread.
        assert_eq!(running, vanilla);
        let [reason] = &report.steps_down[..] else { panic!("{said}") };
        assert!(reason.starts_with("rx-0 threaded could not be set to 2: "), "{reason}");
        assert!(reason.contains("needs Linux 6.19, and this is Linux "), "{reason}");
        assert!(reason.ends_with("and vanilla runs instead"), "{reason}");
    }
    assert_eq!(state(), before);
    assert!(!std::path::Path::new("/run/lull").exists());
}

#[testbed_test]
fn the_plan_for_kernel_thread_says_beforehand_that_the_kernel_has_none() {
    let _testbed = enter(2);
    let settings = Settings { worker_cores: vec![0], packing_cores: Cpus::one(0), ..Settings::default() };
    let plan = Plan::new(Policy::KernelThread, &host::interface(SERVER_INTERFACE).unwrap(), &settings);
    let notes: Vec<String> = plan.notes.iter().map(ToString::to_string).collect();
    let needs = |note: &String| note.contains("need Linux 6.19") && note.contains("vanilla runs instead");
    assert_eq!(notes.iter().any(needs), !kernel_has_polling_threads(), "{:?}", plan.notes);
    for shared in ["2 kernel threads poll on cores 0", "on cores 0, which have workers"] {
        assert!(notes.iter().any(|note| note.contains(shared)), "{shared}: {:?}", plan.notes);
    }
    let threads: Vec<_> = plan.steps.iter().filter(|step| step.target == Value::Number(2)).collect();
    assert_eq!(threads.len(), 2, "{:?}", plan.steps);
}

#[testbed_test]
fn a_thread_from_before_kernel_thread_gets_its_priority_and_cores_back() {
    let _testbed = enter(1);
    let before = thread().unwrap();
    set_fifo_priority(before, 7).unwrap();
    let fresh = state();
    // Workers that are not pinned: vanilla would set nothing, and leave what kernel-thread had
    // begun.
    for worker_cores in [vec![0], Vec::new()] {
        let settings = Settings { worker_cores, packing_cores: Cpus::one(0), ..Settings::default() };
        let guard = apply(Policy::KernelThread, &settings);
        if kernel_has_polling_threads() {
            assert_eq!(state(), (Some(THREADED_BUSY_POLL), fresh.1.clone(), Some((0, Cpus::one(0)))));
        } else {
            assert_eq!(guard.plan().policy, Policy::Vanilla);
            assert_eq!(state().2.unwrap().0, 7, "{:?}", guard.applied());
        }
        drop(guard);
        assert_eq!(state(), fresh);
        assert_eq!(thread(), Some(before));
    }
}
