//! A short run of the soak program's load.

use std::time::Duration;

use serial_test::parallel;
use tests::soak::{Plan, run};

#[test]
#[parallel]
fn a_load_that_churns_flushes_and_expires_leaks_nothing_and_gets_no_wrong_value() {
    let (duration, check_interval) = (Duration::from_secs(5), Duration::from_secs(2));
    let mut log = Vec::new();
    let result = run(&Plan { duration, check_interval, ..Plan::default() }, &mut log);
    print!("{}", String::from_utf8_lossy(&log));
    result.unwrap();
}
