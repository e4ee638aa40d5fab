//! The arguments of the attributes.

use runtime as lull;

/// As a crate that renames the dependency sees it.
mod renamed {
    use super::lull;

    #[lull::test(crate = "lull", driver = "epoll")]
    async fn the_path_of_a_renamed_runtime_is_an_argument() {
        assert_eq!(lull::workers(), 1);
    }
}

#[lull::test(
    crate = "crate::attributes::lull",
    policy = "vanilla",
    workers = 2,
    wait = "adaptive",
    driver = "epoll",
    affinity = "none",
    grace_time = "auto",
    poll_interval = "20"
)]
async fn the_settings_of_an_attribute_are_taken() {
    assert_eq!(lull::workers(), 2);
    assert_eq!(lull::policy(), lull::policy::Policy::Vanilla);
    assert!(lull::reports().iter().all(|report| report.driver == lull::DriverKind::Epoll));
}

/// Not run: whether core 0 may be used, and whether settings of `lo` may be changed, depends on the
/// machine.
mod compiled {
    #[allow(dead_code, reason = "it only has to compile")]
    #[lull::main(crate = "super::lull", interface = "lo", cores = "0")]
    async fn main() {}

    use super::lull;
}

mod outside_of_tests {
    #[lull::main(crate = "super::lull", workers = 1)]
    async fn main() {
        assert_eq!(super::lull::current_worker(), 0);
    }

    use super::lull;

    #[test]
    fn main_takes_the_path_of_a_renamed_runtime() {
        main();
    }
}
