//! Whether a plan is still the one that somebody has looked at.

use std::path::Path;

use policies::Plan;
use serde_json::{Value, json};

use crate::output::CommandError;

/// How many differences are told.
const MOST: usize = 3;

/// Compares a plan with the output of `policies --format json plan`: the policy, the interface, and the
/// steps with their present values.
pub fn check(plan: &Plan, file: &Path) -> Result<(), CommandError> {
    let unreadable = |reason: String| CommandError::UnreadablePlan { path: file.to_owned(), reason };
    let text = std::fs::read_to_string(file).map_err(|error| unreadable(error.to_string()))?;
    let planned: Value = serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
    if !planned["steps"].is_array() {
        return Err(unreadable("it has no steps; make it with `policies --format json plan`".to_owned()));
    }
    let differences = differences(&planned, &json!(plan));
    if differences.is_empty() {
        return Ok(());
    }
    Err(CommandError::NotAsPlanned { path: file.to_owned(), differences })
}

fn differences(planned: &Value, now: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for field in ["policy", "interface"] {
        if planned[field] != now[field] {
            found.push(format!("{field} {} was planned, not {}", planned[field], now[field]));
        }
    }
    let [before, after] = [planned, now].map(|plan| steps(&plan["steps"]));
    for step in before.iter().filter(|step| !after.contains(step)) {
        found.push(format!("no longer {step}"));
    }
    for step in after.iter().filter(|step| !before.contains(step)) {
        found.push(format!("now {step}"));
    }
    if let Some(more) = found.len().checked_sub(MOST).filter(|more| *more > 0) {
        found.truncate(MOST);
        found.push(format!("{more} more"));
    }
    found
}

/// Each step as what it sets, from which value to which.
fn steps(steps: &Value) -> Vec<String> {
    let text = |step: &Value| {
        let mut knob = step.as_object().cloned().unwrap_or_default();
        let [from, to] = ["current", "target"].map(|field| knob.remove(field).unwrap_or_default());
        // The text, and the planner's permission: `plan` may run without privileges.
        knob.remove("purpose");
        knob.remove("forbidden");
        let name = knob.remove("knob").unwrap_or_default();
        let rest: Vec<String> = knob.iter().map(|(key, value)| format!("{key} {value}")).collect();
        format!("{} ({}) from {from} to {to}", name.as_str().unwrap_or_default(), rest.join(", "))
    };
    steps.as_array().into_iter().flatten().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_differs_by_steps_and_present_values_and_not_by_who_made_it() {
        let step = |current: u64, forbidden: Option<&str>| json!({ "knob": "rps-cpus", "queue": 0, "current": current, "target": 1, "forbidden": forbidden, "purpose": "p" });
        let plan = |steps: Vec<Value>| json!({ "policy": "packing", "interface": "eth0", "steps": steps });
        let planned = plan(vec![step(3, Some("no permission"))]);
        assert!(differences(&planned, &plan(vec![step(3, None)])).is_empty());
        assert_eq!(
            differences(&planned, &plan(vec![step(2, None)])),
            ["no longer rps-cpus (queue 0) from 3 to 1", "now rps-cpus (queue 0) from 2 to 1"]
        );
        let many = plan((4..9).map(|at| step(at, None)).collect());
        assert_eq!(differences(&planned, &many).last().unwrap(), "3 more");
    }
}
