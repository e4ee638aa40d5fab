//! The `policies` command: what the host has, what a policy would set, set it, put it back.

mod echo;
mod prometheus;
mod tables;
mod tune;
mod watch;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use policies::explain::Explanation;
use policies::{
    Cpus, Error, GraceTime, JournalDir, Lifetime, Plan, Policy, RestoreReport, Settings, SuppressionValues,
    host, nearest_cores,
};
use serde_json::json;

use crate::tables::{list_table, show, show_explanation, show_plan, show_reports};

/// Network polling policies: show, plan, apply and restore what they set on the host
#[derive(Parser)]
#[command(name = "policies", version)]
struct Cli {
    /// A table for people, JSON for programs
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
    /// For `watch`: metrics, once, for a scraper's text file
    Prometheus,
}

impl Format {
    fn print(self, json: &serde_json::Value, table: impl FnOnce()) {
        match self {
            Format::Json => println!("{json:#}"),
            // `run` lets the metrics pass for `watch` alone, which does not come here.
            Format::Table | Format::Prometheus => table(),
        }
    }
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
    Apply {
        #[command(flatten)]
        plan: PlanArguments,
        /// Have a running irqbalance leave the interface's interrupts alone until `restore`
        #[arg(long)]
        ban_irqbalance: bool,
    },
    /// Put back what `apply`, or a program that was killed, left set
    Restore {
        /// Only this interface
        interface: Option<String>,
    },
    /// Say what this machine can do for kernel polling on an interface, what is missing, and what would
    /// mend it
    Explain {
        /// The interface, for example eth0
        interface: String,
    },
    /// Show each second what a policy does: interrupts, packets, polling, workers
    Watch(watch::Arguments),
    /// Find a policy's values under the load that is running
    #[command(subcommand)]
    Tune(tune::Tune),
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
    /// Empty polls after each of which the timer polls again, before the queue interrupts
    #[arg(long, value_name = "COUNT", default_value_t = Settings::DEFER_HARD_IRQS, value_parser = clap::value_parser!(u64).range(0..=i32::MAX as u64))]
    defer_hard_irqs: u64,
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
    fn plan(&self, ban_irqbalance: bool) -> Result<Plan, Error> {
        let interface = host::interface(&self.interface)?;
        let worker_cores = match self.workers {
            Some(count) => nearest_cores(&interface, count.into()).map_err(|source| Error::Kernel {
                operation: "read this process's affinity".to_owned(),
                source,
            })?,
            None => self.worker_cores.iter().collect(),
        };
        let settings = Settings {
            channels: self.channels,
            queues: self.queues.as_ref().map(|queues| queues.iter().collect()),
            worker_cores,
            ban_irqbalance,
            packing_cores: self.packing_cores.clone(),
            defer_hard_irqs: self.defer_hard_irqs,
            gro_flush_timeout: GraceTime::Fixed(std::time::Duration::from_micros(self.gro_flush_timeout)),
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
    if cli.format == Format::Prometheus && !matches!(cli.command, Command::Watch(_)) {
        eprintln!("policies: --format prometheus is for `policies watch`; take table or json");
        return Ok(ExitCode::from(2));
    }
    let journals = JournalDir::default();
    match &cli.command {
        Command::List => {
            let interfaces = host::interfaces()?;
            cli.format.print(&json!(interfaces), || println!("{}", list_table(&interfaces)));
            Ok(ExitCode::SUCCESS)
        }
        Command::Show { interface } => {
            let interface = host::interface(interface)?;
            cli.format.print(&json!(interface), || show(&interface));
            Ok(ExitCode::SUCCESS)
        }
        Command::Plan(arguments) => {
            let plan = arguments.plan(false)?;
            cli.format.print(&json!(plan), || show_plan(&plan));
            Ok(ExitCode::SUCCESS)
        }
        Command::Apply { plan, ban_irqbalance } => apply(&plan.plan(*ban_irqbalance)?, &journals, cli.format),
        Command::Explain { interface } => {
            let explanation = Explanation::of(&host::interface(interface)?, &journals)?;
            let json = json!({ "verdict": explanation.verdict(), "findings": explanation.findings });
            cli.format.print(&json, || show_explanation(&explanation));
            Ok(ExitCode::SUCCESS)
        }
        Command::Watch(arguments) => {
            match cli.format {
                Format::Prometheus => print!("{}", prometheus::metrics(&arguments.interface, &journals)?),
                Format::Json => watch::lines(arguments, &journals, true)?,
                Format::Table => watch::run(arguments, &journals)?,
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Tune(arguments) => tune::run(arguments, &journals),
        Command::Restore { interface } => {
            let reports = policies::restore_all(&journals, interface.as_deref())?;
            cli.format.print(&json!(reports), || show_reports(&reports));
            let failed = reports.iter().any(RestoreReport::failed);
            Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

fn apply(plan: &Plan, journals: &JournalDir, format: Format) -> Result<ExitCode, Error> {
    let applied = policies::apply(plan, Lifetime::Host, journals)?.keep();
    let complete = applied.iter().all(|step| step.outcome.is_ok());
    format.print(&json!({ "applied": applied, "notes": plan.notes }), || {
        for step in &applied {
            println!("{}: {step}", plan.interface);
        }
        plan.notes.iter().for_each(|note| println!("note: {note}"));
        if applied.is_empty() {
            println!("nothing to set on {} for {}", plan.interface, plan.policy);
        } else {
            println!("to put it back: policies restore {}", plan.interface);
        }
    });
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
