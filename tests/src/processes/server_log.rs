//! Standard error of a server that a test has started.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What a server writes to standard error. A test fails at its end if the server has panicked:
/// panics of a connection are contained, and could not be seen otherwise. So it does if
/// ThreadSanitizer, with which the server may be built, has reported a race.
#[derive(Debug)]
pub(crate) struct ServerLog(File);

impl ServerLog {
    pub(crate) fn new() -> io::Result<Self> {
        let file = rustix::fs::memfd_create("stderr", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(Self(file.into()))
    }

    /// For the server's process.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.0.try_clone()
    }

    pub(crate) fn read(&self) -> String {
        let length = self.0.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        // The file's own position is the server's.
        let _ = self.0.read_exact_at(&mut bytes, 0);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for ServerLog {
    fn drop(&mut self) {
        let text = self.read();
        let has_panicked = text.contains("panicked");
        let has_raced = text.contains("WARNING: ThreadSanitizer");
        let what = match (has_panicked, has_raced) {
            (true, _) => "the server has panicked",
            (false, true) => "the server has a data race",
            (false, false) => "the server's standard error",
        };
        if std::thread::panicking() {
            eprintln!("{what}:\n{text}");
        } else {
            assert!(!has_panicked && !has_raced, "{what}:\n{text}");
        }
    }
}
