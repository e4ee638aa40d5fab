//! Runs the machine, and reads what its guest and the plugin have written.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{Counting, Row};
use crate::Error;

/// The first arguments of a QEMU command, the program among them: Debian's QEMU with its libraries
/// and their loader, its firmware, and the guest's kernel and initramfs, all from the folder that
/// `tests/guest/prepare` prints.
pub fn qemu(folder: &Path) -> Vec<String> {
    let own = |name: &str| folder.join(name).display().to_string();
    let libraries = own("tools/usr/lib/x86_64-linux-gnu");
    let loader = format!("{libraries}/ld-linux-x86-64.so.2");
    let program = own("tools/usr/bin/qemu-system-x86_64");
    let mut command = vec![loader, "--library-path".to_owned(), libraries, program];
    for (flag, path) in [
        ("-L", "tools/usr/share/qemu"),
        ("-L", "tools/usr/share/seabios"),
        ("-kernel", "vmlinuz"),
        ("-initrd", "initramfs"),
    ] {
        command.extend([flag.to_owned(), own(path)]);
    }
    command
}

/// Cores in use: the load's, the server's and packing's.
const CORES: u32 = 3;
/// Cores take turns, and a turn is a share of the time to the next timer by the number of all
/// cores. With more of them than are used, turns are shorter, and fewer requests arrive at a time
/// only because the load had its turn.
const ALL_CORES: u32 = 8;

pub(super) fn run(folder: &Path, device: &str, counting: &Counting) -> Result<Vec<Row>, Error> {
    let output = tempfile::tempdir()?;
    let file = |name: &str| output.path().join(name).display().to_string();
    let command = qemu(folder);
    // Ends with the lab, even if that is killed.
    let mut qemu = Command::new("setpriv");
    qemu.args(["--pdeathsig", "KILL", &command[0]]);
    let plugin = folder.join("count.so").display().to_string();
    // Loaded before QEMU's libraries, too: see its ppoll.
    qemu.args(["--preload", &plugin]).args(&command[1..]).args(arguments(device));
    qemu.arg("-append").arg(kernel_command_line(counting));
    qemu.args(["-serial", &format!("file:{}", file("console"))]);
    qemu.args(["-serial", &format!("file:{}", file("rows"))]);
    qemu.args(["-plugin", &format!("{plugin},out={}", file("counts"))]);
    let ended = qemu.stdin(Stdio::null()).output()?;
    let read = |name: &str| std::fs::read(file(name)).unwrap_or_default();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (rows, counts) = (text(read("rows")), text(read("counts")));
    let expected = counting.drivers.len() * counting.policies.len() * counting.loads.len();
    let rows: Option<Vec<Row>> =
        rows.lines().enumerate().map(|(index, line)| row(device, line, &counts, index)).collect();
    rows.filter(|rows| rows.len() == expected).ok_or_else(|| {
        let console = text(read("console"));
        // The script's end is one of the first process, at which the kernel panics at length.
        let lines: Vec<&str> = console.lines().take_while(|line| !line.contains("Kernel panic")).collect();
        let last = &lines[lines.len().saturating_sub(20)..];
        let errors = text(ended.stderr);
        let reason =
            format!("qemu-system-x86_64: the guest on {device} ended early: {errors}\n{}", last.join("\n"));
        reason.into()
    })
}

fn arguments(device: &str) -> Vec<String> {
    // Fewer guests differ in what happens when: everything follows the instructions' clock, and
    // numbers are not random. `rep` would count for each iteration.
    let mut arguments = format!(
        "-machine q35,hpet=off -accel tcg,thread=single -icount shift=0,sleep=off -cpu max,-erms,-fsrm -smp {ALL_CORES} -m 512 \
         -rtc base=2026-01-01,clock=vm -seed 1 -nodefaults -display none -no-reboot"
    );
    // The server's end of the link, and the load's.
    for (index, device) in [device, "virtio-net-pci"].into_iter().enumerate() {
        // Sent in the guest's time: by default the host's event loop sends when it comes to it.
        let more = if device == "virtio-net-pci" { ",ioeventfd=off,tx=timer,x-txtimer=1" } else { "" };
        arguments.push_str(&format!(
            " -netdev hubport,id=net{index},hubid=0 -device pcie-root-port,id=port{index},bus=pcie.0,chassis={index},slot={index} \
             -device {device},bus=port{index},netdev=net{index},mac=52:54:00:00:00:0{index},romfile={more}"
        ));
    }
    arguments.split_whitespace().map(str::to_owned).collect()
}

