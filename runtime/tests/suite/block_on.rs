//! Several `block_on`s on one runtime, and what they leave behind on their thread.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use runtime::policy::Cpus;
use runtime::{Builder, DriverKind};

use crate::drivers::{drivers, one_worker};

#[test]
fn tasks_and_timers_go_on_in_the_next_block_on() {
    for driver in drivers() {
        let runtime = one_worker(driver);
        let ran = Rc::new(Cell::new(0));
        let mut task = None;
        runtime.block_on(async {
            let ran = Rc::clone(&ran);
            task = Some(runtime::spawn(async move {
                for _ in 0..3 {
                    ran.set(ran.get() + 1);
                    runtime::sleep(Duration::from_millis(5)).await;
                }
                7
            }));
            runtime::yield_now().await;
        });
        let before = ran.get();
        assert!(before > 0, "on {driver}");
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!(ran.get(), before, "on {driver}");
        assert_eq!(runtime.block_on(task.unwrap()).expect("the task was dropped"), 7);
        assert_eq!(ran.get(), 3, "on {driver}");
    }
}

#[test]
fn block_on_leaves_its_caller_where_it_was() {
    std::thread::spawn(|| {
        let cpus = || rustix::thread::sched_getaffinity(None).unwrap();
        let (before, slack) = (cpus(), rustix::thread::current_timer_slack().unwrap());
        let core = Cpus::allowed().unwrap().iter().next().unwrap();
        let runtime = Builder::new().ignore_environment().workers(1).cores(Cpus::one(core)).build().unwrap();
        for _ in 0..2 {
            runtime.block_on(async {
                assert_eq!(cpus().count(), 1);
                assert_eq!(rustix::thread::current_timer_slack().unwrap(), 1);
            });
            assert!(cpus() == before, "the caller was left pinned");
            assert_eq!(rustix::thread::current_timer_slack().unwrap(), slack);
        }
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            runtime.block_on(async { panic!("on purpose") })
        }));
        assert!(panicked.map(|(): ()| ()).is_err());
        assert!(cpus() == before, "the caller was left pinned after a panic");
    })
    .join()
    .unwrap();
}

#[test]
fn a_block_on_within_a_runtime_panics_before_it_moves_the_thread() {
    let allowed = Cpus::allowed().unwrap();
    let core = allowed.iter().next().unwrap();
    one_worker(DriverKind::Auto).block_on(async {
        let inner = Builder::new().ignore_environment().workers(1).cores(Cpus::one(core)).build().unwrap();
        let nested = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inner.block_on(async {})));
        let panic = nested.unwrap_err();
        assert!(panic.downcast_ref::<&str>().unwrap().contains("within a runtime"));
        let after = rustix::thread::sched_getaffinity(None).unwrap().count() as usize;
        assert_eq!(after, allowed.iter().count(), "the thread was pinned");
    });
}
