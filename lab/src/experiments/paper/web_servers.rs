//! The web servers of Table 2, and the files that they serve.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::super::fleet_comparison::{Contender, ServerCommand};
use super::config::{PaperConfig, latency_budgets};
use super::programs::{Program, Programs};
use crate::testbed::{SERVER_ADDRESS, SERVER_INTERFACE};

/// A folder with a file of each size, and room for nginx's own files. Dropping it removes it.
#[derive(Debug)]
pub(super) struct WebRoot(TempDir);

impl WebRoot {
    /// Creates the folder. A file is named by its size in bytes.
    pub(super) fn create(sizes: &[usize]) -> io::Result<Self> {
        // No other user can have made it, or put links into it.
        let root = Self(tempfile::Builder::new().prefix("lull-lab-web-").tempdir()?);
        for size in sizes {
            fs::write(root.path().join(size.to_string()), vec![b'x'; *size])?;
        }
        Ok(root)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A server that takes part, with the row of the paper that is beside it.
#[derive(Debug)]
pub(super) struct WebContestant {
    pub(super) contender: Contender,
    pub(super) published: Option<&'static str>,
    /// Whether the part is measured without it if it doesn't start.
    pub(super) optional: bool,
}

/// nginx as it runs, the same attached to, and this project's web server where it is built.
pub(super) fn contestants(
    config: &PaperConfig,
    programs: &Programs,
    nginx: &Program,
    root: &WebRoot,
) -> io::Result<Vec<WebContestant>> {
    let nginx = nginx_command(nginx, root)?;
    let mut contestants: Vec<WebContestant> =
        Contender::attached(&nginx, &latency_budgets(&config.attached_budgets))
            .into_iter()
            .map(|contender| {
                let published = if contender.is_attached() { "F-Stack" } else { "Vanilla" };
                WebContestant { contender, published: Some(published), optional: false }
            })
            .collect();
    for policy in programs.web.iter().flat_map(|_| ["vanilla", "kernel-polling"]) {
        let Some(web) = &programs.web else { continue };
        let server = web_command(web, policy, root);
        let contender = Contender::Program { server, attached: None };
        contestants.push(WebContestant { contender, published: None, optional: true });
    }
    Ok(contestants)
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

/// The address of a file.
pub(super) fn url(size: usize) -> String {
    format!("http://{SERVER_ADDRESS}:{}/{size}", ServerCommand::address().port())
}
