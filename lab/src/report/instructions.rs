//! The report on what a request costs on an emulated machine.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::document::{Document, Section, Table};
use super::files::read;
use crate::Error;
use crate::instructions::{Counting, Row};

/// What is read of a report's `results.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Counted {
    pub kernel: String,
    pub rows: Vec<Row>,
}

impl Counted {
    /// Of the folder that `lab instructions` has written, or of its file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        read(path)
    }
}

/// What a request costs, by device, driver, policy and load.
#[derive(Debug, Serialize)]
pub struct InstructionReport {
    /// The version of the guest's kernel.
    pub kernel: String,
    pub counting: Counting,
    pub rows: Vec<Row>,
}

impl InstructionReport {
    /// A table for each device, driver and load. Figures are those of the first run; `again` is how
    /// much the instructions of the others differed.
    pub fn document(&self) -> Document {
        let Counting { devices, drivers, loads, .. } = &self.counting;
        let mut section = Section::new("requests", "A request");
        for device in devices {
            for (driver, load) in
                drivers.iter().flat_map(|driver| loads.iter().map(move |load| (driver, load)))
            {
                let is_here = |row: &&Row| (&row.device, &row.driver, &row.load) == (device, driver, load);
                let rows: Vec<&Row> = self.rows.iter().filter(is_here).collect();
                let first: Vec<&Row> = rows.iter().copied().filter(|row| row.run == 1).collect();
                let cells = first.iter().map(|row| cells(row, first[0], &rows)).collect();
                let title = format!("{device}, {driver}, {}", load_text(load));
                section.tables.push(Table::new(title, &HEADER, cells));
            }
        }
        Document {
            title: "Instructions of a request".to_owned(),
            conditions: vec![format!(
                "Linux {} in an emulated machine. Instructions and misses of modelled caches are those of the server's cores a \
                 request, interrupts and context switches those a thousand requests; the ratio is to the first policy.",
                self.kernel
            )],
            sections: vec![section],
            ..Document::default()
        }
    }
}

const HEADER: [&str; 16] = [
    "", "instr.", "again", "ratio", "user", "kernel", "softirq", "irq", "L1i", "L1d", "L2", "LLC",
    "NIC irqs", "all irqs", "pkts/irq", "switches",
];

/// Of a row beside the first policy's, and all of the same load.
fn cells(row: &Row, first: &Row, rows: &[&Row]) -> Vec<String> {
    let all = row.instructions();
    let others = rows.iter().filter(|it| it.run != row.run && it.policy == row.policy);
    let again = others.map(|other| other.instructions() / all - 1.0);
    let again = again.max_by(|one, other| one.abs().total_cmp(&other.abs()));
    let mut cells = vec![
        row.policy.clone(),
        format!("{all:.0}"),
        again.map_or(String::new(), |share| format!("{:+.1} %", share * 100.0)),
        format!("{:.2}", all / first.instructions()),
    ];
    cells.extend([row.user, row.kernel, row.softirq, row.irq].map(|it| format!("{it:.0}")));
    cells.extend(row.misses.map(|it| format!("{it:.1}")));
    cells.extend([row.nic_interrupts, row.interrupts].map(|it| format!("{it:.0}")));
    cells.extend([format!("{:.1}", row.packets_per_interrupt), format!("{:.0}", row.context_switches)]);
    cells
}

fn load_text(load: &str) -> String {
    match load.split_once(':') {
        Some(("0", _)) => "closed loop".to_owned(),
        Some((rate, _)) => format!("{rate}/s"),
        None => load.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(run: u8, policy: &str, user: f64) -> Row {
        Row {
            run,
            device: "igb".to_owned(),
            driver: "epoll".to_owned(),
            policy: policy.to_owned(),
            load: "0:1".to_owned(),
            requests: 10,
            user,
            kernel: 900.0,
            softirq: 300.0,
            irq: 50.0,
            misses: [4.0, 3.0, 2.0, 1.0],
            nic_interrupts: 500.0,
            interrupts: 600.0,
            packets_per_interrupt: 2.5,
            context_switches: 70.0,
        }
    }

    #[test]
    fn a_second_run_is_printed_as_a_difference() {
        let rows = vec![row(1, "vanilla", 100.0), row(1, "packing", 200.0), row(2, "vanilla", 120.0)];
        let counting = Counting {
            devices: vec!["igb".to_owned()],
            drivers: vec!["epoll".to_owned()],
            loads: vec!["0:1".to_owned()],
            ..Counting::default()
        };
        let report = InstructionReport { kernel: "7.3".to_owned(), counting, rows };
        let table = &report.document().sections[0].tables[0];
        assert_eq!(table.title, "igb, epoll, closed loop");
        let figures = |row: usize| table.rows[row][1..].join(" ");
        assert_eq!(figures(0), "1000 +2.0 % 1.00 100 900 300 50 4.0 3.0 2.0 1.0 500 600 2.5 70");
        assert_eq!(figures(1), "1100  1.10 200 900 300 50 4.0 3.0 2.0 1.0 500 600 2.5 70");
        assert_eq!(table.rows.len(), 2);
    }
}
