//! The verdict's row under other conditions: another receiver, or idle cores in the other state.

use loadgen::medians::Interval;
use serde::Serialize;

use super::document::{Section, Table};
use super::table::{interval_text, is_undecided};
use crate::engine::{Figure, Row, Status};
use crate::testbed::Receiver;

/// What the verdict names at a rate.
const FIGURES: [(Figure, &str); 3] =
    [(Figure::CpuPerRequest, "CPU"), (Figure::P50, "p50"), (Figure::P99, "p99")];

#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Variation {
    pub receiver: Receiver,
    /// Whether idle cores polled instead of sleeping.
    pub cores_awake: bool,
    /// CPU time, p50 and p99 over the reference's in the same round. `None` where there is no
    /// ratio.
    pub ratios: [Option<Interval>; 3],
}

impl Variation {
    /// Of the row of a load in one comparison.
    pub(super) fn of(row: &Row, receiver: Receiver, cores_awake: bool) -> Self {
        let ratio = |(figure, _): (Figure, _)| {
            row.figures.get(&figure)?.ratio.filter(|_| row.status == Status::Comparable)
        };
        Self { receiver, cores_awake, ratios: FIGURES.map(ratio) }
    }

    fn cells(&self) -> Vec<String> {
        let idle = if self.cores_awake { "awake" } else { "asleep" };
        let text = |ratio: &Option<Interval>| match ratio {
            None => "-".to_owned(),
            Some(ratio) if is_undecided(ratio) => "can't tell".to_owned(),
            Some(ratio) => interval_text(ratio, 2),
        };
        [self.receiver.to_string(), idle.to_owned()].into_iter().chain(self.ratios.iter().map(text)).collect()
    }
}

/// On the screen, and on the page.
pub(super) fn table(variations: &[Variation], title: String) -> Table {
    let header = ["receiver", "idle cores", FIGURES[0].1, FIGURES[1].1, FIGURES[2].1];
    Table { names: 2, ..Table::new(title, &header, variations.iter().map(Variation::cells).collect()) }
}

pub(super) fn section(variations: &[Variation], name: &str) -> Section {
    Section {
        glance: models_error(variations).unwrap_or_default(),
        tables: vec![table(variations, format!("Ratios to the reference: {name}"))],
        ..Section::new("conditions", "Under other conditions")
    }
}

/// How far a choice that is none of the machine's moves the ratios: the spread over what stands in
/// for interrupts. `None` with one receiver.
pub(super) fn models_error(variations: &[Variation]) -> Option<String> {
    let awake = variations.first()?.cores_awake;
    let alike: Vec<&Variation> = variations.iter().filter(|it| it.cores_awake == awake).collect();
    let spread = |index: usize| {
        let medians: Option<Vec<f64>> = alike
            .iter()
            .map(|it| it.ratios[index].filter(|ratio| !is_undecided(ratio)).map(|ratio| ratio.median))
            .collect();
        let medians = medians?;
        let (low, high) =
            medians.iter().fold((f64::MAX, f64::MIN), |(low, high), it| (low.min(*it), high.max(*it)));
        Some(format!("{:.2}", high - low))
    };
    let text = FIGURES.iter().enumerate().map(|(index, (_, name))| {
        format!("{name} {}", spread(index).unwrap_or_else(|| "can't tell".to_owned()))
    });
    let receivers: Vec<String> = alike.iter().map(|it| it.receiver.to_string()).collect();
    let text: Vec<String> = text.collect();
    (alike.len() > 1).then(|| {
        format!(
            "Model's error (the spread of these ratios over the receivers {}): {}.",
            receivers.join(", "),
            text.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use loadgen::medians::median_interval;

    use super::*;

    fn variation(receiver: Receiver, cores_awake: bool, cpu: f64, p99: Option<f64>) -> Variation {
        let ratio = |median: f64| median_interval(&[median; 6]);
        Variation { receiver, cores_awake, ratios: [Some(ratio(cpu)), Some(ratio(1.0)), p99.map(ratio)] }
    }

    #[test]
    fn the_models_error_is_the_spread_over_receivers_and_not_over_idle_states() {
        let mut variations = vec![
            variation(Receiver::Fifo, true, 0.5, Some(1.0)),
            variation(Receiver::Thread, true, 0.65, None),
            variation(Receiver::Rps, true, 0.6, Some(1.1)),
            variation(Receiver::Fifo, false, 0.9, Some(1.2)),
        ];
        let sentence = models_error(&variations).unwrap();
        assert!(
            sentence.ends_with("over the receivers fifo, thread, rps): CPU 0.15, p50 0.00, p99 can't tell."),
            "{sentence}"
        );
        let rows = table(&variations, String::new()).rows;
        assert_eq!(rows[1], ["thread", "awake", "0.65 [0.65, 0.65]", "1.00 [1.00, 1.00]", "-"]);
        assert_eq!(rows[3][..3], ["fifo", "asleep", "0.90 [0.90, 0.90]"]);
        variations.drain(1..3);
        assert_eq!(models_error(&variations), None);
    }
}
