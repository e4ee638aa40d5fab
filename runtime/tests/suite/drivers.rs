//! The drivers that this machine has. Tests of other crates use this, too.
#![allow(dead_code, reason = "each test binary uses its part of this")]

use runtime::{Builder, DriverKind, Runtime};

pub fn drivers() -> Vec<DriverKind> {
    let all = [DriverKind::Epoll, DriverKind::Uring];
    requirements::drivers(all, |driver| Builder::new().ignore_environment().workers(1).driver(driver).build())
}

pub fn one_worker(driver: DriverKind) -> Runtime {
    Builder::new().ignore_environment().workers(1).driver(driver).build().unwrap()
}

/// Like `#[runtime::test]`, with something that outlives the runtimes.
pub fn on_each_driver(workers: usize, test: impl AsyncFn()) {
    for driver in drivers() {
        eprintln!("on {driver}");
        let runtime = Builder::new().ignore_environment().workers(workers).driver(driver).build().unwrap();
        runtime.block_on(test());
    }
}
