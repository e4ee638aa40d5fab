//! `policies status`: who has set what since when.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use policies::{JournalDir, JournalSummary, Lifetime, status, summaries_everywhere};
use serde_json::json;

use crate::output::CommandError;
use crate::output::{Format, print_line, table, write_error};

pub fn print(journals: &JournalDir, format: Format) -> Result<ExitCode, CommandError> {
    let (found, unreadable) = summaries_everywhere(journals)?;
    let modes = |summary: &JournalSummary| -> Vec<String> {
        let of_process = status::workers(journals, summary.ifindex).into_iter();
        of_process
            .filter(|_| !summary.elsewhere)
            .filter(|worker| is_of(worker.thread, summary.pid))
            .filter_map(|worker| {
                worker.queue.map(|queue| format!("{}: {}", worker.worker, queue.mode_text()))
            })
            .collect()
    };
    let drift = policies::drift(journals)?;
    let rows: Vec<_> = found.iter().map(|summary| (summary, modes(summary))).collect();
    let json = json!({
        "journals": rows
            .iter()
            .map(|(summary, modes)| json!({ "journal": summary, "modes": modes }))
            .collect::<Vec<_>>(),
        "drift": drift,
        "unreadable": unreadable,
    });
    format.print(&json, || {
        if rows.is_empty() {
            print_line!("no policy is applied");
            return;
        }
        let mut table = table(&["interface", "policy", "queues", "by", "since", "settings", "modes"]);
        for (summary, modes) in &rows {
            table.add_row([
                format!(
                    "{}{}",
                    summary.interface,
                    if summary.elsewhere { ", in another namespace" } else { "" }
                ),
                summary.policy.to_string(),
                summary.queues.to_string(),
                owner(summary),
                ago(summary.since),
                settings(summary),
                if modes.is_empty() { "-".to_owned() } else { modes.join(", ") },
            ]);
        }
        print_line!("{table}");
        if found.iter().any(|summary| summary.is_left) {
            print_line!("to restore what ended processes left: policies restore --ended");
        }
        drift.iter().for_each(|changed| print_line!("changed since: {changed}"));
    });
    unreadable.iter().for_each(write_error);
    Ok(if unreadable.is_empty() && drift.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_of(thread: i32, pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}/task/{thread}")).exists()
}

fn owner(summary: &JournalSummary) -> String {
    match (summary.lifetime, &summary.process, summary.is_left) {
        (Lifetime::Host, ..) => "policies apply".to_owned(),
        (Lifetime::Process, _, true) => format!("process {}, ended without restoring", summary.pid),
        (Lifetime::Process, Some(name), _) => format!("{name} ({})", summary.pid),
        (Lifetime::Process, None, _) => format!("process {}", summary.pid),
    }
}

fn settings(summary: &JournalSummary) -> String {
    match summary.others {
        0 => summary.knobs.to_string(),
        others => format!("{}, and {others} of other processes", summary.knobs),
    }
}

/// `3 h 12 min ago`.
fn ago(since: u64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seconds = now.saturating_sub(Duration::from_secs(since)).as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60) {
        (0, 0, 0) => format!("{seconds} s ago"),
        (0, 0, minutes) => format!("{minutes} min ago"),
        (0, hours, minutes) => format!("{hours} h {minutes} min ago"),
        (days, hours, _) => format!("{days} d {hours} h ago"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_told_in_its_two_largest_units() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let told = [5, 61, 7260, 90_000 + 3600].map(|seconds| ago(now - seconds));
        assert_eq!(told, ["5 s ago", "1 min ago", "2 h 1 min ago", "1 d 2 h ago"]);
    }
}
