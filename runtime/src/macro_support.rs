//! What the attributes' expansions call.

use crate::builder::Builder;
pub use crate::config::Attribute;
use crate::config::BuildError;
use crate::runtime::Runtime;

/// With this variable set, a test fails where a driver is missing.
const REQUIRE_ALL: &str = "LULL_REQUIRE_ALL";

/// Starts the runtime of `#[runtime::main]`. Prints why and ends the process if it can't.
pub fn start(attribute: Attribute) -> Runtime {
    Builder::from_attribute(attribute).build().unwrap_or_else(|error| {
        eprintln!("error: {error}");
        std::process::exit(1)
    })
}

/// Runs a `#[runtime::test]` on each driver, or on the one that it names. Returns the outcome of
/// the first run that fails, else of the last run.
///
/// The names of the drivers go to the test's output, which the test harness shows if the test
/// fails.
pub fn on_each_driver<R: Outcome>(mut attribute: Attribute, mut test: impl FnMut(Runtime) -> R) -> R {
    attribute.workers.get_or_insert_with(|| "1".to_owned());
    let drivers = match &attribute.driver {
        Some(driver) => vec![driver.clone()],
        None => ["epoll", "uring"].map(String::from).into(),
    };
    let mut last = None;
    for driver in drivers {
        attribute.driver = Some(driver.clone());
        let runtime = match Builder::from_attribute(attribute.clone()).ignore_environment().build() {
            Ok(runtime) => runtime,
            Err(error @ BuildError::Worker { .. }) => {
                let all = std::env::var_os(REQUIRE_ALL).is_some_and(|value| !value.is_empty());
                assert!(!all, "{REQUIRE_ALL} is set, and the {driver} driver is missing: {error}");
                eprintln!("skipped: missing the {driver} driver: {error}");
                continue;
            }
            Err(error) => panic!("the test's runtime can't be built: {error}"),
        };
        eprintln!("on {driver}");
        let result = test(runtime);
        if result.failed() {
            return result;
        }
        last = Some(result);
    }
    last.unwrap_or_else(|| panic!("no driver is available"))
}

/// What a test may return.
pub trait Outcome {
    fn failed(&self) -> bool;
}

impl Outcome for () {
    fn failed(&self) -> bool {
        false
    }
}

impl<E> Outcome for Result<(), E> {
    fn failed(&self) -> bool {
        self.is_err()
    }
}
