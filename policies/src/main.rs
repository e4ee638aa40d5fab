//! The `policies` command: what the host has, what a policy would set, set it, put it back.

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use comfy_table::{Table, presets};
use policies::{
    Cpus, Error, Interface, JournalDir, Lifetime, Plan, Policy, RestoreReport, Restored, Settings,
    SuppressionValues, host, missing_capabilities, nearest_cores,
};
use serde_json::json;

/// Network polling policies: show, plan, apply and restore what they set on the host
#[derive(Parser)]
#[command(name = "policies", version)]
struct Cli {
    /// A table for people, or JSON for programs
    #[arg(long, global = true, value_enum, default_value_t)]
    format: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Table,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// List the interfaces
    List,
    /// Show an interface's queues, NAPIs and interrupts, and what is set on them
    Show {
        /// The interface, for example eth0
        interface: String,
    },
    /// Show what a policy would set, and change nothing
    Plan(PlanArguments),
    /// Set what a policy needs, until `restore` or a reboot
    Apply(PlanArguments),
    /// Put back what `apply`, or a program that was killed, left set
    Restore {
        /// Only this interface
        interface: Option<String>,
    },
}

#[derive(Args)]
struct PlanArguments {
    /// The interface, for example eth0
    interface: String,
    /// vanilla, packing, suppression or kernel-polling
    #[arg(long)]
    policy: Policy,
    /// Cores of the application's workers, for example 0-3; queue i goes to the i-th
    #[arg(long, default_value = "", conflicts_with = "workers")]
    worker_cores: Cpus,
    /// So many workers, on the cores nearest to the device (its NUMA node first)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Cores that packing gathers network work on
    #[arg(long, default_value = "")]
    packing_cores: Cpus,
    /// Grace time after an empty poll, in microseconds
    #[arg(long, value_name = "US", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    gro_flush_timeout: u64,
    /// How many queues the device is to receive with (its channels)
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    channels: Option<u32>,
    /// Only these queues, for example 0-1; the others are not touched
    #[arg(long, value_name = "QUEUES")]
    queues: Option<Cpus>,
    /// Under suppression: microseconds until a received packet interrupts
    #[arg(long, value_name = "US", default_value_t = SuppressionValues::default().rx_usecs)]
    rx_usecs: u32,
    /// Under suppression: received packets until they interrupt
    #[arg(long, value_name = "COUNT", default_value_t = SuppressionValues::default().rx_frames)]
    rx_frames: u32,
    /// Under suppression: microseconds until a sent packet interrupts
    #[arg(long, value_name = "US", default_value_t = SuppressionValues::default().tx_usecs)]
    tx_usecs: u32,
    /// Under suppression: sent packets until they interrupt
    #[arg(long, value_name = "COUNT", default_value_t = SuppressionValues::default().tx_frames)]
    tx_frames: u32,
}

