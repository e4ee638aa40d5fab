//! A file with the process ID.

use std::path::{Path, PathBuf};

/// A file with the process ID. Removed when it is dropped.
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file. If the process that it named before still runs, a warning says so.
    pub fn write(path: &Path) -> Result<Self, String> {
        // A daemon's working directory changes.
        let absolute = std::path::absolute(path);
        let path = &absolute.map_err(|error| format!("-P: {}: {error}", path.display()))?;
        if let Some(other) =
            std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i32>().ok())
            && Path::new("/proc").join(other.to_string()).exists()
        {
            tracing::warn!("overwriting {}, which names a running process, {other}", path.display());
        }
        std::fs::write(path, format!("{}\n", std::process::id()))
            .map_err(|error| format!("-P: cannot write {}: {error}", path.display()))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A server that was started meanwhile may have taken the file over.
        let named = std::fs::read_to_string(&self.0).ok().and_then(|text| text.trim().parse::<u32>().ok());
        if named == Some(std::process::id()) {
            // Fails if the user may not write to the directory. A leftover file does no harm.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}
