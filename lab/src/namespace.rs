//! Network namespaces without names: they live as long as a descriptor or a process of theirs, so a
//! lab that is killed leaves none behind.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::thread;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// A network namespace.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Makes an empty one.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`.
    pub fn new() -> io::Result<Self> {
        on_thread(|| {
            unshare(UnshareFlags::NEWNET)?;
            File::open("/proc/thread-self/ns/net").map(Self)
        })
    }

    /// Opens one by a path below `/proc`.
    pub fn open(path: &str) -> io::Result<Self> {
        File::open(path).map(Self)
    }

    /// Its descriptor.
    pub fn file(&self) -> &File {
        &self.0
    }

    /// Runs `action` on a thread of its own in this namespace.
    pub fn run<T: Send>(&self, action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        on_thread(|| {
            self.enter()?;
            action()
        })
    }

    fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Moves the calling process into this namespace, with a `/sys` that shows it and a `/run` of its
    /// own. To be called before any other thread is started.
    pub fn enter_process(&self) -> io::Result<()> {
        self.enter()?;
        unshare(UnshareFlags::NEWNS)?;
        // Nothing that is mounted here is to be seen outside.
        mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
        // sysfs shows the network namespace that it was mounted in.
        mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)?;
        mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)?;
        Ok(())
    }
}

fn on_thread<T: Send>(action: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| scope.spawn(action).join())
        .unwrap_or_else(|_| Err(io::Error::other("the namespace's thread panicked")))
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: the call is unsafe for UnshareFlags::FILES alone, which parts the descriptor tables of
    // threads; both callers give another flag.
    Ok(unsafe { unshare_unsafe(flags) }?)
}
