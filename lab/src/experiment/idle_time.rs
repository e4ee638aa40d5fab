//! For how long a core was awake.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use policies::Cpus;

/// For how long a core was idle until a moment. From `/proc/timer_list`, which counts nanoseconds:
/// the ticks of `/proc/stat` are 10 ms, some percent of what a server uses in a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleTime {
    core: u32,
    at: Instant,
    idle: Duration,
}

impl IdleTime {
    /// # Errors
    /// Fails without the right to read the file (root has it), where its lines are unknown, and on
    /// a core that this thread may not use.
    pub(super) fn of(core: u32) -> io::Result<Self> {
        let allowed = Cpus::of_thread(None)?;
        // The kernel counts idle time when it ends: it does when this thread runs on the core.
        Cpus::one(core).pin(None)?;
        let (at, text) = (Instant::now(), fs::read_to_string("/proc/timer_list"));
        allowed.pin(None)?;
        match parse(&text?).get(core as usize) {
            Some(idle) => Ok(Self { core, at, idle: *idle }),
            None => Err(io::Error::other(format!("/proc/timer_list has no idle_sleeptime of core {core}"))),
        }
    }

    /// For how long the core was awake between two readings.
    fn awake_since(&self, before: &Self) -> Duration {
        (self.at - before.at).saturating_sub(self.idle.saturating_sub(before.idle))
    }
}

/// For how long the cores of these readings were awake, summed.
pub(super) fn awake_between(before: &[IdleTime], after: &[IdleTime]) -> Duration {
    let awake = |after: &IdleTime| {
        before.iter().find(|before| before.core == after.core).map(|before| after.awake_since(before))
    };
    after.iter().filter_map(awake).sum()
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
        let text = "cpu: 0\n clock 0:\n  .index:      0\n  .idle_entrytime : 52 nsecs\n  .idle_sleeptime : 1300 nsecs\n  \
                    .iowait_sleeptime: 35 nsecs\ncpu: 2\n  .idle_sleeptime : 8 nsecs\n  .iowait_sleeptime: 0 nsecs\n";
        assert_eq!(parse(text), [1335, 0, 8].map(Duration::from_nanos));
    }

    #[test]
    fn a_core_is_awake_while_a_thread_runs_on_it_and_not_while_it_sleeps() {
        let readable = fs::File::open("/proc/timer_list").ok();
        let Some(_) = requirements::require("/proc/timer_list, which root may read", readable) else {
            return;
        };
        let core = Cpus::allowed().unwrap().iter().next().unwrap();
        Cpus::one(core).pin(None).unwrap();
        let time = Duration::from_millis(50);
        let awake = |work: fn(Duration)| {
            let before = IdleTime::of(core).unwrap();
            work(time);
            awake_between(&[before], &[IdleTime::of(core).unwrap()])
        };
        // Other programs may run there, but not all the time.
        assert!((0..1_200).any(|_| awake(std::thread::sleep) < time));
        let computed = awake(|time| {
            let begun = Instant::now();
            while begun.elapsed() < time {}
        });
        assert!(computed >= time * 9 / 10, "{computed:?}");
    }
}
