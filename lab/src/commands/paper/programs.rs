//! The web servers: nginx, and the static-file server among the examples of `lull-adapters`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use tempfile::TempDir;

use super::config::{PaperConfig, latency_budgets};
use crate::experiment::{Contender, ServerCommand};
use crate::testbed::SERVER_INTERFACE;

#[derive(Debug, Clone, Default, Serialize)]
pub struct Programs {
    pub(super) nginx: Option<PathBuf>,
    /// The example `static_files` of `lull-adapters`, in the folder `examples` beside this program.
    static_files: Option<PathBuf>,
}

/// What builds the example.
pub(super) const BUILD: &str = "cargo build --release -p lull-adapters --example static_files";

impl Programs {
    /// Looks for them in the folders of `PATH` and in those of system programs.
    pub(super) fn find() -> Self {
        let beside = std::env::current_exe().ok();
        let beside = beside.and_then(|path| Some(path.parent()?.join("examples/static_files")));
        Self { nginx: find("nginx"), static_files: beside.filter(|path| path.is_file()) }
    }

    /// The first line that nginx prints of its version.
    pub(super) fn version(&self) -> Option<String> {
        let output = Command::new(self.nginx.as_ref()?).arg("-v").output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        Some(String::from_utf8_lossy(&text).lines().next()?.trim().to_owned())
    }

    /// The servers of Table 2, with the paper's rows that are beside them: nginx as it runs and
    /// attached to, and Lull's static files under two policies where they are built.
    pub(super) fn web_servers(
        &self,
        config: &PaperConfig,
        nginx: &Path,
        root: &WebRoot,
    ) -> (Vec<Contender>, Vec<Option<&'static str>>) {
        let mut contenders =
            Contender::attached(&root.nginx(nginx), &latency_budgets(&config.attached_budgets));
        let mut published = vec![Some("Vanilla")];
        published.resize(contenders.len(), Some("F-Stack"));
        for policy in ["vanilla", "kernel-polling"] {
            if let Some(program) = &self.static_files {
                let server = root.static_files(program, policy);
                contenders.push(Contender::Program { server, attached: None });
                published.push(None);
            }
        }
        (contenders, published)
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian's nginx is a program for root, and not on the path of others.
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(name)).find(|path| path.is_file())
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

    fn nginx(&self, nginx: &Path) -> ServerCommand {
        let file = |name: &str| self.0.path().join(name).display().to_string();
        let arguments = ["-c".to_owned(), file("nginx.conf"), "-e".to_owned(), file("error.log")];
        ServerCommand { name: "nginx".to_owned(), program: nginx.to_owned(), arguments: arguments.into() }
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
