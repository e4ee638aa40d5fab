//! What was there before: written before anything is changed, read when its writer is gone.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::{Error, Interface, Knob, Plan, Policy, Value};

/// How long a plan is meant to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Lifetime {
    /// As long as the process that applied it.
    Process,
    /// Until `policies restore` (or a reboot).
    Host,
}

/// Which values of a knob are taken for this journal's own doing, and put back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Own {
    /// The new one.
    New,
    /// Any between the old and the new one: the device's limit is being looked for.
    UpToNew,
    /// Any within bounds: it is adapted while the policy runs.
    Within {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// Any: the device is being rebuilt, and forgets what it had.
    Any,
}

/// One knob's old and new value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(flatten)]
    pub(crate) knob: Knob,
    pub(crate) old: Option<Value>,
    pub(crate) new: Value,
    pub(crate) own: Own,
}

impl Entry {
    /// Whether the value that a knob has is this journal's doing.
    pub(crate) fn owns(&self, now: &Value) -> bool {
        match (self.own, now, &self.old, &self.new) {
            (Own::Any, ..) => true,
            (Own::UpToNew, Value::Number(now), Some(Value::Number(old)), Value::Number(new)) => {
                (old.min(new)..=old.max(new)).contains(&now)
            }
            (Own::Within { least, most }, Value::Number(now), ..) => (least..=most).contains(now),
            _ => *now == self.new,
        }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Journal {
    version: u32,
    pub(crate) policy: Policy,
    pub(crate) interface: String,
    pub(crate) ifindex: u32,
    pub(crate) lifetime: Lifetime,
    /// Which of its writer's journals it is.
    number: u32,
    /// The queues that it holds.
    pub(crate) queues: Vec<u32>,
    pub(crate) writer: Process,
    boot: String,
    namespace: u64,
    /// In the order in which they were to be applied.
    pub(crate) entries: Vec<Entry>,
}

/// What every version of a journal begins with.
#[derive(Deserialize)]
struct Head {
    version: u32,
    boot: String,
}

/// A process, told apart from a later one with the same number by its start time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    start: u64,
}

impl Process {
    pub(crate) fn this() -> Self {
        let pid = std::process::id();
        Self { pid, start: start_time(pid).unwrap_or(0) }
    }

    pub(crate) fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start)
    }
}

fn start_time(pid: u32) -> Option<u64> {
    let process = procfs::process::Process::new(i32::try_from(pid).ok()?).ok()?;
    let stat = process.stat().ok()?;
    // A zombie has stopped running; what it set is its parent's to put back no more than anyone's.
    (stat.state != 'Z').then_some(stat.starttime)
}

const VERSION: u32 = 2;
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The folder that journals are in, `/run/lull` unless told otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalDir(PathBuf);

impl Default for JournalDir {
    fn default() -> Self {
        Self(PathBuf::from("/run/lull"))
    }
}

