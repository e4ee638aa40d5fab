//! What a latency budget buys on this machine, from the last result of `lab`.

use policies::explain::measured::{Measured, MeasuredRatio, UnusableResult};
use policies::host::Machine;
use serde_json::{Value, json};

use crate::output::table;

const COMMAND: &str = "lab --latency-budget 0,20,50";

type LastResult = Result<Option<Measured>, UnusableResult>;

/// The result for programs: the measurement, or `null` and why there is none.
pub fn to_json(last: &LastResult) -> Value {
    match last {
        Ok(measured) => json!(measured),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

pub fn to_text(last: &LastResult, present: &Machine) -> String {
    let measured = match last {
        Ok(Some(measured)) => measured,
        Ok(None) => {
            return format!(
                "What a latency budget buys here was not measured yet; to measure it: {COMMAND} (as root)"
            );
        }
        Err(error) => return format!("What a latency budget buys here: {error}: {COMMAND} (as root)"),
    };
    let mut rows = table(&[
        "rate (of capacity)",
        "driver",
        "budget",
        "CPU per request / vanilla's",
        "median latency / vanilla's",
    ]);
    for rate in &measured.rates {
        for budget in &rate.budgets {
            rows.add_row([
                match rate.share {
                    Some(share) => format!("{:.0}/s ({:.0} %)", rate.rate, share * 100.0),
                    None => format!("{:.0}/s", rate.rate),
                },
                budget.driver.clone(),
                format!("{} µs", budget.latency_budget),
                ratio(&budget.cpu_ratio, budget.cpu_us),
                ratio(&budget.p50_ratio, budget.p50_us),
            ]);
        }
    }
    let mut text = format!(
        "Latency budgets under kernel polling, over vanilla, measured {} by lab on a veth pair ({}); medians [95 % \
         intervals]:\n{rows}",
        measured.age_text(),
        measured.machine
    );
    if measured.machine != *present {
        text.push_str(&format!("\nnote: this machine is another one, or has changed: {present}"));
    }
    if !measured.compares_budgets() {
        text.push_str(&format!("\nto compare budgets: {COMMAND} (as root)"));
    }
    text
}

/// Without an interval the median may be that of a single disturbed round.
fn ratio(ratio: &MeasuredRatio, micros: f64) -> String {
    match ratio.interval {
        Some((low, high)) => format!("{:.2} [{low:.2}, {high:.2}] ({micros:.1} µs)", ratio.median),
        None => "too few rounds".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use policies::explain::measured::{MeasuredBudget, MeasuredRate};

    use super::*;

    fn measured(budgets: &[&str]) -> Measured {
        let of = |median| MeasuredRatio { median, interval: Some((median - 0.05, median + 0.05)) };
        let budget = |text: &&str| MeasuredBudget {
            driver: "uring".to_owned(),
            latency_budget: text.parse().unwrap(),
            cpu_us: 2.04,
            cpu_ratio: of(0.7),
            p50_us: 21.0,
            p50_ratio: of(1.5),
        };
        let budgets = budgets.iter().map(budget).collect();
        Measured::now(vec![MeasuredRate { rate: 125_000.0, share: Some(0.5), budgets }])
    }

    #[test]
    fn a_result_is_a_table_with_machine_and_age() {
        let text = to_text(&Ok(Some(measured(&["0", "20"]))), &Machine::read());
        let first = text.lines().next().unwrap();
        assert!(
            first.contains("less than a minute ago") && first.contains(&Machine::read().kernel),
            "{text}"
        );
        let row =
            "125000/s (50 %)     uring   20 µs   0.70 [0.65, 0.75] (2.0 µs)   1.50 [1.45, 1.55] (21.0 µs)";
        assert!(text.lines().any(|line| line.trim() == row), "{text}");
        assert!(!text.contains("note:") && !text.contains(COMMAND), "{text}");
    }

    #[test]
    fn another_machine_and_a_single_budget_are_pointed_out() {
        let mut other = measured(&["0"]);
        other.machine.kernel = "5.4".to_owned();
        other.rates[0].share = None;
        other.rates[0].budgets[0].cpu_ratio.interval = None;
        let text = to_text(&Ok(Some(other)), &Machine::read());
        assert!(text.contains("Linux 5.4") && text.contains("note: this machine is another one"), "{text}");
        let row =
            "125000/s            uring   0 µs    too few rounds               1.50 [1.45, 1.55] (21.0 µs)";
        assert!(text.lines().any(|line| line.trim() == row), "{text}");
        assert!(text.ends_with("to compare budgets: lab --latency-budget 0,20,50 (as root)"), "{text}");
    }

    #[test]
    fn without_a_result_the_text_says_how_to_get_one() {
        let text = to_text(&Ok(None), &Machine::read());
        assert!(text.contains("not measured yet") && text.contains(COMMAND), "{text}");
        assert_eq!(to_json(&Ok(None)), Value::Null);
        let error = || UnusableResult::Foreign { path: "/x".into(), reason: "EOF".to_owned() };
        let text = to_text(&Err(error()), &Machine::read());
        assert!(
            text.contains("/x is not a result of this version of lab (EOF)") && text.contains(COMMAND),
            "{text}"
        );
        assert!(to_json(&Err(error()))["error"].as_str().unwrap().contains("/x"));
    }
}
