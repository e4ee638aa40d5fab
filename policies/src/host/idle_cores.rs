//! What idle cores do: how deep they sleep, and how fast they run when they wake.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// How a core sleeps and wakes, as `/sys/devices/system/cpu` has it
/// (`Documentation/admin-guide/pm/cpuidle.rst`, `cpufreq.rst`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdleCores {
    /// The deepest idle state that is enabled, and how long the kernel says that waking takes: `C6`,
    /// 133 µs. `None` where the kernel lists no states, and where it halts a virtual core
    /// (`haltpoll`): how deep that sleeps, and for how long it wakes, is up to the hypervisor.
    pub deepest: Option<(String, Duration)>,
    /// What puts cores to sleep: `intel_idle`, `acpi_idle`, `haltpoll`.
    pub idle_driver: Option<String>,
    /// Who chooses the state: `menu`, `haltpoll`.
    pub idle_governor: Option<String>,
    /// Who chooses the frequency: `performance`, `schedutil`. `None` where the kernel doesn't.
    pub frequency_governor: Option<String>,
}

/// The driver that halts a virtual core, after some time of polling.
const HALTPOLL: &str = "haltpoll";

impl IdleCores {
    /// That of one core. What can't be read is `None`.
    pub fn read(core: u32) -> Self {
        Self::read_from(Path::new("/sys/devices/system/cpu"), core)
    }

    fn read_from(cpus: &Path, core: u32) -> Self {
        let text = |path: &Path| {
            fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|it| !it.is_empty())
        };
        let own = cpus.join(format!("cpu{core}"));
        let state = |folder: fs::DirEntry| {
            let file = |name: &str| text(&folder.path().join(name));
            // 1 if somebody has disabled it, or the driver.
            let is_enabled = file("disable").as_deref() != Some("1");
            let latency = Duration::from_micros(file("latency")?.parse().ok()?);
            is_enabled.then(|| Some((file("name")?, latency)))?
        };
        let idle_driver = text(&cpus.join("cpuidle/current_driver"));
        let is_virtual = idle_driver.as_deref() == Some(HALTPOLL);
        let states = fs::read_dir(own.join("cpuidle")).into_iter().flatten().flatten().filter_map(state);
        Self {
            deepest: states.max_by_key(|(_, latency)| *latency).filter(|_| !is_virtual),
            idle_driver,
            idle_governor: text(&cpus.join("cpuidle/current_governor")),
            frequency_governor: text(&own.join("cpufreq/scaling_governor")),
        }
    }
}

/// For example `sleep as deep as C6 (133 µs to wake, governor menu)`.
impl fmt::Display for IdleCores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.deepest, &self.idle_driver) {
            (Some((name, latency)), _) => {
                write!(f, "sleep as deep as {name} ({} µs to wake", latency.as_micros())?;
                if let Some(governor) = &self.idle_governor {
                    write!(f, ", governor {governor}")?;
                }
                f.write_str(")")?;
            }
            (None, Some(driver)) if driver == HALTPOLL => {
                write!(f, "halt ({driver}), and the hypervisor decides how deep they sleep")?
            }
            (None, _) => f.write_str("halt, or poll: the kernel lists no idle states")?,
        }
        match &self.frequency_governor {
            Some(governor) => write!(f, ", frequency governor {governor}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_state_that_is_not_disabled_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for (state, name, latency, disable) in
            [(0, "POLL", "0", "0"), (1, "C1", "2", "0"), (2, "C6", "133", "1")]
        {
            for (file, text) in [("name", name), ("latency", latency), ("disable", disable)] {
                put(&format!("cpu3/cpuidle/state{state}/{file}"), text);
            }
        }
        put("cpuidle/current_governor", "menu\n");
        let read = || IdleCores::read_from(folder.path(), 3);
        assert_eq!(read().to_string(), "sleep as deep as C1 (2 µs to wake, governor menu)");
        put("cpu3/cpuidle/state2/disable", "0\n");
        put("cpu3/cpufreq/scaling_governor", "powersave\n");
        assert_eq!(
            read().to_string(),
            "sleep as deep as C6 (133 µs to wake, governor menu), frequency governor powersave"
        );
        put("cpuidle/current_driver", "haltpoll\n");
        assert!(read().to_string().starts_with("halt (haltpoll), and the hypervisor decides"), "{}", read());
        fs::remove_file(folder.path().join("cpuidle/current_driver")).unwrap();
        assert_eq!(
            IdleCores::read_from(folder.path(), 4).to_string(),
            "halt, or poll: the kernel lists no idle states"
        );
    }
}