fn kernel_command_line(counting: &Counting) -> String {
    // An idle core halts: cpuidle would let it poll for some time, and that would be counted.
    let mut line = format!(
        "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable nokaslr norandmaps cpuidle.off=1 \
         maxcpus={CORES}"
    );
    for (name, values) in
        [("DRIVERS", &counting.drivers), ("POLICIES", &counting.policies), ("LOADS", &counting.loads)]
    {
        line.push_str(&format!(" \"COUNT_{name}={}\"", values.join(" ")));
    }
    line
}

/// Reads a line of `guest.sh`: the case, the requests, and counters before and after. The plugin
/// has written two lines for it.
fn row(device: &str, line: &str, counts: &str, index: usize) -> Option<Row> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (case, numbers) = words.split_at_checked(3)?;
    let numbers = parse(numbers)?;
    let (&requests, counters) = numbers.split_first()?;
    let (before, after) = counters.split_at_checked(4)?;
    let mut marks = counts.lines().skip(2 * index).map(|line| parse(&line.split(' ').collect::<Vec<_>>()));
    let (started, ended) = (marks.next()??, marks.next()??);
    let difference =
        |before: &[u64], after: &[u64], at: usize| Some(after.get(at)?.checked_sub(*before.get(at)?)? as f64);
    let executed = |at| Some(difference(&started, &ended, at)? / requests as f64);
    let counted = |at| difference(before, after, at);
    let each = 1.0 / requests as f64;
    let [driver, policy, load] = [case[0], case[1], case[2]].map(str::to_owned);
    let (softirq, irq) = (executed(2)?, executed(3)?);
    Some(Row {
        device: device.to_owned(),
        driver,
        policy,
        load,
        requests,
        user: executed(0)?,
        kernel: executed(1)? + softirq + irq,
        softirq,
        irq,
        misses: [executed(4)?, executed(5)?, executed(6)?, executed(7)?],
        interrupts: executed(8)? * 1000.0,
        nic_interrupts: counted(0)? * each * 1000.0,
        packets_per_interrupt: (counted(1)? + counted(2)?) / counted(0)?.max(1.0),
        context_switches: counted(3)? * each * 1000.0,
    })
}

fn parse(words: &[&str]) -> Option<Vec<u64>> {
    words.iter().map(|word| word.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_differences_by_request() {
        let counts = "0 0 0 0 0 0 0 0 0\n9 9 9 9 9 9 9 9 9\n1000 5000 0 9 1 2 3 4 10\n21000 102000 2000 1009 11 22 33 44 40\n";
        let row = row("igb", "epoll vanilla 0:1 10 5 0 0 7 25 12 8 17", counts, 1).unwrap();
        assert_eq!((row.requests, row.user, row.kernel, row.interrupts), (10, 2000.0, 10_000.0, 3000.0));
        assert_eq!((row.softirq, row.irq, row.misses), (200.0, 100.0, [1.0, 2.0, 3.0, 4.0]));
        assert_eq!(
            (row.nic_interrupts, row.packets_per_interrupt, row.context_switches),
            (2000.0, 1.0, 1000.0)
        );
    }

    #[test]
    fn a_line_without_counts_is_none() {
        assert_eq!(row("igb", "epoll vanilla 0:1 10 5 0 0 7 25 12 8 17", "1 2 3 4 5 6 7 8 9\n", 0), None);
        assert_eq!(row("igb", "epoll vanilla 0:1", "1 2 3 4 5 6 7 8 9\n1 2 3 4 5 6 7 8 9\n", 0), None);
    }
}
