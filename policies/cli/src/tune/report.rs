//! What a tuning has tried and found, as a table and commands, or as JSON.

use comfy_table::Table;
use policies::Plan;
use serde_json::{Map, Value, json};

use crate::output::{Format, print_line, print_plan, table};

pub struct Trials {
    header: &'static [&'static str],
    rows: Vec<Vec<String>>,
}

impl Trials {
    pub fn new(header: &'static [&'static str]) -> Self {
        Self { header, rows: Vec::new() }
    }

    pub fn add<const N: usize>(&mut self, row: [String; N]) {
        self.rows.push(row.into());
    }

    /// Prints them on their own, when nothing was found.
    pub fn print(&self, format: Format) {
        format.print(&json!({ "trials": self.to_json() }), || print_line!("{}", self.to_table()));
    }

    /// Prints them with what was found: the plan, and the command that applies it.
    pub fn print_with_result(&self, format: Format, found: &str, plan: &Plan, command: &str) {
        let json = json!({
            "trials": self.to_json(),
            "found": found,
            "plan": plan,
            "command": command,
        });
        format.print(&json, || {
            print_line!("{}\n{found}", self.to_table());
            print_plan(plan);
            print_line!("to apply: {command}");
        });
    }

    fn to_table(&self) -> Table {
        let mut table = table(self.header);
        table.add_rows(&self.rows);
        table
    }

    fn to_json(&self) -> Vec<Value> {
        let object = |row: &Vec<String>| {
            let fields = self.header.iter().zip(row).map(|(name, value)| ((*name).to_owned(), json!(value)));
            Value::Object(fields.collect::<Map<_, _>>())
        };
        self.rows.iter().map(object).collect()
    }
}
