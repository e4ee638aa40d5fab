//! What a running process's workers do, for others to see: a file beside its journal, anew each second.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::JournalDir;
use crate::journal::{Process, network_namespace};
use crate::signals::{Registration, on_termination};

/// A worker, as it was within the last second. Times are since its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Which, from 0.
    pub worker: usize,
    /// Its thread's id.
    pub thread: i32,
    /// The NAPI whose sockets it polls; 0 is none.
    pub napi: u32,
    /// What it really runs.
    pub running: String,
    /// Nanoseconds in which tasks ran.
    pub running_ns: u64,
    /// Nanoseconds in which it polled with work at hand.
    pub polling_ns: u64,
    /// Nanoseconds in which it waited.
    pub parked_ns: u64,
}

#[derive(Serialize, Deserialize)]
struct File {
    writer: Process,
    workers: Vec<WorkerStatus>,
}

/// A process's file. It goes when this is dropped, and when the process is told to end.
#[derive(Debug)]
pub struct StatusFile {
    path: PathBuf,
    /// Held while it is written, and taken when it is to be there no more.
    wanted: Arc<Mutex<bool>>,
    _termination: Option<Registration>,
}

impl StatusFile {
    /// Names the file for an interface of this thread's network namespace; nothing is written yet.
    pub fn new(directory: &JournalDir, ifindex: u32) -> Self {
        let name = format!("{}-{ifindex}-{}.workers", network_namespace(), std::process::id());
        let path = directory.path().join(name);
        let wanted = Arc::new(Mutex::new(true));
        let (gone, still) = (path.clone(), Arc::clone(&wanted));
        // Without it the file is left to the next process that reads the folder.
        let termination = on_termination(move || remove(&gone, &still)).ok();
        Self { path, wanted, _termination: termination }
    }

    /// Writes it anew, whole or not at all.
    pub fn write(&self, workers: Vec<WorkerStatus>) -> io::Result<()> {
        let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        if !*wanted {
            return Ok(());
        }
        // Under a name that says whose it is, for when the process is killed right here.
        let new = self.path.with_extension("workers-new");
        fs::write(&new, serde_json::to_vec(&File { writer: Process::this(), workers })?)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        fs::rename(&new, &self.path)?;
        Ok(())
    }
}

impl Drop for StatusFile {
    fn drop(&mut self) {
        remove(&self.path, &self.wanted);
    }
}

fn remove(path: &Path, wanted: &Mutex<bool>) {
    let mut wanted = wanted.lock().unwrap_or_else(PoisonError::into_inner);
    *wanted = false;
    // It may not have been written.
    let _ = fs::remove_file(path);
    if let Some(folder) = path.parent() {
        let _ = fs::remove_dir(folder);
    }
}

/// The workers of all running processes that serve an interface of this network namespace.
pub fn workers(directory: &JournalDir, ifindex: u32) -> Vec<WorkerStatus> {
    let prefix = format!("{}-{ifindex}-", network_namespace());
    let mut found = Vec::new();
    for entry in fs::read_dir(directory.path()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.starts_with(&prefix)) else { continue };
        if !name.ends_with(".workers") {
            continue;
        }
        let Ok(file) = fs::read(entry.path()) else { continue };
        match serde_json::from_slice::<File>(&file) {
            Ok(file) if file.writer.is_alive() => found.extend(file.workers),
            // What a killed process has left.
            _ => drop(fs::remove_file(entry.path())),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_seen_while_their_process_keeps_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let directory = JournalDir::at(folder.path().join("lull"));
        fs::create_dir(directory.path()).unwrap();
        let worker = WorkerStatus {
            worker: 1,
            thread: 7,
            napi: 8193,
            running: "vanilla".to_owned(),
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
}
