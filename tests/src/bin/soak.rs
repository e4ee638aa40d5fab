//! Runs a load against the memcached server for any time, and checks it each minute. See `tests::soak`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use tests::soak::{Plan, run};

const USAGE: &str = "usage: soak [--hours N] [--minutes N] [--seconds N] [--rate OPERATIONS_PER_SECOND] [--seed N]
            [-- SERVER_ARGUMENTS]

Builds on the memcached command: cargo build -p lull-servers. Each minute it prints a line of figures. It exits with 1
and a message at the first violation.";

fn plan() -> Option<Plan> {
    let (mut plan, mut duration) = (Plan::default(), Duration::ZERO);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--" {
            plan.server_arguments = arguments.collect();
            break;
        }
        let value: f64 = arguments.next()?.parse().ok().filter(|value| (0.0..1e9).contains(value))?;
        match name.as_str() {
            "--hours" => duration += Duration::from_secs_f64(value * 3600.0),
            "--minutes" => duration += Duration::from_secs_f64(value * 60.0),
            "--seconds" => duration += Duration::from_secs_f64(value),
            "--rate" if value >= 1.0 => plan.rate = value as u32,
            "--seed" => plan.seed = value as u64,
            _ => return None,
        }
    }
    if duration > Duration::ZERO {
        plan.duration = duration;
    }
    Some(plan)
}

fn main() -> ExitCode {
    let Some(plan) = plan() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&plan, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(violation) => {
            eprintln!("soak: violated: {violation}");
            ExitCode::FAILURE
        }
    }
}
