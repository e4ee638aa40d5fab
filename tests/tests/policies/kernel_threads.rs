//! The real-time kernel threads that stand in for the interrupts of a veth's queues.

use lab::testbed::SERVER_INTERFACE;
use policies::host::scheduler::{INTERRUPT_THREAD_PRIORITY, fifo_priority};
use policies::{Cpus, Guard, JournalDir, Lifetime, Pid, Plan, Policy, RxQueue, Settings, host};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serial_test::serial;
use tests::isolated;
use tests::testbed::enter;

fn queues() -> Vec<RxQueue> {
    host::interface(SERVER_INTERFACE).unwrap().queues
}

/// The kernel thread that polls a queue.
fn thread(queue: &RxQueue) -> Option<Pid> {
    Pid::from_raw(i32::try_from(queue.napi.as_ref()?.pid?).unwrap())
}

fn apply(policy: Policy, settings: &Settings) -> Guard {
    let plan = Plan::new(policy, &host::interface(SERVER_INTERFACE).unwrap(), settings);
    policies::apply(&plan, Lifetime::Process, &JournalDir::default()).unwrap()
}

#[test]
#[isolated(root)]
#[serial]
fn under_every_policy_each_queue_has_a_real_time_thread_on_its_core_and_no_steering() {
    let _testbed = enter(2);
    let last = Cpus::allowed().unwrap().iter().last().unwrap();
    let steering = format!("/sys/class/net/{SERVER_INTERFACE}/queues/rx-0/rps_cpus");
    std::fs::write(&steering, "1").unwrap();
    let worker_cores = vec![0, last];
    let settings = Settings {
        worker_cores: worker_cores.clone(),
        packing_cores: Cpus::one(last),
        ..Settings::default()
    };
    for policy in Policy::ALL.into_iter().filter(|policy| !policy.has_polling_threads()) {
        let guard = apply(policy, &settings);
        assert!(guard.applied().iter().all(|step| step.outcome.is_ok()), "{:?}", guard.applied());
        for (queue, worker) in queues().iter().zip(&worker_cores) {
            let thread = thread(queue).unwrap_or_else(|| panic!("{policy}: no thread for {queue:?}"));
            let core = if policy == Policy::Packing { last } else { *worker };
            assert_eq!(Cpus::of_thread(Some(thread)).unwrap(), Cpus::one(core), "{policy}");
            assert_eq!(fifo_priority(thread).unwrap(), INTERRUPT_THREAD_PRIORITY, "{policy}");
            assert_eq!(queue.rps_cpus, Some(Cpus::none()), "{policy}");
        }
        drop(guard);
        assert!(queues().iter().all(|queue| thread(queue).is_none()), "{policy} left a thread");
        assert_eq!(queues()[0].rps_cpus, Some(Cpus::one(0)), "{policy}");
    }
}

#[test]
#[isolated(root)]
#[serial]
fn without_cap_sys_nice_the_thread_is_ordinary_and_the_step_says_what_follows() {
    let _testbed = enter(1);
    let sets = rustix::thread::capabilities(None).unwrap();
    let effective = sets.effective - CapabilitySet::SYS_NICE;
    rustix::thread::set_capabilities(None, CapabilitySets { effective, ..sets }).unwrap();
    let guard = apply(Policy::KernelPolling, &Settings { worker_cores: vec![0], ..Settings::default() });
    let said: Vec<String> = guard.applied().iter().map(ToString::to_string).collect();
    let priority = said.iter().find(|step| step.contains("napi thread priority")).unwrap();
    assert!(priority.contains("could not be set to 50"), "{priority}");
    assert!(
        priority.contains("without it, the kernel thread that polls the queue waits its turn"),
        "{priority}"
    );
    let forbidden: Vec<_> = guard.plan().forbidden().filter_map(|step| step.forbidden.clone()).collect();
    assert_eq!(forbidden, ["needs CAP_SYS_NICE"; 2]);
    // The rest of the policy is in effect.
    assert_eq!(fifo_priority(thread(&queues()[0]).unwrap()).unwrap(), 0);
    assert_eq!(queues()[0].napi.as_ref().unwrap().irq_suspend_timeout, Some(20_000_000));
}
