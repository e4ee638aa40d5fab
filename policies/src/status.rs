//! What a worker reports of itself and of how its queue is driven, and the status files in which a
//! process publishes that for `policies watch`: it rewrites its file beside the journals.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::controller::{QueueMode, QueueSettings, Reason};
use crate::host::process::{ProcessIdentity, network_namespace};
use crate::journal::JournalDir;
use crate::journal::files::{hold_file, is_file_held};
use crate::json::json_object;
use crate::signals::{Registration, on_termination};

/// The state of a worker, at most a second old. Times count from the worker's start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStatus {
    pub worker: usize,
    pub thread: i32,
    /// The id of the NAPI whose sockets it polls; 0 if none.
    pub napi: u32,
    /// The policy in effect, which may be less than the requested one.
    pub running: String,
    /// How its queue is driven at present. `None` unless kernel polling is in effect.
    pub queue: Option<QueueStatus>,
    /// Nanoseconds spent running tasks.
    pub running_ns: u64,
    /// Nanoseconds spent polling without blocking.
    pub polling_ns: u64,
    /// Nanoseconds spent waiting.
    pub parked_ns: u64,
}

json_object!(WorkerStatus: worker, thread, napi, running, queue, running_ns, polling_ns, parked_ns);

/// How a worker's queue is driven, and why. Times are whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueStatus {
    /// What drives the queue while the worker waits.
    pub mode: QueueMode,
    /// `gro_flush_timeout`.
    pub grace_time_us: u64,
    /// How long the worker's wait sleeps at most before it polls again, in timed mode; 0 in others.
    pub poll_interval_us: u64,
    /// `busy_poll_usecs`: how long a wait polls before it sleeps, beyond the first poll.
    pub spin_us: u64,
    /// Why the queue is driven this way, as `reason`.
    pub why: Reason,
}

json_object!(QueueStatus: mode, grace_time_us, poll_interval_us, spin_us, ..why);

impl QueueStatus {
    pub fn new(settings: &QueueSettings) -> Self {
        Self {
            mode: settings.mode,
            grace_time_us: micros(settings.grace_time),
            poll_interval_us: micros(settings.poll_interval),
            spin_us: micros(settings.spin),
            why: settings.why,
        }
    }

