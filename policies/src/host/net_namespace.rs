//! The network namespace of another process.

#![expect(
    unsafe_code,
    reason = "mount by libc, and rustix's unshare, unsafe for a flag that is not used here"
)]

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::process::network_namespace;

#[derive(Debug)]
pub(crate) struct NetNamespace {
    file: File,
    inode: u64,
}

impl NetNamespace {
    pub(crate) fn current() -> io::Result<Self> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// That of a process.
    ///
    /// # Errors
    /// `NotFound` if there is no such process, `EACCES` without `CAP_SYS_PTRACE` over it.
    #[cfg(feature = "tools")]
    pub(crate) fn of_process(pid: u32) -> io::Result<Self> {
        Self::open(format!("/proc/{pid}/ns/net"))
    }

    /// The namespace with an inode, if a process is in it or it has a name (`ip netns`).
    pub(crate) fn find(inode: u64) -> Option<Self> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let of_processes = processes.map(|entry| entry.path().join("ns/net"));
        let named = fs::read_dir("/run/netns").into_iter().flatten().flatten().map(|entry| entry.path());
        of_processes
            .chain(named)
            .find(|path| fs::metadata(path).is_ok_and(|data| data.ino() == inode))
            .and_then(|path| Self::open(path).ok())
    }

    fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::open(path)?;
        let inode = file.metadata()?.ino();
        Ok(Self { file, inode })
    }

    #[cfg(feature = "tools")]
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Moves the calling thread there, and threads that it starts later. Then `/sys` shows that
    /// namespace's interfaces to them: otherwise a name could mean an interface of each.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`.
    pub(crate) fn enter(&self) -> io::Result<()> {
        if network_namespace() == self.inode {
            return Ok(());
        }
        unshare_mounts()?;
        // Mounts made here must not propagate.
        mount(c"none", c"/", c"none", libc::MS_REC | libc::MS_PRIVATE)?;
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
        // sysfs shows the network namespace in which it was mounted.
        mount(c"sysfs", c"/sys", c"sysfs", 0)
    }

    /// Runs `action` there: on the calling thread if it is there already, else on another one.
    ///
    /// # Errors
    /// As [`NetNamespace::enter`], or if `action` panics.
    pub(crate) fn run<T: Send>(&self, action: impl FnOnce() -> T + Send) -> io::Result<T> {
        if network_namespace() == self.inode {
            return Ok(action());
        }
        let in_namespace = || -> io::Result<T> {
            self.enter()?;
            Ok(action())
        };
        thread::scope(|scope| scope.spawn(in_namespace).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread in the network namespace panicked")))
    }
}

/// By libc, which is built anyway: rustix takes a sixth longer to build with its feature `mount`.
fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: libc::c_ulong) -> io::Result<()> {
    // SAFETY: the strings end with a NUL byte and outlive the call, which is given no data.
    let result =
        unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn unshare_mounts() -> io::Result<()> {
    let flags = UnshareFlags::NEWNS;
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: the call is unsafe only for UnshareFlags::FILES, which separates the descriptor
    // tables of threads; this is another flag.
    Ok(unsafe { unshare_unsafe(flags) }?)
}
