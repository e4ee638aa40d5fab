//! Inside a test with the attribute [`isolated`](macro@crate::isolated), which runs it in its own
//! process.

pub use requirements::once_more;
use runtime::DriverKind;

/// The driver that this process tests, of those that the attribute lists.
pub fn driver() -> DriverKind {
    let name = std::env::var("LULL_TEST_DRIVER").unwrap_or_default();
    name.parse().expect("#[isolated] lists drivers")
}
