//! A policy set by the code, and each worker's report of what is in effect.
//!
//! Without root, or on an interface without NAPI (the default here is `lo`), the workers fall back
//! to less, and their reports say why.
//!
//! ```sh
//! cargo run -p lull-runtime --example policy_from_code -- eth0 kernel-polling
//! ```

use std::error::Error;
use std::time::Duration;

use runtime::Builder;
use runtime::policy::{Policy, PollInterval};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let interface = arguments.next().unwrap_or_else(|| "lo".to_owned());
    let policy = arguments.next().map_or(Ok(Policy::KernelPolling), |name| name.parse::<Policy>())?;

    let runtime = Builder::new()
        .policy(policy)
        .interface(interface)
        .workers(2)
        .poll_interval(PollInterval::new(Duration::from_micros(30))?)
        .on_host_change(|change| println!("the interface changed: {change:?}"))
        .build()?;

    for setting in runtime.applied() {
        println!("host: {setting}");
    }
    for report in runtime.block_on(async { runtime::reports() }) {
        println!("{report}");
        println!("  asked for {}, running {} on {}", report.asked, report.running, report.driver);
        for reason in report.steps_down.iter().chain(&report.notes) {
            println!("  because {reason}");
        }
    }
    // Dropping the runtime restores the host's settings.
    Ok(())
}