impl JournalDir {
    /// Another folder than `/run/lull`. It should not outlive a reboot: NAPI settings don't.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn error(path: &Path) -> impl FnOnce(io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |source| Error::Journal { path, source }
    }

    /// Every journal of this boot and this network namespace. Those of an earlier boot describe
    /// settings that are gone, and are removed; an unreadable one is an error that names it.
    pub(crate) fn read(&self) -> Result<Vec<(PathBuf, Journal)>, Error> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Self::error(&self.0)(error)),
        };
        let (boot, namespace) = (boot_id(), network_namespace());
        let mut journals = Vec::new();
        for entry in entries {
            let path = entry.map_err(Self::error(&self.0))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                remove_abandoned_status(&path);
                continue;
            }
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                // Its owner removed it between the listing and the reading.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(Self::error(&path)(error)),
            };
            let invalid = |error: serde_json::Error| Error::Journal {
                path: path.clone(),
                source: io::Error::new(io::ErrorKind::InvalidData, error),
            };
            let head: Head = serde_json::from_str(&text).map_err(invalid)?;
            if head.boot != boot {
                fs::remove_file(&path).map_err(Self::error(&path))?;
                continue;
            }
            if head.version != VERSION {
                return Err(Error::Journal {
                    path,
                    source: io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!(
                            "version {}, this program reads {VERSION}; restore with the one that wrote it",
                            head.version
                        ),
                    ),
                });
            }
            let journal: Journal = serde_json::from_str(&text).map_err(invalid)?;
            if journal.namespace == namespace {
                journals.push((path, journal));
            }
        }
        // The newest first: what was laid on top comes off first.
        journals.sort_by_key(|(path, _)| {
            std::cmp::Reverse(fs::metadata(path).map_or((0, 0), |data| (data.mtime(), data.mtime_nsec())))
        });
        Ok(journals)
    }

    /// Keeps other processes from applying or restoring until it is dropped. `None` where the folder
    /// can't be made or locked: then nothing can be journalled either.
    pub(crate) fn lock(&self) -> Option<Locked> {
        if HELD.get() {
            // By this very thread: a panic under the lock drops a guard, which puts back.
            return None;
        }
        let path = self.0.join("lock");
        loop {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.0).ok()?;
            // Not the folder itself, which anybody could hold for ever: this file is its owner's.
            let file = match File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)
            {
                Ok(file) => file,
                // Whoever had it before has removed the folder in between.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(_) => return None,
            };
            rustix::fs::flock(&file, FlockOperation::LockExclusive).ok()?;
            let inode = |data: fs::Metadata| data.ino();
            // Or the file.
            if file.metadata().ok().map(inode) == fs::metadata(&path).ok().map(inode) {
                let locked = Locked { folder: self.0.clone(), path, _file: file };
                HELD.set(true);
                locked.remove_unfinished();
                return Some(locked);
            }
        }
    }

    /// Writes a journal so that it is there whole or not at all.
    pub(crate) fn write(&self, journal: &Journal) -> Result<PathBuf, Error> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.0).map_err(Self::error(&self.0))?;
        let owner = match journal.lifetime {
            Lifetime::Process => journal.writer.pid.to_string(),
            Lifetime::Host => "host".to_owned(),
        };
        // By index and number: names change hands, and a process may hold several sets of queues.
        let path =
            self.0.join(format!("{}-{}-{owner}-{}.json", journal.namespace, journal.ifindex, journal.number));
        let mut file = tempfile::NamedTempFile::new_in(&self.0).map_err(Self::error(&self.0))?;
        // In one piece: a writer that is given each token would write each.
        let text = serde_json::to_vec_pretty(journal).map_err(|error| Self::error(&path)(error.into()))?;
        file.write_all(&text).map_err(Self::error(&path))?;
        // Everybody may see who holds what.
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644)).map_err(Self::error(&path))?;
        file.as_file().sync_all().map_err(Self::error(&path))?;
        file.persist(&path).map_err(|error| Self::error(&path)(error.error))?;
        Ok(path)
    }

    pub(crate) fn remove(&self, path: &Path) -> Result<(), Error> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Self::error(path)(error)),
            _ => Ok(()),
        }
    }
}

/// Removes what a killed process has left beside its journal (see `status`).
fn remove_abandoned_status(path: &Path) {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.and_then(|name| name.strip_suffix(".workers").or(name.strip_suffix(".workers-new")));
    let pid = name.and_then(|name| name.rsplit('-').next()?.parse::<u32>().ok());
    if pid.is_some_and(|pid| start_time(pid).is_none()) {
        // Not allowed, or gone already: another's to remove.
        let _ = fs::remove_file(path);
    }
}

