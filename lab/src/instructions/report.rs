//! The table, and JSON.

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::{Counting, Row};

/// What a request costs, by device, driver, policy and load.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct InstructionReport {
    /// The version of the guest's kernel.
    pub kernel: String,
    /// What was asked for.
    pub counting: Counting,
    /// The counts.
    pub rows: Vec<Row>,
}

impl InstructionReport {
    /// A report on counted rows.
    pub fn new(kernel: String, counting: Counting, rows: Vec<Row>) -> Self {
        Self { kernel, counting, rows }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let header = [
            "device",
            "driver",
            "load",
            "policy",
            "instructions",
            "ratio",
            "user",
            "kernel",
            "NIC irqs",
            "all irqs",
            "packets/irq",
            "switches",
        ];
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(header);
        for row in self.sorted() {
            let of_first = self.first_policy(row).map(|first| instructions(row) / instructions(first));
            table.add_row([
                row.device.clone(),
                row.driver.clone(),
                load_text(&row.load),
                row.policy.clone(),
                format!("{:.0}", instructions(row)),
                of_first.map_or(String::new(), |ratio| format!("{ratio:.2}")),
                format!("{:.0}", row.user),
                format!("{:.0}", row.kernel),
                format!("{:.0}", row.nic_interrupts),
                format!("{:.0}", row.interrupts),
                format!("{:.1}", row.packets_per_interrupt),
                format!("{:.0}", row.context_switches),
            ]);
        }
        for column in table.column_iter_mut().skip(4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!(
            "Linux {} in an emulated machine. Instructions are those of the server's cores a request, interrupts and context \
             switches those a thousand requests; the ratio is to the first policy.\n{}\n",
            self.kernel,
            table.trim_fmt()
        )
    }

    /// The policies of one device, driver and load below each other.
    fn sorted(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        let place = |names: &[String], name: &str| names.iter().position(|it| it == name);
        rows.sort_by_key(|row| {
            (
                place(&self.counting.devices, &row.device),
                place(&self.counting.drivers, &row.driver),
                place(&self.counting.loads, &row.load),
            )
        });
        rows
    }

    fn first_policy(&self, row: &Row) -> Option<&Row> {
        self.rows.iter().find(|it| {
            (&it.device, &it.driver, &it.load) == (&row.device, &row.driver, &row.load)
                && it.policy == self.counting.policies[0]
        })
    }
}

fn instructions(row: &Row) -> f64 {
    row.user + row.kernel
}

fn load_text(load: &str) -> String {
    match load.split_once(':') {
        Some(("0", _)) => "closed loop".to_owned(),
        Some((rate, _)) => format!("{rate}/s"),
        None => load.to_owned(),
    }
}
