//! What the kernel says about the machine.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use policies::host;

use super::findings::{
    Finding, Level, clock_source, congestion_control, governor, kernel, mitigations, other_load as judge_load,
};
use crate::testbed::Testbed;

/// A file's trimmed text; `None` if it can't be read.
fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Everything that the kernel says.
pub(super) fn findings(core: u32) -> Vec<Finding> {
    let clock = |file| read(Path::new("/sys/devices/system/clocksource/clocksource0").join(file));
    let mut findings = vec![clock_source(
        &clock("current_clocksource").unwrap_or_else(|| "unknown".to_owned()),
        &clock("available_clocksource").unwrap_or_default(),
    )];
    findings.push(mitigations(&vulnerabilities()));
    findings.push(governor(
        read(format!("/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_governor")).as_deref(),
    ));
    findings.push(kernel(&read("/proc/sys/kernel/osrelease").unwrap_or_default()));
    findings.extend(interfaces());
    findings.extend(testbed());
    findings
}

pub(in crate::experiments) fn vulnerabilities() -> Vec<(String, String)> {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten().flatten();
    let mut states: Vec<(String, String)> = entries
        .filter_map(|entry| Some((entry.file_name().into_string().ok()?, read(entry.path())?)))
        .collect();
    states.sort_unstable();
    states
}

/// The network interfaces with a driver.
fn interfaces() -> Vec<Finding> {
    let interfaces = match host::interfaces() {
        Ok(interfaces) => interfaces,
        Err(error) => return vec![Finding::new("network interfaces", Level::Info, error.to_string(), "")],
    };
    let with_driver = interfaces.iter().filter(|it| it.name != "lo" && it.driver.is_some());
    with_driver
        .map(|interface| {
            let queues = &interface.queues;
            let napis = queues.iter().filter(|queue| queue.napi.is_some()).count();
            let irqs =
                if interface.has_interrupts() { "interrupts visible" } else { "no interrupts visible" };
            let driver = interface.driver.as_deref().unwrap_or_default();
            let persistence = match napis {
                0 => "",
                _ if interface.keeps_napi_settings() => "; settings survive link down and up",
                _ => "; link down and up resets settings",
            };
            let found = format!(
                "{driver}; receive queues: {}, with a NAPI id: {napis}; {irqs}{persistence}",
                queues.len()
            );
            let (level, advice) = if napis == 0 {
                (Level::Info, "policies can't be set for its queues")
            } else {
                (Level::Good, "")
            };
            Finding::new(&format!("interface {}", interface.name), level, found, advice)
        })
        .collect()
}

/// Whether the testbed can be created, and the congestion control in its namespaces.
fn testbed() -> Vec<Finding> {
    let testbed = match Testbed::new(1) {
        Ok(testbed) => testbed,
        Err(error) => {
            let advice =
                "run as root: without the testbed lab runs on loopback, where no policy has an effect";
            return vec![Finding::new("testbed", Level::Bad, error.to_string(), advice)];
        }
    };
    let mut findings = vec![Finding::new("testbed", Level::Good, "can be created", "")];
    let controls = testbed.server.run(|| {
        let read = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
        Ok((read("tcp_congestion_control")?, read("tcp_available_congestion_control")?))
    });
    if let Ok((current, available)) = controls {
        findings.push(congestion_control(current.trim(), available.trim()));
    }
    findings
}

/// CPU time of all cores and of the busiest processes while this process sleeps.
pub(super) fn other_load(duration: Duration) -> io::Result<Finding> {
    let (busy, processes) = (busy_seconds()?, process_seconds()?);
    thread::sleep(duration);
    let seconds = duration.as_secs_f64().max(0.01);
    let busy = (busy_seconds()? - busy) / seconds;
    let mut shares: Vec<(String, f64)> = process_seconds()?
        .into_iter()
        .filter_map(|(pid, (name, cpu))| Some((name, (cpu - processes.get(&pid)?.1) / seconds)))
        .filter(|(_, share)| *share >= 0.02)
        .collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares.truncate(3);
    Ok(judge_load(busy, &shares))
}

/// CPU seconds of all cores since boot, without idle time and steal.
fn busy_seconds() -> io::Result<f64> {
    let total =
        procfs::CurrentSI::current().map(|stat: procfs::KernelStats| stat.total).map_err(io::Error::other)?;
    let ticks = total.user + total.nice + total.system + total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
    Ok(ticks as f64 / procfs::ticks_per_second() as f64)
}

/// The name and the CPU seconds of each process but this one.
fn process_seconds() -> io::Result<HashMap<i32, (String, f64)>> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let stats = procfs::process::all_processes().map_err(io::Error::other)?;
    // Processes that have ended meanwhile are skipped.
    let stats = stats.filter_map(|process| process.ok()?.stat().ok()).filter(|stat| stat.pid != own);
    let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
    Ok(stats.map(|stat| (stat.pid, (stat.comm, seconds(stat.utime + stat.stime)))).collect())
}