    /// The mode, with the times that count in it: `grace 20 µs`.
    pub fn mode_text(&self) -> String {
        let settings = QueueSettings {
            mode: self.mode,
            grace_time: Duration::from_micros(self.grace_time_us),
            poll_interval: Duration::from_micros(self.poll_interval_us),
            spin: Duration::from_micros(self.spin_us),
            ..QueueSettings::interrupts(self.why)
        };
        settings.mode_text()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

struct StatusContent {
    writer: ProcessIdentity,
    workers: Vec<WorkerStatus>,
}

json_object!(StatusContent: writer, workers);

/// The status file of this process. It is removed on drop, and on SIGINT and SIGTERM.
#[derive(Debug)]
pub struct StatusFile {
    path: PathBuf,
    /// Locked during a write, so that none follows the removal.
    state: Arc<Mutex<State>>,
    _termination: Option<Registration>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the file may not be written any more.
    is_closed: bool,
    /// The file, whose lock shows to other processes that this one runs.
    file: Option<File>,
}

impl StatusFile {
    /// Names the file for an interface of the calling thread's network namespace.
    /// [`StatusFile::write`] creates it.
    pub fn new(directory: &JournalDir, ifindex: u32) -> Self {
        let name = format!("{}-{ifindex}-{}.workers", network_namespace(), std::process::id());
        let path = directory.path().join(name);
        let state = Arc::new(Mutex::new(State::default()));
        let (removed_path, removed_state) = (path.clone(), Arc::clone(&state));
        // Without the handler, the next process that reads the directory removes the file.
        let termination = on_termination(move || remove(&removed_path, &removed_state)).ok();
        Self { path, state, _termination: termination }
    }

    /// Replaces the file's content atomically.
    pub fn write(&self, workers: Vec<WorkerStatus>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return Ok(());
        }
        // A name with the process id: if the process is killed here, another one can remove the
        // file.
        let new = self.path.with_extension("workers-new");
        let mut file = File::create(&new)?;
        // Without locks, the processes that see this one know that it runs.
        let _ = hold_file(&file);
        file.write_all(&serde_json::to_vec(&StatusContent { writer: ProcessIdentity::current(), workers })?)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        fs::rename(&new, &self.path)?;
        state.file = Some(file);
        Ok(())
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        remove(&self.path, &self.state);
    }
}

fn remove(path: &Path, state: &Mutex<State>) {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    state.is_closed = true;
    // The file may never have been written.
    let _ = fs::remove_file(path);
    if let Some(folder) = path.parent() {
        let _ = fs::remove_dir(folder);
    }
}

/// The workers of all running processes that serve an interface of the calling thread's network
/// namespace.
pub fn workers(directory: &JournalDir, ifindex: u32) -> Vec<WorkerStatus> {
    let prefix = format!("{}-{ifindex}-", network_namespace());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory.path()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(&prefix)) else { continue };
        if !name.ends_with(".workers") {
            continue;
        }
        let Ok(mut file) = File::open(entry.path()) else { continue };
        let mut text = Vec::new();
        if file.read_to_end(&mut text).is_err() {
            continue;
        }
        let is_held = || is_file_held(&file).unwrap_or(false);
        match serde_json::from_slice::<StatusContent>(&text) {
            Ok(content) if content.writer.is_alive() || is_held() => found.extend(content.workers),
            // Left by a process that was killed.
            _ => drop(fs::remove_file(entry.path())),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_status_says_the_mode_and_the_times_that_count() {
        let text = |settings| QueueStatus::new(&settings).mode_text();
        let short = Duration::from_micros(20);
        assert_eq!(text(QueueSettings::interrupts(Reason::Start)), "interrupts");
        let grace = QueueSettings::grace(short, Reason::Start);
        assert_eq!(text(grace), "grace 20 µs");
        assert_eq!(
            text(QueueSettings { spin: Duration::from_micros(3), ..grace }),
            "grace 20 µs, spins 3 µs"
        );
        let timed = QueueSettings::timed(short, short * 10, Reason::Start);
        assert_eq!(text(timed), "timed 20 µs");
        assert_eq!(text(QueueSettings { spin: short, ..timed }), "timed, never sleeps");
    }

    #[test]
    fn the_format_is_the_same_as_ever() {
        let text = r#"{"writer":{"pid":812,"start":4711,"pid_namespace":4026531836},"workers":[{"worker":0,"thread":813,"napi":5276,"running":"kernel-polling","queue":{"mode":"timed","grace_time_us":2000,"poll_interval_us":30,"spin_us":3,"reason":"many-packets"},"running_ns":1,"polling_ns":2,"parked_ns":3},{"worker":1,"thread":814,"napi":0,"running":"vanilla","queue":null,"running_ns":0,"polling_ns":0,"parked_ns":0}]}"#;
        let content: StatusContent = serde_json::from_str(text).unwrap();
        assert_eq!(content.workers[0].queue.unwrap().why, Reason::ManyPackets);
        assert_eq!(serde_json::to_string(&content).unwrap(), text);
    }

    #[test]
    fn every_reason_is_read_back_from_a_status() {
        let reasons = [
            Reason::Start,
            Reason::Fixed,
            Reason::FewPackets,
            Reason::ManyPackets,
            Reason::Saturated,
            Reason::Failed,
            Reason::Unsupervised,
        ];
        for why in reasons {
            let status = QueueStatus::new(&QueueSettings::interrupts(why));
            let json = serde_json::to_value(status).unwrap();
            assert_eq!(json["reason"], why.name(), "{json}");
            assert_eq!(serde_json::from_value::<QueueStatus>(json).unwrap(), status);
        }
    }

    fn worker(queue: Option<QueueStatus>) -> WorkerStatus {
        let (running, running_ns, polling_ns, parked_ns) = ("vanilla".to_owned(), 1, 2, 3);
        WorkerStatus { worker: 1, thread: 7, napi: 8193, running, queue, running_ns, polling_ns, parked_ns }
    }

    #[test]
    fn workers_are_listed_until_the_status_file_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let directory = JournalDir::at(folder.path().join("lull"));
        fs::create_dir(directory.path()).unwrap();
        let settings = QueueSettings::grace(Duration::from_micros(20), Reason::ManyPackets);
        let worker = worker(Some(QueueStatus::new(&settings)));
        let file = StatusFile::new(&directory, 5);
        file.write(vec![worker.clone()]).unwrap();
        assert_eq!(workers(&directory, 5), [worker]);
        assert_eq!(workers(&directory, 6), []);
        drop(file);
        assert_eq!(workers(&directory, 5), []);
        assert!(!directory.path().exists());
    }

    #[test]
    fn workers_of_a_process_that_can_not_be_seen_are_listed_until_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let directory = JournalDir::at(folder.path().join("lull"));
        fs::create_dir(directory.path()).unwrap();
        let worker = worker(None);
        let file = StatusFile::new(&directory, 5);
        file.write(vec![worker.clone()]).unwrap();
        // As if it was written in another PID namespace; in place, so that the lock stays.
        let mut content: serde_json::Value = serde_json::from_slice(&fs::read(&file.path).unwrap()).unwrap();
        content["writer"]["pid_namespace"] = serde_json::json!(1);
        fs::write(&file.path, content.to_string()).unwrap();
        assert_eq!(workers(&directory, 5), [worker]);
        crate::journal::files::let_go(file.state.lock().unwrap().file.take(), &file.path);
        assert_eq!(workers(&directory, 5), []);
        assert!(!file.path.exists());
    }
}