thread_local! {
    static HELD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The journals, held by one process.
pub(crate) struct Locked {
    folder: PathBuf,
    path: PathBuf,
    _file: File,
}

impl Locked {
    /// Removes what a process that was killed while it wrote its journal has left: nothing was changed
    /// by it yet, and nobody writes one now.
    fn remove_unfinished(&self) {
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_some_and(|name| name.starts_with(".tmp")) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        HELD.set(false);
        // Leaves nothing behind where there are no journals any more.
        let others = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        if others.filter(|entry| entry.path() != self.path).count() == 0 {
            let _ = fs::remove_file(&self.path);
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

impl Journal {
    pub(crate) fn new(
        policy: Policy,
        interface: &str,
        ifindex: u32,
        lifetime: Lifetime,
        queues: Vec<u32>,
    ) -> Self {
        Self {
            version: VERSION,
            policy,
            interface: interface.to_owned(),
            ifindex,
            lifetime,
            number: match lifetime {
                Lifetime::Process => NEXT.fetch_add(1, Ordering::Relaxed),
                Lifetime::Host => 0,
            },
            queues,
            writer: Process::this(),
            boot: boot_id(),
            namespace: network_namespace(),
            entries: Vec::new(),
        }
    }
}

impl Journal {
    /// Whether its writer is gone, and nobody else is to keep what it has set.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.lifetime == Lifetime::Process && !self.writer.is_alive()
    }

    /// Notes the present value of each knob that is to get another one, and is not noted yet.
    pub(crate) fn note_all(&mut self, plan: &Plan, device: &Device) {
        for step in &plan.steps {
            let own = match plan.adapts(step) {
                Some((least, most)) => Own::Within { least, most },
                None if step.knob.has_limit() => Own::UpToNew,
                None => Own::New,
            };
            self.note(step.knob.clone(), Some(&step.target), own, device);
        }
    }

    /// A device that rebuilds its queues forgets what was set on them: on those that go, and on some
    /// devices on all.
    pub(crate) fn note_what_rebuilding_loses(&mut self, interface: &Interface, device: &Device) {
        for queue in &interface.queues {
            let index = queue.index;
            let mut knobs = vec![Knob::RpsCpus { queue: index }, Knob::RpsFlowCount { queue: index }];
            if queue.napi.is_some() {
                knobs.extend([
                    Knob::NapiDeferHardIrqs { queue: index },
                    Knob::NapiGroFlushTimeout { queue: index },
                    Knob::NapiIrqSuspendTimeout { queue: index },
                    Knob::NapiThreaded { queue: index },
                ]);
            }
            knobs.extend(queue.irq.map(|irq| Knob::IrqAffinity { queue: index, irq }));
            for knob in knobs {
                self.note(knob, None, Own::Any, device);
            }
        }
        for queue in &interface.tx_queues {
            let index = queue.index;
            self.note(Knob::XpsCpus { queue: index }, None, Own::Any, device);
            if let Some(irq) = queue.irq {
                self.note(Knob::TxIrqAffinity { queue: index, irq }, None, Own::Any, device);
            }
        }
    }

    fn note(&mut self, knob: Knob, target: Option<&Value>, own: Own, device: &Device) {
        let rebuilt = self.entries.iter().any(|entry| matches!(entry.knob, Knob::Channels { .. }));
        let own = if rebuilt && knob.queue().is_some() { Own::Any } else { own };
        if self.entries.iter().any(|entry| entry.knob == knob) {
            return;
        }
        let old = knob.read(device).ok();
        match (target, old) {
            // What is adapted changes even if it begins with what there was.
            (Some(target), old) if old.as_ref() != Some(target) || matches!(own, Own::Within { .. }) => {
                self.entries.push(Entry { knob, old, new: target.clone(), own });
            }
            (None, Some(old)) => {
                self.entries.push(Entry { knob, new: old.clone(), old: Some(old), own });
            }
            _ => {}
        }
    }

    /// Notes that a knob has its final value: the device's limit, or what was asked for.
    pub(crate) fn settle(&mut self, knob: &Knob, limit: Option<Value>) {
        for entry in self.entries.iter_mut().filter(|entry| entry.knob == *knob) {
            entry.own = Own::New;
            if let Some(limit) = &limit {
                entry.new = limit.clone();
            }
        }
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

pub(crate) fn network_namespace() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |data| data.ino())
}
