//! The web servers of Table 2, and the files that they serve.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::config::{PaperConfig, latency_budgets};
use super::programs::{Program, Programs};
use crate::experiment::{Contender, ServerCommand};
use crate::testbed::SERVER_INTERFACE;

/// What the names of the folders begin with.
const PREFIX: &str = "lull-lab-web-";
/// A folder that is younger may not be locked yet.
const YOUNG: Duration = Duration::from_secs(60);

/// A folder with a file of each size, and room for nginx's own files. Dropping it removes it. A run that is killed or interrupted
/// leaves it behind, and the next run removes it.
#[derive(Debug)]
pub(super) struct WebRoot {
    folder: TempDir,
    /// The folder itself, locked for as long as it is in use.
    _lock: File,
}

impl WebRoot {
    /// Creates the folder. A file is named by its size in bytes.
    pub(super) fn create(sizes: &[usize]) -> io::Result<Self> {
        remove_abandoned(&std::env::temp_dir(), YOUNG);
        // No other user can have made it, or put links into it.
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let lock = File::open(folder.path())?;
        lock.lock()?;
        for size in sizes {
            fs::write(folder.path().join(size.to_string()), vec![b'x'; *size])?;
        }
        Ok(Self { folder, _lock: lock })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes this user's folders that no run uses any more. What can't be removed stays.
fn remove_abandoned(parent: &Path, young: Duration) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        // Doesn't follow a link.
        let Ok(metadata) = entry.metadata() else { continue };
        let own = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
        let age = metadata.modified().ok().and_then(|modified| modified.elapsed().ok());
        if own
            && age.is_some_and(|age| age >= young)
            && File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok())
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// nginx as it runs, and the same attached to, with the paper's rows that are beside them.
pub(super) fn nginx_servers(
    config: &PaperConfig,
    nginx: &Program,
    root: &WebRoot,
) -> io::Result<Vec<(Contender, Option<&'static str>)>> {
    let attached =
        Contender::attached(&nginx_command(nginx, root)?, &latency_budgets(&config.attached_budgets));
    let published = |contender: Contender| {
        let row = if contender.is_attached() { "F-Stack" } else { "Vanilla" };
        (contender, Some(row))
    };
    Ok(attached.into_iter().map(published).collect())
}

/// This project's web server, where it is built.
pub(super) fn own_servers(programs: &Programs, root: &WebRoot) -> Vec<(Contender, Option<&'static str>)> {
    let Some(web) = &programs.web else { return Vec::new() };
    let server = |policy| Contender::Program { server: web_command(web, policy, root), attached: None };
    ["vanilla", "kernel-polling"].map(|policy| (server(policy), None)).into()
}

/// nginx with one worker, in the foreground, with files from the page cache.
fn nginx_command(nginx: &Program, root: &WebRoot) -> io::Result<ServerCommand> {
    let (path, address) = (root.path().display(), ServerCommand::address());
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {path}/{name};\n"))
        .collect();
    // The idle connection by which it is attached to has to stay open.
    let config = format!(
        "daemon off; user root; pid {path}/pid; error_log {path}/error.log;\n\
         worker_processes 1;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; open_file_cache max=100; open_file_cache_valid 1h;\n\
         keepalive_requests 100000000; keepalive_timeout 1h; {temporary}\n\
         server {{ listen {address} backlog=4096; root {path}; }} }}\n"
    );
    let file = root.path().join("nginx.conf");
    fs::write(&file, config)?;
    let log = root.path().join("error.log");
    let arguments = ["-c".into(), file.display().to_string(), "-e".into(), log.display().to_string()];
    Ok(ServerCommand { name: "nginx".to_owned(), program: nginx.path.clone(), arguments: arguments.into() })
}

/// This project's web server with one worker, under a policy.
fn web_command(web: &Program, policy: &str, root: &WebRoot) -> ServerCommand {
    let address = ServerCommand::address();
    let arguments = [
        format!("RUNTIME_POLICY={policy}"),
        format!("RUNTIME_INTERFACE={SERVER_INTERFACE}"),
        "RUNTIME_WORKERS=1".to_owned(),
        web.path.display().to_string(),
        "--user".to_owned(),
        "root".to_owned(),
        root.path().display().to_string(),
        "--listen".to_owned(),
        address.to_string(),
    ];
    ServerCommand {
        name: format!("Lull's web, {policy}"),
        program: PathBuf::from("/usr/bin/env"),
        arguments: arguments.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_a_killed_run_has_left_are_removed_and_those_in_use_stay() {
        let parent = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            let path = parent.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("64"), "x").unwrap();
            path
        };
        let (left, used, other) = (folder("lull-lab-web-a"), folder("lull-lab-web-b"), folder("other"));
        let lock = File::open(&used).unwrap();
        lock.lock().unwrap();
        remove_abandoned(parent.path(), YOUNG);
        assert!(left.exists(), "it is young");
        remove_abandoned(parent.path(), Duration::ZERO);
        assert!(!left.exists() && used.exists() && other.exists());
    }
}
