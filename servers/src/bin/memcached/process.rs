//! What a server's process sets up: the allocator, limits, inherited sockets, a file with its ID,
//! and its user.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use nix::unistd::{Group, User, initgroups, setgid, setuid};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

/// Allocations from this size on, in bytes, are mapped individually and returned to the kernel when
/// freed.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: i32 = 128 << 10;

/// Fixes the allocator's mmap threshold. By default it rises whenever a large allocation is freed,
/// and then the hash tables that the store outgrows stay resident in addition to the limit
/// (`mallopt(3)`, `M_MMAP_THRESHOLD`). musl's is fixed.
#[allow(unsafe_code)]
pub fn fix_mmap_threshold() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a parameter of the allocator before other threads use it. Fails without effect
    // if another allocator is linked.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD)
    };
}

/// The listening sockets that systemd passes (socket activation).
pub fn inherited_listeners() -> Result<Vec<TcpListener>, String> {
    let mut passed = listenfd::ListenFd::from_env();
    (0..passed.len())
        .map(|index| match passed.take_tcp_listener(index) {
            Ok(Some(listener)) => Ok(listener),
            Ok(None) => Err("systemd passed a descriptor that is in use already".into()),
            Err(error) => Err(format!("systemd passed a descriptor that is not a TCP socket: {error}")),
        })
        .collect()
}

/// Descriptors of the process: standard streams, files of the host's settings, netlink sockets.
const PROCESS_DESCRIPTORS: u64 = 128;
/// Descriptors of a worker: epoll instances, rings, eventfds, and connections that wait to be
/// refused.
const WORKER_DESCRIPTORS: u64 = 16;

/// Raises the limit of open files to `descriptors` and what each worker needs beside them, which
/// also has a TCP and a UDP socket for each address.
pub fn raise_descriptor_limit(descriptors: u64, workers: u64, addresses: u64) {
    let others = PROCESS_DESCRIPTORS + workers * (WORKER_DESCRIPTORS + 2 * addresses);
    let wanted = descriptors.saturating_add(others);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    // Only root may raise the maximum.
    let raised = Rlimit { current: Some(wanted), maximum: maximum.map(|maximum| maximum.max(wanted)) };
    let most = Rlimit { current: maximum.map(|maximum| maximum.min(wanted)), maximum };
    let result = setrlimit(Resource::Nofile, raised).or_else(|_| setrlimit(Resource::Nofile, most));
    let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if result.is_err() || now < wanted {
        tracing::warn!(
            "the limit of open files is {now}, and up to {wanted} may be open: raise it (ulimit -n {wanted}, or \
             LimitNOFILE={wanted} in a unit of systemd), or limit connections"
        );
    }
}

/// A file with the process ID. Removed when it is dropped.
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file. If the process that it named before still runs, a warning says so.
    pub fn write(path: &Path) -> Result<Self, String> {
        if let Some(other) = named_in(path).filter(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            tracing::warn!("overwriting {}, which names a running process, {other}", path.display());
        }
        std::fs::write(path, format!("{}\n", std::process::id()))
            .map_err(|error| format!("-P: cannot write {}: {error}", path.display()))?;
        Ok(Self(path.to_owned()))
    }
}

fn named_in(path: &Path) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // A server that was started meanwhile may have taken the file over.
        if named_in(&self.0) == Some(std::process::id()) {
            // Fails if the user may not write to the directory. A leftover file does no harm.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// The user that the server runs as.
pub struct RunAsUser(User);

impl RunAsUser {
    pub fn look_up(name: &str) -> Result<Self, String> {
        match User::from_name(name) {
            Ok(Some(user)) => Ok(Self(user)),
            Ok(None) => Err(format!("-u: there is no user {name:?}")),
            Err(error) => Err(format!("-u: cannot look up {name:?}: {error}")),
        }
    }

    /// Refuses to serve as root unless a user was named, as memcached does.
    pub fn require(name: Option<&str>) -> Result<(), &'static str> {
        let is_root = rustix::process::getuid().is_root() || geteuid().is_root();
        match name {
            None if is_root => {
                Err("can't run as root without the -u switch; give -u USER, or -u root to stay root")
            }
            _ => Ok(()),
        }
    }

    /// Whether the process is root, and gives that up.
    pub fn gives_up_root(&self) -> bool {
        geteuid().is_root() && !self.0.uid.is_root()
    }

    /// Switches all threads to the user and its groups, if the process is root.
    pub fn switch(&self) -> Result<(), String> {
        if !geteuid().is_root() {
            return Ok(());
        }
        let name = std::ffi::CString::new(self.0.name.as_str()).map_err(|error| error.to_string())?;
        let failed =
            |what: &'static str| move |error: nix::Error| format!("-u {}: {what}: {error}", self.0.name);
        initgroups(&name, self.0.gid).map_err(failed("cannot set supplementary groups"))?;
        setgid(self.0.gid).map_err(failed("cannot set the group"))?;
        setuid(self.0.uid).map_err(failed("cannot set the user"))?;
        let group = Group::from_gid(self.0.gid).ok().flatten().map(|group| group.name);
        let group = group.unwrap_or_else(|| self.0.gid.to_string());
        tracing::info!("running as {}:{group}", self.0.name);
        Ok(())
    }
}
