//! The web servers: nginx, and the static-file server among the examples of `lull-adapters`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use policies::controller::PollInterval;
use serde::Serialize;
use tempfile::TempDir;

use crate::experiment::{Contender, ServerCommand};
use crate::testbed::SERVER_INTERFACE;

#[derive(Debug, Clone, Default, Serialize)]
pub struct Programs {
    /// The first line that nginx prints of its version.
    pub(super) nginx: Option<String>,
    /// The example `static_files` of `lull-adapters`, in the folder `examples` beside this program.
    pub(super) static_files: Option<PathBuf>,
}

/// On the path of root.
const NGINX: &str = "nginx";
/// What builds the example.
pub(super) const BUILD: &str = "cargo build --release -p lull-adapters --example static_files";

impl Programs {
    pub(super) fn find() -> Self {
        let beside = std::env::current_exe().ok();
        let beside = beside.and_then(|path| Some(path.parent()?.join("examples/static_files")));
        // To standard error.
        let version = Command::new(NGINX).arg("-v").output().ok();
        let version = version.map(|it| String::from_utf8_lossy(&it.stderr).trim().to_owned());
        Self { nginx: version, static_files: beside.filter(|path| path.is_file()) }
    }

    /// The servers of Table 2: nginx as it runs and attached to, and Lull's static files under two
    /// policies where they are built.
    pub(super) fn web_servers(&self, root: &WebRoot, intervals: &[PollInterval]) -> Vec<Contender> {
        let mut contenders = Contender::attached(&root.nginx(), intervals);
        let static_files = self.static_files.iter().flat_map(|program| {
            ["vanilla", "kernel-polling"].map(|policy| root.static_files(program, policy))
        });
        contenders.extend(static_files.map(|server| Contender::Program { server, attached: None }));
        contenders
    }
}

/// A folder with a file of each size, and room for nginx's own files.
pub(super) struct WebRoot(TempDir);

impl WebRoot {
    /// A file is named by its size in bytes.
    pub(super) fn create(sizes: &[usize]) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("lull-lab-web-").tempdir()?;
        for size in sizes {
            fs::write(folder.path().join(size.to_string()), vec![b'x'; *size])?;
        }
        let (path, address) = (folder.path().display(), ServerCommand::address());
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {path}/{name};\n"))
            .collect();
        // One worker, in the foreground, with files from the page cache. The idle connection by
        // which it is attached to has to stay open.
        let config = format!(
            "daemon off; user root; pid {path}/pid; error_log {path}/error.log;\n\
             worker_processes 1;\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; open_file_cache max=100; open_file_cache_valid 1h;\n\
             keepalive_requests 100000000; keepalive_timeout 1h; {temporary}\n\
             server {{ listen {address} backlog=4096; root {path}; }} }}\n"
        );
        fs::write(folder.path().join("nginx.conf"), config)?;
        Ok(Self(folder))
    }

    fn nginx(&self) -> ServerCommand {
        let file = |name: &str| self.0.path().join(name).display().to_string();
        let arguments = ["-c".to_owned(), file("nginx.conf"), "-e".to_owned(), file("error.log")];
        ServerCommand { name: NGINX.to_owned(), program: NGINX.into(), arguments: arguments.into() }
    }

    fn static_files(&self, program: &Path, policy: &str) -> ServerCommand {
        let arguments = [
            format!("RUNTIME_POLICY={policy}"),
            format!("RUNTIME_INTERFACE={SERVER_INTERFACE}"),
            "RUNTIME_WORKERS=1".to_owned(),
            program.display().to_string(),
            ServerCommand::address().to_string(),
            self.0.path().display().to_string(),
        ];
        ServerCommand {
            name: format!("Lull's static_files, {policy}"),
            program: PathBuf::from("/usr/bin/env"),
            arguments: arguments.into(),
        }
    }
}