impl PlanArguments {
    fn plan(&self) -> Result<Plan, Error> {
        let interface = host::interface(&self.interface)?;
        let worker_cores = match self.workers {
            Some(count) => nearest_cores(&interface, count.into()).map_err(|source| Error::Kernel {
                what: "read this process's affinity".to_owned(),
                source,
            })?,
            None => self.worker_cores.iter().collect(),
        };
        let settings = Settings {
            channels: self.channels,
            queues: self.queues.as_ref().map(|queues| queues.iter().collect()),
            worker_cores,
            packing_cores: self.packing_cores.clone(),
            gro_flush_timeout: std::time::Duration::from_micros(self.gro_flush_timeout),
            suppression: SuppressionValues {
                rx_usecs: self.rx_usecs,
                rx_frames: self.rx_frames,
                tx_usecs: self.tx_usecs,
                tx_frames: self.tx_frames,
            },
            ..Settings::default()
        };
        Ok(Plan::new(self.policy, &interface, &settings))
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("policies: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Error> {
    let journals = JournalDir::default();
    match &cli.command {
        Command::List => {
            let interfaces = host::interfaces()?;
            match cli.format {
                Format::Json => print_json(&json!(interfaces)),
                Format::Table => println!("{}", list_table(&interfaces)),
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Show { interface } => {
            let interface = host::interface(interface)?;
            match cli.format {
                Format::Json => print_json(&json!(interface)),
                Format::Table => show(&interface),
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Plan(arguments) => {
            let plan = arguments.plan()?;
            match cli.format {
                Format::Json => print_json(&json!(plan)),
                Format::Table => show_plan(&plan),
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Apply(arguments) => apply(&arguments.plan()?, &journals, cli.format),
        Command::Restore { interface } => {
            let reports = policies::restore_all(&journals, interface.as_deref())?;
            match cli.format {
                Format::Json => print_json(&json!(reports)),
                Format::Table => show_reports(&reports),
            }
            let failed = reports.iter().any(RestoreReport::failed);
            Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

fn apply(plan: &Plan, journals: &JournalDir, format: Format) -> Result<ExitCode, Error> {
    let applied = policies::apply(plan, Lifetime::Host, journals)?.keep();
    let complete = applied.iter().all(|step| step.outcome.is_ok());
    match format {
        Format::Json => print_json(&json!({ "applied": applied, "notes": plan.notes })),
        Format::Table => {
            for step in &applied {
                println!("{}: {step}", plan.interface);
            }
            plan.notes.iter().for_each(|note| println!("note: {note}"));
            if applied.is_empty() {
                println!("nothing to set on {} for {}", plan.interface, plan.policy);
            } else {
                println!("to put it back: policies restore {}", plan.interface);
            }
        }
    }
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_json(value: &serde_json::Value) {
    println!("{value:#}");
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header);
    table
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn list_table(interfaces: &[Interface]) -> Table {
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

fn show(interface: &Interface) {
    println!(
        "{} ({}), index {}, {}",
        interface.name,
        interface.driver.as_deref().unwrap_or("no driver known"),
        interface.index,
        if interface.up { "up" } else { "down" }
    );
    let mut table = table(&[
        "queue",
        "NAPI",
        "irq",
        "irq cpus",
        "rps cpus",
        "defer",
        "gro-flush ns",
        "suspend ns",
        "threaded",
    ]);
    for queue in &interface.queues {
        let napi = queue.napi.as_ref();
        let threaded = napi.and_then(|napi| match (napi.threaded, napi.pid) {
            (Some(1), Some(pid)) => Some(format!("pid {pid}")),
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
            or_dash(queue.irq_affinity.as_ref()),
            or_dash(rps),
            or_dash(napi.and_then(|napi| napi.defer_hard_irqs)),
            or_dash(napi.and_then(|napi| napi.gro_flush_timeout)),
            or_dash(napi.and_then(|napi| napi.irq_suspend_timeout)),
            or_dash(threaded),
        ]);
    }
    println!("{table}");
    let by_order = interface.queues.iter().any(|queue| queue.napi.is_some() && !queue.napi_reported);
    if by_order {
        println!("note: the driver does not link queues to NAPIs; they are paired by order");
    }
    interface.notes.iter().for_each(|note| println!("note: {note}"));
}

fn show_plan(plan: &Plan) {
    println!("{} on {}", plan.policy, plan.interface);
    if !plan.steps.is_empty() {
        let mut table = table(&["knob", "now", "to be", "may set", "why"]);
        for step in &plan.steps {
            table.add_row([
                step.knob.to_string(),
                or_dash(step.now.as_ref()),
                step.target.to_string(),
                step.forbidden.clone().map_or_else(|| "yes".to_owned(), |why| format!("no: {why}")),
                step.why.to_owned(),
            ]);
        }
        println!("{table}");
    }
    plan.notes.iter().for_each(|note| println!("note: {note}"));
    let forbidden = plan.forbidden().count();
    if forbidden > 0 {
        println!(
            "{forbidden} of {} knobs may not be set by this process; missing: {}",
            plan.steps.len(),
            missing_capabilities().join(", ")
        );
    }
}

fn show_reports(reports: &[RestoreReport]) {
    if reports.is_empty() {
        println!("nothing to restore");
    }
    for report in reports {
        println!("{}: {} taken off", report.interface, report.policy);
        for (knob, restored) in &report.knobs {
            match restored {
                Restored::Restored => println!("  {knob}: restored"),
                Restored::Gone => println!("  {knob}: gone, nothing to restore"),
                Restored::ChangedMeanwhile { value } => {
                    println!("  {knob}: left alone, someone else has set it to {value} meanwhile");
                }
                Restored::Failed { reason } => println!("  {knob}: NOT restored: {reason}"),
            }
        }
    }
}
