//! The `policies` command: shows, plans, applies and restores network polling policies on a host.

#![forbid(unsafe_code)]

mod arguments;
mod attach;
mod interface_name;
mod output;
mod planned;
mod status;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use policies::explain::Explanation;
use policies::host::Recording;
use policies::{JournalDir, Lifetime, Plan, Policy, host, signals};
use rustix::process::Signal;
use serde_json::json;

use arguments::{Cli, Command, Subject};
use output::{
    CommandError, Format, PREVENTED, list_table, print_findings, print_interface, print_left_journals,
    print_line, print_plan, print_restore_reports,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The library reports by `tracing` what it can't return.
    tracing_subscriber::fmt().with_writer(std::io::stderr).without_time().with_target(false).init();
    match run(&cli) {
        Ok(_) if output::has_failed() => ExitCode::FAILURE,
        Ok(code) => code,
        Err(error) => {
            eprintln!("policies: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode, CommandError> {
    let journals = JournalDir::default();
    match &cli.command {
        Command::List => {
            let interfaces = host::interfaces()?;
            cli.format
                .print(&json!({ "interfaces": interfaces }), || print_line!("{}", list_table(&interfaces)));
            Ok(ExitCode::SUCCESS)
        }
        Command::Show { interface } => {
            let subject = interface.read()?;
            let interface = subject.interface();
            cli.format.print(&json!(interface), || print_interface(interface));
            Ok(ExitCode::SUCCESS)
        }
        Command::Plan { interface, plan: arguments } => {
            let subject = interface.read()?;
            let plan = arguments.plan(&subject)?;
            cli.format.print(&json!(plan), || print_plan(&plan));
            Ok(if plan.is_prevented { PREVENTED.into() } else { ExitCode::SUCCESS })
        }
        Command::Apply { interface, plan, trial, as_planned, all_programs } => {
            if plan.policy == Policy::Suppression && !all_programs {
                return Err(CommandError::DelaysAllPrograms);
            }
            let subject = Subject::Host(host::interface(interface)?);
            let plan = plan.plan(&subject)?;
            as_planned.as_deref().map_or(Ok(()), |file| planned::check(&plan, file))?;
            apply(&plan, *trial, &journals, cli.format)
        }
        Command::Explain { interface, target: Some(target), .. } => {
            attach::explain(target.target(), interface.as_deref(), &journals, cli.format)
        }
        Command::Explain { from: Some(file), .. } => {
            Ok(explain(&Explanation::of_recording(&Recording::read(file)?), cli.format))
        }
        Command::Explain { interface, target: None, from: None } => {
            let interface = interface.as_deref().unwrap_or_default();
            let explanation = Explanation::of(&host::interface(interface)?, &journals)?;
            Ok(explain(&explanation, cli.format))
        }
        Command::Record { interface } => {
            print_line!("{:#}", json!(Recording::of(interface)?));
            Ok(ExitCode::SUCCESS)
        }
        Command::Status => status::print(&journals, cli.format),
        Command::Completions { shell } => {
            // Into memory first: clap_complete panics on write errors.
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "policies", &mut script);
            print_line!("{}", String::from_utf8_lossy(&script).trim_end());
            Ok(ExitCode::SUCCESS)
        }
        Command::Attach(arguments) => attach::attach(arguments, &journals, cli.format),
        Command::Run(arguments) => attach::run(arguments, &journals),
        Command::Watch(arguments) => {
            watch::run(arguments, &journals, cli.format)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Restore { interface, ended, dry_run } => {
            let restore = if *dry_run { policies::restore_preview } else { policies::restore };
            let recovery = restore(&journals, interface.as_deref(), *ended)?;
            cli.format.print(&json!({ "reports": recovery.reports }), || {
                print_restore_reports(&recovery.reports, *dry_run)
            });
            print_left_journals(&recovery);
            Ok(if recovery.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

fn explain(explanation: &Explanation, format: Format) -> ExitCode {
    let verdict = explanation.verdict();
    format.print(&json!({ "verdict": verdict, "findings": explanation.findings }), || {
        print_line!("{verdict}");
        print_findings(&explanation.findings);
    });
    if explanation.prevents() { PREVENTED.into() } else { ExitCode::SUCCESS }
}

fn apply(
    plan: &Plan,
    trial: Option<Duration>,
    journals: &JournalDir,
    format: Format,
) -> Result<ExitCode, CommandError> {
    let lifetime = if trial.is_some() { Lifetime::Process } else { Lifetime::Host };
    // Ignores SIGHUP from before the first change on: losing the terminal must not end the trial.
    let _hangup = trial
        .map(|_| signals::on_signal(Signal::HUP.as_raw(), || {}))
        .transpose()
        .map_err(CommandError::Signals)?;
    let guard = policies::apply(plan, lifetime, journals)?;
    // The plan in effect, which may be of another policy than the one that was asked for.
    let plan = &guard.plan().clone();
    let applied = guard.applied();
    let complete = applied.iter().all(|step| step.outcome.is_ok());
    format.print(&json!({ "applied": applied, "notes": plan.notes }), || {
        for step in applied {
            print_line!("{}: {step}", plan.interface);
        }
        plan.notes.iter().for_each(|note| print_line!("note: {note}"));
        if plan.policy.suspends_interrupts() && !applied.is_empty() {
            print_line!(
                "note: it costs polls of the kernel's timer and saves none, unless the application's waits poll \
                 (a Lull program's, or those of `policies attach`)"
            );
        }
        match trial {
            _ if applied.is_empty() => print_line!("nothing to set on {} for {}", plan.interface, plan.policy),
            Some(time) => print_line!("restored in {} s; press Enter to keep it", time.as_secs()),
            None => print_line!("to restore: policies restore {}", plan.interface),
        }
    });
    match trial {
        None => drop(guard.keep()),
        // Nothing is to be confirmed, or restored.
        Some(_) if applied.is_empty() => drop(guard),
        Some(time) if is_confirmed_within(time) => {
            guard.keep_for_host()?;
            format.print(&json!({ "kept": true }), || {
                print_line!("kept; to restore: policies restore {}", plan.interface);
            });
        }
        Some(_) => {
            if let Some(report) = guard.restore() {
                let reports = [report?];
                format.print(&json!({ "reports": reports }), || print_restore_reports(&reports, false));
            }
        }
    }
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether a line is read from standard input within `time`. End of file doesn't count as one.
fn is_confirmed_within(time: Duration) -> bool {
    let (confirm, confirmed) = std::sync::mpsc::channel();
    let read = move || {
        let mut line = String::new();
        match std::io::stdin().read_line(&mut line) {
            Ok(1..) => drop(confirm.send(())),
            // Dropping the sender would end the receiver's wait before the time is over.
            _ => std::mem::forget(confirm),
        }
    };
    std::thread::spawn(read);
    confirmed.recv_timeout(time).is_ok()
}
