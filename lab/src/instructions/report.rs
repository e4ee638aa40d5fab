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

    /// The report as text: a line for each policy below one for its device, driver and load. Figures are those of the first
    /// run; `again` is how much the instructions of the others differed.
    pub fn text(&self) -> String {
        let header = [
            "", "instr.", "again", "ratio", "user", "kernel", "softirq", "irq", "L1i", "L1d", "L2", "LLC",
            "NIC irqs", "all irqs", "pkts/irq", "switches",
        ];
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(header);
        let mut title = String::new();
        for row in self.sorted() {
            let load = format!("{}, {}, {}", row.device, row.driver, load_text(&row.load));
            if load != title {
                table.add_row([&load]);
                title = load;
            }
            let all = instructions(row);
            let of_first = self.first_policy(row).map(|first| all / instructions(first));
            let again = self.again(row).map(|other| instructions(other) / all - 1.0);
            let again = again.max_by(|one, other| one.abs().total_cmp(&other.abs()));
            let mut cells = vec![
                format!("  {}", row.policy),
                format!("{all:.0}"),
                again.map_or(String::new(), |share| format!("{:+.1} %", share * 100.0)),
                of_first.map_or(String::new(), |ratio| format!("{ratio:.2}")),
            ];
            cells.extend([row.user, row.kernel, row.softirq, row.irq].map(|it| format!("{it:.0}")));
            cells.extend(row.misses.map(|it| format!("{it:.1}")));
            cells.extend([row.nic_interrupts, row.interrupts].map(|it| format!("{it:.0}")));
            cells.extend([
                format!("{:.1}", row.packets_per_interrupt),
                format!("{:.0}", row.context_switches),
            ]);
            table.add_row(cells);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!(
            "Linux {} in an emulated machine. Instructions and misses of modelled caches are those of the server's cores a \
             request, interrupts and context switches those a thousand requests; the ratio is to the first policy.\n{}\n",
            self.kernel,
            table.trim_fmt()
        )
    }

    /// The first run, the policies of one device, driver and load below each other.
    fn sorted(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.rows.iter().filter(|row| row.run == 1).collect();
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

    /// The same in other runs.
    fn again(&self, row: &Row) -> impl Iterator<Item = &Row> {
        let case = |it: &Row| [&it.device, &it.driver, &it.load, &it.policy].map(String::clone);
        let (run, asked) = (row.run, case(row));
        self.rows.iter().filter(move |it| it.run != run && case(it) == asked)
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
        let counting = Counting { devices: vec!["igb".to_owned()], runs: 2, ..Counting::default() };
        let text = InstructionReport::new("7.3".to_owned(), counting, rows).text();
        let lines: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["igb,", "epoll,", "closed", "loop"]);
        let figures = |line: &[&str]| line[1..].join(" ");
        assert_eq!(figures(&lines[1]), "1000 +2.0 % 1.00 100 900 300 50 4.0 3.0 2.0 1.0 500 600 2.5 70");
        assert_eq!(figures(&lines[2]), "1100 1.10 200 900 300 50 4.0 3.0 2.0 1.0 500 600 2.5 70");
        assert_eq!(lines.len(), 3);
    }
}
