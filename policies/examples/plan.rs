//! Prints what a policy would set on an interface, and changes nothing. Needs no privilege.
//!
//!     cargo run -p lull-policies --example plan -- eth0 kernel-polling

use policies::{Plan, Policy, Settings, host, nearest_cores};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_else(|| "lo".to_owned());
    let policy: Policy = arguments.next().as_deref().unwrap_or("kernel-polling").parse()?;

    let interface = host::interface(&name)?;
    // One worker for each queue, on the cores nearest to the device.
    let settings = Settings {
        worker_cores: nearest_cores(&interface, interface.queues.len().max(1))?,
        ..Settings::default()
    };
    let plan = Plan::new(policy, &interface, &settings);

    println!("{policy} on {name}, workers on cores {:?}:", settings.worker_cores);
    for step in &plan.steps {
        let current = step.current.as_ref().map_or_else(|| "unknown".to_owned(), ToString::to_string);
        println!("  {}: {current} -> {}  ({})", step.knob, step.target, step.purpose);
        if let Some(reason) = &step.forbidden {
            println!("    this process may not set it: {reason}");
        }
    }
    if plan.steps.is_empty() {
        println!("  nothing to set");
    }
    for note in &plan.notes {
        println!("note: {note}");
    }
    Ok(())
}
