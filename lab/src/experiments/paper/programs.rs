//! Programs that a part needs, and their versions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use serde::Serialize;

/// Programs of other projects, where they are installed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Programs {
    /// memcached.
    pub memcached: Option<Program>,
    /// nginx.
    pub nginx: Option<Program>,
    /// This project's web server, beside this program.
    pub web: Option<Program>,
}

/// A program.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// What it says of its version.
    pub version: String,
    /// The file's length in bytes and when it was modified: builds of one version differ. `None` if it can't be read.
    pub build: Option<(u64, SystemTime)>,
}

impl Programs {
    /// Looks for them in the folders of `PATH` and in those of system programs.
    pub fn find() -> Self {
        let beside = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.to_owned()));
        let web = beside.map(|folder| folder.join("web")).filter(|path| path.is_file());
        Self {
            memcached: find("memcached").map(|path| Program::new(path, "-V")),
            nginx: find("nginx").map(|path| Program::new(path, "-v")),
            web: web.map(|path| Program::new(path, "--version")),
        }
    }
}

impl Program {
    fn new(path: PathBuf, flag: &str) -> Self {
        let version = version(&path, flag).unwrap_or_else(|| "unknown version".to_owned());
        let build = build(&path);
        Self { path, version, build }
    }
}

/// What changes when a program is built again: its file's length in bytes, and when it was modified.
pub(super) fn build(program: &Path) -> Option<(u64, SystemTime)> {
    let file = std::fs::metadata(program).ok()?;
    Some((file.len(), file.modified().ok()?))
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian's nginx is a program for root, and not on the path of others.
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The first line that a program prints of its version.
fn version(program: &Path, flag: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let line = String::from_utf8_lossy(&text).lines().next()?.trim().to_owned();
    Some(line).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_built_again_is_another_one_with_the_same_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("web");
        let built = |content: &str| {
            std::fs::write(&path, content).unwrap();
            Program::new(path.clone(), "--version")
        };
        let (first, second) = (built("one"), built("three"));
        assert_eq!(first.version, second.version);
        assert_ne!(first, second);
    }
}
