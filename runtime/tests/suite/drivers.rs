//! The drivers that this machine has.

use runtime::{Builder, DriverKind};

pub fn drivers() -> Vec<DriverKind> {
    let all = [DriverKind::Epoll, DriverKind::Uring];
    requirements::drivers(all, |driver| Builder::new().ignore_environment().workers(1).driver(driver).build())
}
