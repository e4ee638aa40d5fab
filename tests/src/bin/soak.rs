//! Runs a load against the memcached server for any time, and checks it each minute. See `tests::soak`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use tests::soak::{Plan, run};

const USAGE: &str = "usage: soak [--hours N] [--minutes N] [--seconds N] [--rate OPERATIONS_PER_SECOND] [--seed N]
            [-- SERVER_ARGUMENTS]

Builds on the memcached command: cargo build -p lull-servers. Each minute it prints a line of figures. It exits with 1
and a message at the first violation.";

/// The error names the argument that is wrong.
fn plan() -> Result<Plan, String> {
    let (mut plan, mut duration) = (Plan::default(), Duration::ZERO);
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--" {
            plan.server_arguments = arguments.collect();
            break;
        }
        if !["--hours", "--minutes", "--seconds", "--rate", "--seed"].contains(&name.as_str()) {
            return Err(format!("there is no argument {name}"));
        }
        let given = arguments.next().ok_or_else(|| format!("{name} needs a number"))?;
        let least = if name == "--rate" { 1.0 } else { 0.0 };
        let number = given.parse().ok().filter(|value: &f64| (least..1e9).contains(value));
        let value =
            number.ok_or_else(|| format!("{name} is a number from {least} to a billion, not {given:?}"))?;
        match name.as_str() {
            "--hours" => duration += Duration::from_secs_f64(value * 3600.0),
            "--minutes" => duration += Duration::from_secs_f64(value * 60.0),
            "--seconds" => duration += Duration::from_secs_f64(value),
            "--rate" => plan.rate = value as u32,
            _ => plan.seed = value as u64,
        }
    }
    if duration > Duration::ZERO {
        plan.duration = duration;
    }
    Ok(plan)
}

fn main() -> ExitCode {
    let plan = match plan() {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("soak: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&plan, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(violation) => {
            eprintln!("soak: violated: {violation}");
            ExitCode::FAILURE
        }
    }
}
