//! The report on what avoiding crossings can save.

use loadgen::medians::Interval;
use policies::host::Machine;
use serde::Serialize;

use super::document::{Document, Plot, Section, Table};
use super::figures::ends;
use super::svg::{Axis, Point, Series, lines};
use super::table::interval_text;
use crate::engine::CoreAssignment;
use crate::experiments::crossing_model::{
    BATCH, CrossingModel, ModelConfig, ModelMeasurements, Prediction, REQUEST,
};

#[derive(Debug, Serialize)]
pub struct ModelReport {
    pub machine: Machine,
    pub cores: CoreAssignment,
    pub config: ModelConfig,
    /// What avoiding crossings can save, in a sentence or two.
    pub verdict: String,
    pub model: CrossingModel,
    #[serde(flatten)]
    pub measured: ModelMeasurements,
}

impl ModelReport {
    /// Computes the model, and says what follows from it.
    pub fn new(cores: CoreAssignment, config: ModelConfig, measured: ModelMeasurements) -> Self {
        let model = CrossingModel::new(&measured);
        let verdict = verdict(&model);
        Self { machine: Machine::read(), cores, config, verdict, model, measured }
    }

    pub fn document(&self) -> Document {
        let mut conditions = vec![format!(
            "{}; server on core {}, client on core {}",
            self.machine, self.cores.server, self.cores.client
        )];
        let active = self.measured.vulnerabilities.iter().filter_map(|(name, state)| {
            Some(format!("mitigation of {name}: {}", state.strip_prefix("Mitigation: ")?))
        });
        conditions.extend(active);
        Document {
            title: "What crossings into the kernel cost".to_owned(),
            findings: vec![self.verdict.clone()],
            conditions,
            sections: vec![self.crossings(), self.path(), self.servers(), self.predictions()],
        }
    }

    fn crossings(&self) -> Section {
        let crossing = &self.measured.crossing;
        let nanos = |interval: Option<&Interval>| {
            interval.map_or_else(|| "not available".to_owned(), |it| interval_text(it, 0))
        };
        let rows = [
            ("δ: an empty system call (getppid), ns".to_owned(), nanos(Some(&crossing.system_call))),
            ("a NOP in a ring with its own enter, ns".to_owned(), nanos(crossing.nop.as_ref())),
            (format!("a NOP among {BATCH} of one enter, ns"), nanos(crossing.nop_in_batch.as_ref())),
        ];
        let rows = rows.map(|(name, value)| vec![name, value]).into();
        Section {
            tables: vec![Table::new("", &["cost", "median"], rows)],
            ..Section::new("crossings", "Crossings")
        }
    }

    fn path(&self) -> Section {
        let path = &self.model.path;
        let rows = path.rows.iter().map(|row| {
            vec![
                row.bytes.to_string(),
                interval_text(&row.server_us, 2),
                format!("{:.2}", row.server_calls),
                percent_text(row.potential),
            ]
        });
        let header = ["reply B", "server's end µs", "server's calls", "PD %"];
        let mut section = Section::new("path", "The kernel's path, o(b)");
        section.caption = format!(
            "CPU time per request of an exchange on loopback, requests of {REQUEST} B; PD: calls·δ over the server's end"
        );
        section.tables = vec![Table::new("", &header, rows.collect())];
        section.notes.push(format!(
            "server's end without crossings: {} µs + {} ns per byte",
            interval_text(&path.server.intercept, 2),
            interval_text(&path.server.slope_ns, 3)
        ));
        section.add_plot(self.plot());
        section
    }

    /// A line for the exchange, and a point for each server.
    fn plot(&self) -> Result<Plot, String> {
        let point = |bytes: usize, share: &Interval| {
            let (low, high) = ends(share);
            Point { x: bytes as f64, y: share.median * 100.0, low: low * 100.0, high: high * 100.0 }
        };
        let rows = self.model.path.rows.iter().filter(|row| row.potential.count > 0);
        let exchange = rows.map(|row| point(row.bytes, &row.potential)).collect();
        let mut series = vec![Series { name: "the exchange".to_owned(), points: exchange }];
        series.extend(self.model.servers.iter().filter(|it| it.potential.count > 0).map(|server| Series {
            name: server.name.clone(),
            points: vec![point(server.bytes, &server.potential)],
        }));
        let x = Axis { title: "bytes of a reply", logarithmic: true };
        let y = Axis { title: "CPU time in crossings, %", logarithmic: false };
        Ok(Plot::new("potential", "The share of crossings by the size of replies", lines(x, y, &series)?))
    }

