//! What `lab` has measured last: what kernel polling costs and gains with each latency budget.
//! `lab` writes it, `policies explain` reads it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::atomic_file::AtomicFile;
use crate::controller::LatencyBudget;
use crate::host::Machine;

/// Tells the file from others.
const FORMAT: &str = "lull-lab-result";
const VERSION: u32 = 1;
/// The folder where root's results are.
const SYSTEM_FOLDER: &str = "/var/lib/lull";
const FILE_NAME: &str = "lab-last.json";
/// No result is longer. A foreign file may be.
const LONGEST_FILE: u64 = 64 << 20;

/// A comparison of kernel polling with vanilla on one machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// When the measurement ended, in seconds since 1970.
    pub finished: u64,
    pub machine: Machine,
    /// The rates of requests, in the order in which they were measured.
    pub rates: Vec<MeasuredRate>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRate {
    /// Requests per second that the load generator sent, whatever the server answered.
    pub rate: f64,
    /// The rate as a share of the capacity of the first server that was compared; `None` if that
    /// was not measured.
    pub share: Option<f64>,
    /// Kernel polling with each latency budget.
    pub budgets: Vec<MeasuredBudget>,
}

/// Kernel polling with one latency budget at one rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredBudget {
    /// The runtime's driver, as `epoll`.
    pub driver: String,
    /// How much median delay over vanilla was granted.
    pub latency_budget: LatencyBudget,
    /// CPU time of a request, of the server and of what the kernel received for it, µs.
    pub cpu_us: f64,
    /// Over vanilla's in the same round.
    pub cpu_ratio: MeasuredRatio,
    /// Median latency of a request, µs.
    pub p50_us: f64,
    /// Over vanilla's in the same round.
    pub p50_ratio: MeasuredRatio,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct MeasuredRatio {
    /// The median of the rounds' ratios; 1 is as vanilla.
    pub median: f64,
    /// Its 95 % confidence interval; `None` if there were too few rounds for one.
    pub interval: Option<(f64, f64)>,
}

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnusableResult {
    /// The file can't be read.
    #[error("cannot read {path}: {source}", path = path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// The file's content is something else, or that of another version of `lab`.
    #[error("{path} is not a result of this version of lab ({reason}); measure again", path = path.display())]
    Foreign { path: PathBuf, reason: String },
}

#[derive(Serialize)]
struct WrittenFile<'a, R> {
    format: &'static str,
    version: u32,
    measured: &'a Measured,
    report: &'a R,
}

/// The fields that every version has.
#[derive(Deserialize)]
struct Header {
    format: String,
    version: u32,
}

#[derive(Deserialize)]
struct ReadFile {
    measured: Measured,
}

impl Measured {
    pub fn now(rates: Vec<MeasuredRate>) -> Self {
        let finished = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        Self { finished, machine: Machine::read(), rates }
    }

    /// The result that this user has written last, or else root; `None` without one.
    pub fn last() -> Result<Option<Self>, UnusableResult> {
        first_of(Self::path().into_iter().chain([Path::new(SYSTEM_FOLDER).join(FILE_NAME)]))
    }

    /// Where [`Measured::write`] should write: `$XDG_STATE_HOME/lull/lab-last.json`; without that
    /// variable as root `/var/lib/lull/lab-last.json`, else `~/.local/state/lull/lab-last.json`.
    /// `None` if there is no home.
    pub fn path() -> Option<PathBuf> {
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        if let Some(state) = folder("XDG_STATE_HOME") {
            return Some(state.join("lull").join(FILE_NAME));
        }
        if rustix::process::geteuid().is_root() {
            return Some(Path::new(SYSTEM_FOLDER).join(FILE_NAME));
        }
        Some(folder("HOME")?.join(".local/state/lull").join(FILE_NAME))
    }

    /// Replaces the file atomically, and creates its folder. `report` is everything that was
    /// measured; it is written beside the measurement for other programs.
    ///
    /// # Errors
    /// If the folder or the file can't be written, or `report` can't be serialized.
    pub fn write(&self, path: &Path, report: &impl Serialize) -> io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let content = WrittenFile { format: FORMAT, version: VERSION, measured: self, report };
        let mut new = AtomicFile::new_in(folder)?;
        let mut writer = io::BufWriter::new(&mut new.file);
        serde_json::to_writer(&mut writer, &content)?;
        io::Write::flush(&mut writer)?;
        drop(writer);
        // A temporary file is for its owner only.
        new.file.set_permissions(fs::Permissions::from_mode(0o644))?;
        new.persist(path)?;
        Ok(())
    }

    /// The time since the measurement, as people say it: `3 hours ago`.
    pub fn age_text(&self) -> String {
        let finished = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(self.finished));
        // Both fail if the clock was set back meanwhile.
        let age = finished.and_then(|then| SystemTime::now().duration_since(then).ok()).unwrap_or_default();
        let minutes = age.as_secs() / 60;
        let (count, unit) = match minutes {
            0 => return "less than a minute ago".to_owned(),
            1..60 => (minutes, "minute"),
            60..2880 => (minutes / 60, "hour"),
            _ => (minutes / 1440, "day"),
        };
        format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
    }

    /// Whether the measurement has more than one latency budget.
    pub fn compares_budgets(&self) -> bool {
        let mut budgets = self.rates.iter().flat_map(|rate| &rate.budgets).map(|it| it.latency_budget);
        let first = budgets.next();
        budgets.any(|budget| Some(budget) != first)
    }
}

