//! What goes to standard output: tables, text, JSON. The command's errors.

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use comfy_table::{Table, presets};
use policies::explain::{Finding, Severity};
use policies::netlink::netdev::THREADED_BUSY_POLL;
use policies::{Cpus, Interface, Plan, Recovery, RestoreReport, missing_capabilities};

/// Whether a line could not be written, for another reason than a closed pipe.
static FAILED: AtomicBool = AtomicBool::new(false);

/// `println!` that doesn't panic: see [`write_line`].
macro_rules! print_line {
    ($($argument:tt)*) => { $crate::output::write_line(format_args!($($argument)*)) };
}
pub(crate) use print_line;

/// Writes a line to standard output. A reader that closed the pipe, as `head` does, is not an
/// error: the command still does its work. Any other failure is printed once, and the command fails
/// at its end.
pub fn write_line(line: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(io::stdout(), "{line}")
        && error.kind() != io::ErrorKind::BrokenPipe
        && !FAILED.swap(true, Ordering::Relaxed)
    {
        eprintln!("policies: cannot write the output: {error}");
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
}

impl Format {
    pub fn print(self, json: &serde_json::Value, print_table: impl FnOnce()) {
        match self {
            Format::Json => print_line!("{:#}", with_schema(json.clone())),
            Format::Table => print_table(),
        }
    }
}

/// The exit code of `explain` and `plan` if something prevents the policy.
pub const PREVENTED: u8 = 3;

/// The version of what JSON contains. It is raised when a field is removed or gets another meaning.
const SCHEMA: u32 = 1;

pub fn with_schema(mut json: serde_json::Value) -> serde_json::Value {
    if let Some(object) = json.as_object_mut() {
        object.insert("schema".to_owned(), SCHEMA.into());
    }
    json
}

pub fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

pub fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

pub fn list_table(interfaces: &[Interface]) -> Table {
    let mut table = table(&["interface", "state", "driver", "rx queues", "NAPIs", "interrupts"]);
    for interface in interfaces {
        let irqs = interface.queues.iter().filter(|queue| queue.irq.is_some()).count();
        table.add_row([
            interface.name.clone(),
            if interface.up { "up" } else { "down" }.to_owned(),
            or_dash(interface.driver.as_deref()),
            interface.queues.len().to_string(),
            interface.napi_ids().len().to_string(),
            irqs.to_string(),
        ]);
    }
    table
}

pub fn print_interface(interface: &Interface) {
    print_line!(
        "{} ({}), index {}, {}",
        interface.name,
        interface.driver.as_deref().unwrap_or("unknown driver"),
        interface.index,
        if interface.up { "up" } else { "down" }
    );
    if let Some(node) = interface.numa_node {
        print_line!("NUMA node {node}");
    }
    if let Some(channels) = interface.channels {
        let kind = if channels.combined { "combined" } else { "rx" };
        print_line!("{} of {} {kind} channels", channels.count, channels.max);
    }
    if let Some(ring) = interface.rx_ring {
        print_line!("receive rings of {} descriptors, at most {}", ring.size, ring.max);
    }
    if !interface.coalescing.is_empty() {
        let values: Vec<String> = interface
            .coalescing
            .iter()
            .map(|(parameter, value)| format!("{} {value}", parameter.name()))
            .collect();
        print_line!("coalescing: {}", values.join(", "));
    }
    let mut table = table(&[
        "queue",
        "NAPI",
        "irq",
        "irq affinity",
        "effective",
        "rps cpus",
        "defer-hard-irqs",
        "gro-flush-timeout ns",
        "irq-suspend-timeout ns",
        "threaded",
    ]);
    for queue in &interface.queues {
        let napi = queue.napi.as_ref();
        let threaded = napi.and_then(|napi| match (napi.threaded, napi.pid) {
            (Some(1), Some(pid)) => Some(format!("pid {pid}")),
            (Some(THREADED_BUSY_POLL), Some(pid)) => Some(format!("busy-poll, pid {pid}")),
            (Some(on), _) => Some(on.to_string()),
            _ => None,
        });
        let rps = queue
            .rps_cpus
            .as_ref()
            .map(|cpus| if cpus.is_empty() { "off".to_owned() } else { cpus.to_string() });
        table.add_row([
            format!("rx-{}", queue.index),
            or_dash(napi.map(|napi| napi.id)),
            or_dash(queue.irq),
            match (&queue.irq_affinity, queue.irq_managed) {
                (Some(cpus), true) => format!("{cpus} (managed)"),
                (cpus, _) => or_dash(cpus.as_ref()),
            },
            or_dash(queue.irq_effective.as_ref()),
            or_dash(rps),
            or_dash(napi.and_then(|napi| napi.defer_hard_irqs)),
            or_dash(napi.and_then(|napi| napi.gro_flush_timeout)),
            or_dash(napi.and_then(|napi| napi.irq_suspend_timeout)),
            or_dash(threaded),
        ]);
    }
    print_line!("{table}");
    let by_order = interface.queues.iter().any(|queue| queue.napi.is_some() && !queue.napi_reported);
    if by_order {
        print_line!("note: the driver does not link queues to NAPIs; they are matched by order");
    }
    interface.notes.iter().for_each(|note| print_line!("note: {note}"));
}

pub fn print_plan(plan: &Plan) {
    print_line!("{} on {}", plan.policy, plan.interface);
    if !plan.steps.is_empty() {
        let mut table = table(&["knob", "current", "target", "permitted", "purpose"]);
        for step in &plan.steps {
            table.add_row([
                step.knob.to_string(),
                or_dash(step.current.as_ref()),
                step.target.to_string(),
                step.forbidden.clone().map_or_else(|| "yes".to_owned(), |why| format!("no: {why}")),
                step.purpose.to_owned(),
            ]);
        }
        print_line!("{table}");
    }
    plan.notes.iter().for_each(|note| print_line!("note: {note}"));
    let forbidden = plan.forbidden().count();
    if forbidden > 0 {
        print_line!(
            "this process may not set {forbidden} of {} knobs; missing capabilities: {}",
            plan.steps.len(),
            missing_capabilities().join(", ")
        );
    }
}

pub fn print_restore_reports(reports: &[RestoreReport], dry_run: bool) {
    if reports.is_empty() {
        print_line!("nothing to restore");
    }
    let what = if dry_run { "would be removed" } else { "removed" };
    for report in reports {
        print_line!("{}: {} {what}", report.interface, report.policy);
        for (other, outcome) in &report.others {
            print_line!("  {other}: {outcome}");
        }
        for (knob, outcome) in &report.knobs {
            print_line!("  {knob}: {outcome}");
        }
    }
}

/// On standard error, so that JSON on standard output stays what it is.
pub fn print_left_journals(recovery: &Recovery) {
    recovery.left.iter().for_each(write_error);
}

pub fn write_error(line: impl fmt::Display) {
    // There is nowhere else to say it.
    let _ = writeln!(io::stderr(), "policies: {line}");
}

pub fn print_findings(findings: &[Finding]) {
    for finding in findings {
        let marker = match finding.severity {
            Severity::Ok => '+',
            Severity::Degrades => '!',
            Severity::Prevents => 'x',
            _ => '?',
        };
        print_line!("{marker} {}", finding.summary);
        if let Some(mend) = &finding.remedy {
            print_line!("    {mend}");
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error(transparent)]
    Host(#[from] policies::Error),
    #[error(transparent)]
    Recording(#[from] policies::host::UnusableRecording),
    #[error("cannot read this process's CPU affinity: {0}")]
    Affinity(io::Error),
    #[error("cannot watch for signals or processes: {0}")]
    Signals(io::Error),
    #[error(
        "suppression delays interrupts of the whole device, by up to 65 ms for each program that blocks (ssh, for \
         example): give --all-programs to apply it all the same"
    )]
    DelaysAllPrograms,
    #[error("there is no core {core}: cores {present} are online")]
    NoSuchCore { core: u32, present: Cpus },
    #[error("cannot read the plan {}: {reason}", path.display())]
    UnreadablePlan { path: PathBuf, reason: String },
    #[error(
        "the steps are others than those of {}, and nothing was changed: {}; look at `policies plan` again", path.display(),
        differences.join("; ")
    )]
    NotAsPlanned { path: PathBuf, differences: Vec<String> },
    #[error("no command to run")]
    NoCommand,
    #[error("cannot run {program}: {source}")]
    Run { program: String, source: io::Error },
}