    fn servers(&self) -> Section {
        let rows = self.model.servers.iter().map(|server| {
            vec![
                server.name.clone(),
                server.bytes.to_string(),
                interval_text(&server.cpu_us, 2),
                format!("{:.2}", server.waits),
                format!("{:.0}", server.transfers),
                interval_text(&server.crossings_us, 2),
                interval_text(&server.rest_us, 2),
                percent_text(server.potential),
            ]
        });
        let header = ["server", "b", "CPU µs/req", "waits", "recv+send", "n·δ µs", "a + o(b) µs", "PD %"];
        let mut section = Section::new("servers", "A request's CPU time in a closed loop");
        section.caption =
            "n: waits (counted) and recv+send; a + o(b): without n·δ; PD: n·δ over all".to_owned();
        section.tables = vec![Table::new("", &header, rows.collect())];
        section
    }

    fn predictions(&self) -> Section {
        let outcome = |it: &Prediction| match it.agrees {
            Some(true) => "yes",
            Some(false) => "no: the model does not predict this",
            None => "too few rounds to tell",
        };
        let row = |it: &Prediction| {
            let [before, after] = it.waits;
            vec![
                it.change.clone(),
                percent_text(it.predicted_gain),
                percent_text(it.measured_gain),
                outcome(it).to_owned(),
                format!("{before:.2}, {after:.2}"),
            ]
        };
        let header =
            ["change", "predicted gain %", "measured gain %", "intervals overlap", "waits/req before, after"];
        let mut section = Section::new("predictions", "Predictions");
        section.caption = "beside what the model was not made from".to_owned();
        section.tables = vec![Table::new("", &header, self.model.predictions.iter().map(row).collect())];
        section.notes.clone_from(&self.measured.results.notes);
        if self.measured.crossing.nop.is_none() {
            section.notes.push(
                "io_uring is not available: no NOPs were measured, and uring is not predicted".to_owned(),
            );
        }
        section
    }
}

fn percent_text(mut share: Interval) -> String {
    for value in [&mut share.median, &mut share.low, &mut share.high] {
        *value *= 100.0;
    }
    interval_text(&share, 1)
}

fn verdict(model: &CrossingModel) -> String {
    let Some(most) = model.most() else {
        return "No server was measured: the machine disturbed every round.".to_owned();
    };
    let mut text = format!(
        "Of the servers' CPU time, crossings themselves are the largest share in {}: {} %. Avoiding them, as a user-level \
         network stack does, saves this share, if nothing else changes.",
        most.name,
        percent_text(most.potential)
    );
    if model.predictions.iter().any(|it| it.agrees == Some(false)) {
        text.push_str(" A change that avoids crossings may change more than them: see the predictions that were missed.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::crossing_model::measurements;

    fn report(rounds: usize, echo_uring: f64) -> ModelReport {
        let cores = CoreAssignment::choose().unwrap();
        ModelReport::new(cores, ModelConfig::new(true, None), measurements(rounds, echo_uring))
    }

    #[test]
    fn the_text_has_all_costs_the_tables_and_the_verdict() {
        // 0.2 µs for each of 2.5 crossings, of 5 µs.
        let report = report(6, 4.66);
        let text = report.document().text();
        for part in [
            "δ: an empty system call (getppid), ns   200 [200, 200]",
            "mitigation of spectre_v2: Retpolines",
            "server's end without crossings: 3.00 [3.00, 3.00] µs + 0.100 [0.100, 0.100] ns per byte",
            "1048576",
            "echo, epoll: 10.0 [10.0, 10.0] %",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert!(!text.contains("missed"), "{text}");
        let plot = &report.document().sections[1].plots[0];
        assert!(plot.svg.contains("memcached, uring") && plot.svg.contains("<polyline"), "{}", plot.svg);
    }

    #[test]
    fn a_gain_that_is_not_predicted_and_too_few_rounds_are_said() {
        let text = report(6, 3.5).document().text();
        assert!(text.contains("no: the model does not predict this") && text.contains("missed"), "{text}");
        assert!(text.contains("30.0 [29.8, 30.2]"), "{text}");
        let text = report(5, 3.5).document().text();
        assert!(
            text.contains("too few rounds to tell") && text.contains("(no interval, 5 rounds)"),
            "{text}"
        );
    }
}
