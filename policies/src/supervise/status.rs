//! Status files: what the workers of a running process do, for `policies watch`. A process rewrites
//! its file beside the journals every second.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::host::identity::{ProcessIdentity, network_namespace};
use crate::journal::JournalDir;
use crate::journal::locks::{hold_file, is_file_held};
use crate::signals::{Registration, on_termination};

pub use crate::worker_status::{QueueStatus, WorkerStatus};

#[derive(Serialize, Deserialize)]
struct StatusContent {
    writer: ProcessIdentity,
    workers: Vec<WorkerStatus>,
}

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
    use crate::controller::{Budgets, QueueSettings, Reason};

    #[test]
    fn workers_are_listed_until_the_status_file_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let directory = JournalDir::at(folder.path().join("lull"));
        fs::create_dir(directory.path()).unwrap();
        let budgets = Budgets { latency: "20".parse().unwrap(), ..Budgets::default() };
        let settings = QueueSettings::grace(budgets.latency.delay(), Reason::Tries);
        let worker = WorkerStatus {
            worker: 1,
            thread: 7,
            napi: 8193,
            running: "vanilla".to_owned(),
            queue: Some(QueueStatus::new(&settings, Some(budgets))),
            running_ns: 1,
            polling_ns: 2,
            parked_ns: 3,
        };
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
        let worker = WorkerStatus {
            worker: 0,
            thread: 7,
            napi: 0,
            running: "vanilla".to_owned(),
            queue: None,
            running_ns: 1,
            polling_ns: 2,
            parked_ns: 3,
        };
        let file = StatusFile::new(&directory, 5);
        file.write(vec![worker.clone()]).unwrap();
        // As if it was written in another PID namespace; in place, so that the lock stays.
        let mut content: serde_json::Value = serde_json::from_slice(&fs::read(&file.path).unwrap()).unwrap();
        content["writer"]["pid_namespace"] = serde_json::json!(1);
        fs::write(&file.path, content.to_string()).unwrap();
        assert_eq!(workers(&directory, 5), [worker]);
        crate::journal::locks::let_go(file.state.lock().unwrap().file.take(), &file.path);
        assert_eq!(workers(&directory, 5), []);
        assert!(!file.path.exists());
    }
}
