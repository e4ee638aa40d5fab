//! For how long cores were idle.

use std::fs;
use std::io;
use std::time::Duration;

/// For how long each core was idle since it is up, by its number. From `/proc/timer_list`, which counts nanoseconds: the ticks of
/// `/proc/stat` are 10 ms, some percent of what a server uses in a turn.
///
/// # Errors
/// Fails without the right to read the file (root has it), and where its lines are unknown.
pub(super) fn idle_times() -> io::Result<Vec<Duration>> {
    let times = parse(&fs::read_to_string("/proc/timer_list")?);
    if times.is_empty() {
        return Err(io::Error::other("/proc/timer_list has no idle_sleeptime"));
    }
    Ok(times)
}

/// The kernel adds a core's waits for disks to a counter of their own.
fn parse(text: &str) -> Vec<Duration> {
    let mut times: Vec<Duration> = Vec::new();
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let number = || value.trim().split(' ').next().and_then(|it| it.parse::<u64>().ok());
        match name.trim() {
            "cpu" => times.resize(number().map_or(times.len(), |cpu| cpu as usize + 1), Duration::ZERO),
            ".idle_sleeptime" | ".iowait_sleeptime" => {
                if let (Some(time), Some(nanos)) = (times.last_mut(), number()) {
                    *time += Duration::from_nanos(nanos);
                }
            }
            _ => {}
        }
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_times_of_all_cores_are_read() {
        let text = "Timer List Version: v0.10\nHRTIMER_MAX_CLOCK_BASES: 8\n\ncpu: 0\n clock 0:\n  .index:      0\n\
                    \n  .idle_entrytime : 52 nsecs\n  .idle_sleeptime : 1300 nsecs\n  .iowait_sleeptime: 35 nsecs\n\
                    cpu: 2\n  .idle_sleeptime : 8 nsecs\n  .iowait_sleeptime: 0 nsecs\nTick Device: mode:     1\n";
        assert_eq!(parse(text), [1335, 0, 8].map(Duration::from_nanos));
    }

    #[test]
    fn a_core_that_sleeps_is_idle() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: /proc/timer_list needs root");
            return;
        }
        let sum = || idle_times().unwrap().iter().sum::<Duration>();
        let before = sum();
        assert!((0..1_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            sum() > before
        }));
    }
}
