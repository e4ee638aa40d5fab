//! The report on simulated rules.

use super::table::plain_table;
use crate::simulator::{Candidate, Crossing, SequenceClass, SimulatedRow, Simulation};

const LEGEND: &str = "\
Rules. plain: each packet interrupts (vanilla). interrupt-first: waits poll, and an empty one unmasks the interrupt. grace: after an
empty wait a timer polls each so many µs, 99 times unless another defer is given. halt polling (KVM) and spin by cost: interrupt-first
with an adapted spin. net_dim (Linux) and two outcomes (PAS): an adapted grace time. law: what the runtime does.
CPU is µs per request; the optimum knows all arrivals in advance, delays none longer than the rule may, and polls for free.
Ratios are geometric means over the sequences of the table, with the worst one in brackets where there are several.
Excess: the worst p99 in 20 ms less plain's there. A rule that has not settled before the load's next step shows the whole time.
";

/// The report as text: one table for each class of sequences.
pub fn simulation_text(simulation: &Simulation) -> String {
    let costs = &simulation.costs;
    let micros = |nanos: u64| nanos as f64 / 1e3;
    let mut text = format!(
        "One core, one queue. Interrupt {} µs, block and wake-up {} µs (latency {} µs), pass {} µs, tick {} µs, receiving {} µs, service {} µs\n\n",
        micros(costs.irq),
        micros(costs.block),
        micros(costs.wake_latency),
        micros(costs.pass),
        micros(costs.tick),
        micros(costs.receive),
        micros(costs.service),
    );
    let mut classes: Vec<SequenceClass> = simulation.rows.iter().map(|row| row.class).collect();
    classes.dedup();
    for class in classes {
        let rows: Vec<&SimulatedRow> = simulation.rows.iter().filter(|row| row.class == class).collect();
        text.push_str(&class_table(class, &rows));
    }
    if !simulation.crossings.is_empty() {
        text.push_str(&crossings_table(&simulation.crossings));
    }
    text + LEGEND
}

fn class_table(class: SequenceClass, rows: &[&SimulatedRow]) -> String {
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut sequences: Vec<&str> = Vec::new();
    for row in rows {
        if !candidates.contains(&row.candidate) {
            candidates.push(row.candidate);
        }
        if !sequences.contains(&row.sequence.as_str()) {
            sequences.push(&row.sequence);
        }
    }
    let mut header = vec![
        "rule",
        "CPU µs/req",
        "CPU / plain",
        "CPU / optimum",
        "p50 / plain",
        "p99 / plain",
        "p99 excess µs",
        "changes/s",
    ];
    let has_steps = rows.iter().any(|row| row.figures.settled_ms.is_some());
    if has_steps {
        header.push("settled ms");
    }
    let lines = candidates.iter().map(|candidate| {
        let own: Vec<&SimulatedRow> =
            rows.iter().copied().filter(|row| row.candidate == *candidate).collect();
        let ratio = |of: fn(&SimulatedRow) -> f64| ratio_text(own.iter().map(|row| of(row)));
        let mean =
            |of: fn(&SimulatedRow) -> f64| own.iter().map(|row| of(row)).sum::<f64>() / own.len() as f64;
        let most = |of: fn(&SimulatedRow) -> f64| own.iter().map(|row| of(row)).fold(0.0, f64::max);
        let mut line = vec![
            candidate.to_string(),
            format!("{:.2}", mean(|row| row.figures.cpu_us)),
            ratio(|row| row.cpu_to_plain),
            ratio(|row| row.cpu_to_optimum),
            ratio(|row| row.p50_to_plain),
            ratio(|row| row.p99_to_plain),
            format!("{:.0}", most(|row| row.figures.worst_p99_excess_us)),
            format!("{:.1}", mean(|row| row.figures.changes_per_second)),
        ];
        if has_steps {
            line.push(format!("{:.0}", most(|row| row.figures.settled_ms.unwrap_or(0.0))));
        }
        line
    });
    let names = match sequences.len() {
        1 if class != SequenceClass::Recorded => String::new(),
        _ => format!("Sequences: {}\n", sequences.join("; ")),
    };
    format!("{}\n{names}{}\n\n", class.title(), plain_table(header, lines, &[0]))
}

/// The geometric mean, and the largest.
fn ratio_text(ratios: impl Iterator<Item = f64> + Clone) -> String {
    let count = ratios.clone().count().max(1);
    let mean = (ratios.clone().map(f64::ln).sum::<f64>() / count as f64).exp();
    if count == 1 {
        return format!("{mean:.2}");
    }
    format!("{mean:.2} ({:.2})", ratios.fold(0.0, f64::max))
}

fn crossings_table(crossings: &[Crossing]) -> String {
    let header = [
        "load %",
        "core busy",
        "law sees",
        "within 20 µs",
        "50 µs",
        "100 µs",
        "interrupt-first: CPU",
        "p50",
        "grace 20 µs: CPU",
        "p50",
        "50 µs: CPU",
        "p50",
        "100 µs: CPU",
        "p50",
    ];
    let lines = crossings.iter().map(|crossing| {
        let mut line = vec![
            crossing.load.to_string(),
            format!("{:.2}", crossing.core_busy),
            format!("{:.2}", crossing.busy_share),
        ];
        line.extend(crossing.within_grace.iter().map(|share| format!("{share:.2}")));
        for row in &crossing.modes {
            line.extend([row.cpu_to_plain, row.p50_to_plain].map(|ratio| format!("{ratio:.2}")));
        }
        line
    });
    format!(
        "From which load on a mode pays: random arrivals, CPU time and p50 over plain's. In plain mode: the busy share of the core, the one that the law sees, and which part of the gaps is within a grace time\n{}\n\n",
        plain_table(header, lines, &[])
    )
}
