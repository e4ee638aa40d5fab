//! Unnamed network namespaces. The kernel frees one when its last descriptor is closed and its last
//! process exits, so a killed lab leaves none behind.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::thread;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    pub fn new() -> io::Result<Self> {
        run_on_new_thread(|| {
            unshare(UnshareFlags::NEWNET)?;
            File::open("/proc/thread-self/ns/net").map(Self)
        })
    }

    /// Opens a namespace by its path, for example `/proc/PID/ns/net`.
    pub fn open(path: &str) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// The descriptor that keeps the namespace alive.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Runs `action` on a new thread in this namespace, and waits for it.
    pub fn run<T: Send>(&self, action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        run_on_new_thread(|| {
            self.enter()?;
            action()
        })
    }

    fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Moves the calling process into this namespace and into a new mount namespace, in which
    /// `/sys` shows this network namespace and `/run` is empty. Call it before the process starts
    /// threads.
    pub fn enter_process(&self) -> io::Result<()> {
        self.enter()?;
        unshare(UnshareFlags::NEWNS)?;
        // Mounts made here must not propagate to the host.
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
        // sysfs shows the network namespace in which it was mounted.
        mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)?;
        mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)?;
        Ok(())
    }
}

fn run_on_new_thread<T: Send>(action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| scope.spawn(action).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread in the network namespace panicked")))
}

#[allow(unsafe_code)]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: the call is unsafe only for UnshareFlags::FILES, which separates the descriptor
    // tables of threads; both callers pass another flag.
    Ok(unsafe { unshare_unsafe(flags) }?)
}