fn first_of(paths: impl IntoIterator<Item = PathBuf>) -> Result<Option<Measured>, UnusableResult> {
    paths.into_iter().find_map(|path| read(&path).transpose()).transpose()
}

/// Reads a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<Measured>, UnusableResult> {
    let unreadable = |source| UnusableResult::Unreadable { path: path.to_owned(), source };
    let foreign = |reason: String| UnusableResult::Foreign { path: path.to_owned(), reason };
    match fs::metadata(path) {
        // Opening a FIFO would wait for its writer.
        Ok(metadata) if !metadata.is_file() => return Err(foreign("it is not a regular file".to_owned())),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    }
    let mut content = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LONGEST_FILE + 1).read_to_end(&mut content))
        .map_err(unreadable)?;
    if content.len() as u64 > LONGEST_FILE {
        return Err(foreign(format!("it is longer than {} MiB", LONGEST_FILE >> 20)));
    }
    let header: Header = serde_json::from_slice(&content).map_err(|error| foreign(error.to_string()))?;
    if header.format != FORMAT {
        return Err(foreign(format!("its format is {:?}", header.format)));
    }
    if header.version != VERSION {
        return Err(foreign(format!("its version is {}, not {VERSION}", header.version)));
    }
    let file: ReadFile = serde_json::from_slice(&content).map_err(|error| foreign(error.to_string()))?;
    Ok(Some(file.measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(finished: u64) -> Measured {
        let ratio = MeasuredRatio { median: 0.75, interval: Some((0.5, 1.0)) };
        let budget = |text: &str| MeasuredBudget {
            driver: "epoll".to_owned(),
            latency_budget: text.parse().unwrap(),
            cpu_us: 2.5,
            cpu_ratio: ratio,
            p50_us: 20.0,
            p50_ratio: ratio,
        };
        let rates =
            vec![MeasuredRate { rate: 1e5, share: Some(0.5), budgets: vec![budget("0"), budget("20")] }];
        Measured { finished, ..Measured::now(rates) }
    }

    #[test]
    fn the_first_file_that_exists_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let [own, roots] = ["own/lab-last.json", "lab-last.json"].map(|name| folder.path().join(name));
        let last = || first_of([own.clone(), roots.clone()]).unwrap();
        assert_eq!(last(), None);
        measured(2).write(&roots, &"everything").unwrap();
        assert_eq!(last(), Some(measured(2)));
        for finished in [1, 3] {
            measured(finished).write(&own, &"everything").unwrap();
            assert_eq!(last(), Some(measured(finished)));
        }
        let mode = fs::metadata(&own).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "other users may read it");
        fs::write(&own, "x").unwrap();
        assert!(first_of([own, roots]).is_err(), "a file that can't be used is not passed over");
    }

    #[test]
    fn old_and_foreign_files_are_errors_that_name_the_file_and_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lab-last.json");
        for (content, expected) in [
            ("", "EOF"),
            ("not JSON", "expected"),
            ("[1, 2]", "invalid"),
            ("{}", "missing field `format`"),
            (r#"{"machine": {"cpu": "x"}, "result": {}}"#, "missing field `format`"),
            (r#"{"format": "other", "version": 1}"#, "its format is \"other\""),
            (r#"{"format": "lull-lab-result", "version": 9}"#, "its version is 9, not 1"),
            (r#"{"format": "lull-lab-result", "version": 1}"#, "missing field `measured`"),
            (r#"{"format": "lull-lab-result", "version": 1, "measured": {"finished": -1}}"#, "-1"),
        ] {
            fs::write(&path, content).unwrap();
            let error = first_of([path.clone()]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{} is not a result", path.display())), "{error}");
            assert!(error.contains(expected), "{content}: {error}");
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = first_of([path.clone()]).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn ages_have_the_unit_that_people_use() {
        let now = Measured::now(Vec::new()).finished;
        for (age, expected) in [
            (0, "less than a minute ago"),
            (90, "1 minute ago"),
            (3_600, "1 hour ago"),
            (47 * 3_600, "47 hours ago"),
            (49 * 3_600, "2 days ago"),
        ] {
            assert_eq!(measured(now - age).age_text(), expected);
        }
        // The clock was set back.
        assert_eq!(measured(now + 1_000).age_text(), "less than a minute ago");
        assert_eq!(measured(u64::MAX).age_text(), "less than a minute ago");
    }

    #[test]
    fn one_budget_on_several_drivers_is_no_comparison_of_budgets() {
        let mut one = measured(1);
        assert!(one.compares_budgets());
        one.rates[0].budgets[1].latency_budget = LatencyBudget::ZERO;
        assert!(!one.compares_budgets());
    }
}
