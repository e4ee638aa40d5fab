//! What `/proc` shows of another process: its epoll instances, what they hold, its threads and
//! their waits.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use procfs::process::Process;
use rustix::fs::{fstat, minor};
use rustix::net::{AddressFamily, SocketType, socket};

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Descriptors {
    pub(super) epolls: Vec<i32>,
    pub(super) rings: usize,
}

impl Descriptors {
    /// # Errors
    /// `EACCES` without `CAP_SYS_PTRACE` over the process, `NotFound` if it has ended.
    pub(super) fn read(pid: u32) -> io::Result<Self> {
        let mut found = Self::default();
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let entry = entry?;
            // It may have been closed meanwhile.
            let Ok(link) = fs::read_link(entry.path()) else { continue };
            match link.to_str() {
                Some("anon_inode:[eventpoll]") => {
                    found.epolls.extend(entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
                }
                Some("anon_inode:[io_uring]") => found.rings += 1,
                _ => {}
            }
        }
        found.epolls.sort_unstable();
        Ok(found)
    }
}

/// A socket in an epoll instance. The inode tells it from an earlier one with the same descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HeldSocket {
    pub(super) descriptor: i32,
    pub(super) inode: u64,
}

#[derive(Debug)]
pub(super) struct EpollReader {
    /// The minor device number of the file system of sockets.
    sockets: u32,
}

impl EpollReader {
    pub(super) fn new() -> io::Result<Self> {
        let socket: OwnedFd = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        Ok(Self { sockets: minor(fstat(&socket)?.st_dev) })
    }

    /// The sockets that an epoll instance holds, in the order of their descriptors.
    ///
    /// # Errors
    /// `NotFound` if the process has closed the instance.
    pub(super) fn sockets(&self, pid: u32, epoll: i32) -> io::Result<Vec<HeldSocket>> {
        let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{epoll}"))?;
        Ok(text.lines().filter_map(|line| self.parse(line)).collect())
    }

    /// All descriptors that an epoll instance holds.
    ///
    /// # Errors
    /// `NotFound` if the process has closed the instance.
    pub(super) fn descriptors(&self, pid: u32, epoll: i32) -> io::Result<Vec<i32>> {
        let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{epoll}"))?;
        let descriptor = |line: &str| line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok();
        Ok(text.lines().filter_map(descriptor).collect())
    }

    /// As `tfd: 5 events: 19 data: 7f8700000005 pos:0 ino:3916ba sdev:9` (`ep_show_fdinfo`).
    fn parse(&self, line: &str) -> Option<HeldSocket> {
        let descriptor = line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok()?;
        let field = |name: &str| {
            let word = line.split_whitespace().find_map(|word| word.strip_prefix(name))?;
            u64::from_str_radix(word, 16).ok()
        };
        let inode = field("ino:")?;
        (field("sdev:")? == u64::from(self.sockets)).then_some(HeldSocket { descriptor, inode })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ThreadWait {
    Runs,
    /// `epoll_wait` and its successors, on this descriptor.
    Epoll(i32),
    /// `poll`, `select` and their successors.
    Poll,
    /// `io_uring_enter`.
    Ring,
    /// Anything else: a lock, a file, a receive.
    Other,
}

pub(super) fn threads(pid: u32) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// What a thread waits in now.
///
/// # Errors
/// `EPERM` without `CAP_SYS_PTRACE` over it, `NotFound` if it has ended.
pub(super) fn thread_wait(pid: u32, thread: i32) -> io::Result<ThreadWait> {
    Ok(parse_wait(&fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall"))?))
}

/// As `232 0x5 0x5643e9568ee0 0x200 0xffffffffffffffff 0x0 0x0 0x7ffcee577878 0x7f8721d162ad`, or
/// `running`.
fn parse_wait(text: &str) -> ThreadWait {
    let mut words = text.split_whitespace();
    let Some(number) = words.next().and_then(|word| word.parse::<libc::c_long>().ok()) else {
        return ThreadWait::Runs;
    };
    let first = words.next().and_then(|word| i64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let epoll = || first.map_or(ThreadWait::Other, |descriptor| ThreadWait::Epoll(descriptor as i32));
    match number {
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => epoll(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_epoll_wait => epoll(),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll | libc::SYS_select => ThreadWait::Poll,
        libc::SYS_ppoll | libc::SYS_pselect6 => ThreadWait::Poll,
        libc::SYS_io_uring_enter => ThreadWait::Ring,
        _ => ThreadWait::Other,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct RunTimes {
    /// Nanoseconds on a core.
    pub(super) run: u64,
    /// Nanoseconds in which it was ready to run while something else had the core.
    pub(super) ready: u64,
    /// How often it got a core: after each sleep, and after something else had it.
    pub(super) turns: u64,
}

/// Reads `/proc/PID/task/TID/schedstat`.
///
/// # Errors
/// `NotFound` if the thread has ended, or the kernel was built without `CONFIG_SCHED_INFO`.
pub(super) fn run_times(pid: u32, thread: i32) -> io::Result<RunTimes> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat"))?;
    let mut words = text.split_whitespace().map_while(|word| word.parse().ok());
    match (words.next(), words.next(), words.next()) {
        (Some(run), Some(ready), Some(turns)) => Ok(RunTimes { run, ready, turns }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// How often a thread went to sleep; 0 if it has ended.
pub(super) fn sleeps(thread: i32) -> u64 {
    let status = Process::new(thread).and_then(|thread| thread.status());
    status.ok().and_then(|status| status.voluntary_ctxt_switches).unwrap_or(0)
}

/// The name of a process, of at most 15 bytes.
pub(super) fn name(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).map(|name| name.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;

    use rustix::event::epoll;

    use super::*;

    #[test]
    fn an_epoll_instance_of_this_process_is_found_with_its_sockets_only() {
        let pid = std::process::id();
        let instance = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (one, _other) = UnixStream::pair().unwrap();
        let (pipe, _writer) = std::io::pipe().unwrap();
        for held in [one.as_fd(), pipe.as_fd()] {
            epoll::add(&instance, held, epoll::EventData::new_u64(1), epoll::EventFlags::IN).unwrap();
        }
        assert!(Descriptors::read(pid).unwrap().epolls.contains(&instance.as_raw_fd()));
        let sockets = EpollReader::new().unwrap().sockets(pid, instance.as_raw_fd()).unwrap();
        let descriptors: Vec<i32> = sockets.iter().map(|socket| socket.descriptor).collect();
        assert_eq!(descriptors, [one.as_raw_fd()]);
    }

    #[test]
    fn a_wait_is_told_by_its_system_call_and_first_argument() {
        let wait = |number: libc::c_long| {
            parse_wait(&format!("{number} 0x5 0x7f 0x200 0xffffffff 0x0 0x0 0x7f 0x7f"))
        };
        assert_eq!(wait(libc::SYS_epoll_pwait), ThreadWait::Epoll(5));
        assert_eq!(wait(libc::SYS_ppoll), ThreadWait::Poll);
        assert_eq!(wait(libc::SYS_io_uring_enter), ThreadWait::Ring);
        assert_eq!(wait(libc::SYS_read), ThreadWait::Other);
        for text in ["running\n", "", "-1 0x7f 0x7f"] {
            assert!(matches!(parse_wait(text), ThreadWait::Runs | ThreadWait::Other), "{text:?}");
        }
    }

    #[test]
    fn this_process_has_run() {
        let pid = std::process::id();
        let thread = threads(pid).unwrap()[0];
        assert!(run_times(pid, thread).unwrap().turns > 0);
        assert!(!name(pid).is_empty());
    }
}
