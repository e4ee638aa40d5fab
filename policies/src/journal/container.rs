//! Journals in a container. Its mounts may hide the host's `/run/lull`, while the network card is
//! the host's (`--net=host`): two containers would then set the same queues, and the record of the
//! old settings would end with its container.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;

use crate::host::process::is_in_first_pid_namespace;
use crate::socket_options::peer_credentials;

const MOUNT_THE_HOSTS: &str =
    "mount the host's there (docker run -v /run/lull:/run/lull, in Kubernetes a hostPath volume)";

/// Says to the processes of a network namespace in which directory one of them has its journals of
/// an interface: the name of a Unix socket in the abstract namespace (unix(7)), which belongs to the
/// network namespace. No mount hides it, and the kernel removes it when its process ends. Every user
/// may take such a name, so it counts only if root, or this process's user, listens on it.
#[derive(Debug)]
pub(super) struct Claim {
    _socket: OwnedFd,
}

impl Claim {
    /// # Errors
    /// `AlreadyExists` if a process that runs has journals of the interface in another directory.
    pub(super) fn make(directory: &Path, ifindex: u32) -> io::Result<Self> {
        let found = fs::metadata(directory)?;
        let prefix = format!("lull/{ifindex}/");
        let own = format!("{prefix}{}.{}/", found.dev(), found.ino());
        // Before it looks: of two at the same time at least one sees the other. A second journal of
        // this process, or one whose id is the same in another namespace, has the next number.
        let socket = (0..u16::MAX)
            .find_map(|number| bind_to(&format!("{own}{}.{number}", std::process::id())).transpose())
            .unwrap_or_else(|| Err(io::ErrorKind::AddrInUse.into()))?;
        // Of the calling thread, which may be alone in another network namespace.
        let sockets = fs::read_to_string("/proc/thread-self/net/unix")?;
        if others(&sockets, &prefix, &own).any(is_of_root_or_own_user) {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!(
                    "another program drives queues of this interface, with its journals in a directory that is not \
                     visible here; in a container {MOUNT_THE_HOSTS}"
                ),
            ));
        }
        Ok(Self { _socket: socket })
    }
}

/// `None` if the name is in use.
fn bind_to(name: &str) -> io::Result<Option<OwnedFd>> {
    let socket = unix_socket()?;
    match bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    // Each check connects once, and no connection is accepted: the backlog has to hold them.
    listen(&socket, 4096)?;
    Ok(Some(socket))
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The names in `/proc/net/unix` with the prefix that are of another directory.
fn others<'a>(sockets: &'a str, prefix: &'a str, own: &'a str) -> impl Iterator<Item = &'a str> {
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    names.filter(move |name| name.starts_with(prefix) && !name.starts_with(own))
}

fn is_of_root_or_own_user(name: &str) -> bool {
    let listener = || -> io::Result<_> {
        let socket = unix_socket()?;
        connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        Ok(peer_credentials(&socket)?.uid)
    };
    // It has ended meanwhile, or is none of this crate's.
    listener().is_ok_and(|user| user == 0 || user == geteuid().as_raw())
}

/// Refuses a directory that ends with this container, while the network namespace goes on.
///
/// # Errors
/// If it would, with what to do.
pub(super) fn check_outlives_container(directory: &Path) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if is_container() && is_hosts_network() && !is_bind_mount(&mounts, directory) {
        return Err(io::Error::other(format!(
            "this container's own, which is lost with it, while the host's interface would keep its settings; \
             {MOUNT_THE_HOSTS}"
        )));
    }
    Ok(())
}

fn is_container() -> bool {
    if !is_in_first_pid_namespace() {
        return true;
    }
    // With the host's process ids (`--pid=host`) its first process has the host's files.
    let run = |path: &str| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    run("/proc/1/root/run").is_some_and(|of_host| run("/run").is_some_and(|own| own != of_host))
}

/// The kernel registers this one in the first network namespace only (`net_core_table`).
fn is_hosts_network() -> bool {
    Path::new("/proc/sys/net/core/netdev_budget").exists()
}

/// Whether the mount that a directory is on is a bind mount, which shows a directory of the host: its
/// root in `/proc/self/mountinfo` is a directory. The root of a new tmpfs or overlay is `/`.
fn is_bind_mount(mounts: &str, directory: &Path) -> bool {
    let mount = |line: &str| {
        let mut fields = line.split_whitespace().skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        directory.starts_with(point).then(|| (Path::new(point).components().count(), root != "/"))
    };
    // The last of those at the same place is the one that is seen.
    mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).is_some_and(|(_, is_part)| is_part)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::process::Command;

    use super::*;
    use crate::host::net_namespace::NetNamespace;

    #[test]
    fn a_second_directory_for_an_interface_is_refused_while_a_process_uses_the_first() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // An index that no interface has.
        let ifindex = u32::MAX - std::process::id();
        let first = Claim::make(one.path(), ifindex).unwrap();
        let _of_the_same_process = Claim::make(one.path(), ifindex).unwrap();
        let refusal = Claim::make(other.path(), ifindex).unwrap_err();
        assert_eq!(refusal.kind(), io::ErrorKind::AlreadyExists);
        assert!(refusal.to_string().contains("-v /run/lull:/run/lull"), "{refusal}");
        let _another_interface = Claim::make(other.path(), ifindex - 1).unwrap();
        drop((first, _of_the_same_process));
        // A child that another test starts has this process's sockets until it executes its program.
        let begun = std::time::Instant::now();
        let mine = loop {
            match Claim::make(other.path(), ifindex) {
                Err(_) if begun.elapsed().as_secs() < 30 => std::thread::yield_now(),
                claim => break claim.unwrap(),
            }
        };
        drop(mine);
        // Anybody may take a name. Nobody listens on this one.
        let name = SocketAddr::from_abstract_name(format!("lull/{ifindex}/0.0/1")).unwrap();
        let _squatter = UnixDatagram::bind_addr(&name).unwrap();
        Claim::make(other.path(), ifindex).unwrap();
    }

    #[test]
    fn a_thread_in_another_network_namespace_sees_the_processes_there() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut child = Command::new("unshare").args(["--net", "sleep", "20"]).spawn().unwrap();
        let own = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let path = format!("/proc/{}/ns/net", child.id());
        // Without privileges it ends at once.
        while child.try_wait().unwrap().is_none() && fs::metadata(&path).map_or(own, |it| it.ino()) == own {
            std::thread::yield_now();
        }
        let moved = fs::metadata(&path).ok().and_then(|it| NetNamespace::find(it.ino()));
        let refusal = moved.map(|namespace| {
            let claims = || {
                let _first = Claim::make(one.path(), 7).unwrap();
                Claim::make(other.path(), 7).err().map(|error| error.kind())
            };
            namespace.run(claims).unwrap()
        });
        let _ = child.kill();
        child.wait().unwrap();
        if refusal.is_none() && std::env::var_os("LULL_REQUIRE_ALL").is_none() {
            return eprintln!("skipped: no network namespace could be made");
        }
        assert_eq!(refusal, Some(Some(io::ErrorKind::AlreadyExists)));
    }

    #[test]
    fn only_a_directory_of_another_file_system_outlives_a_container() {
        let directory = Path::new("/run/lull");
        let root = "541 1 0:52 / / rw,relatime - overlay overlay rw\n";
        assert!(!is_bind_mount(root, directory));
        let own_run = "560 541 0:60 / /run rw - tmpfs tmpfs rw\n";
        assert!(!is_bind_mount(&format!("{root}{own_run}"), directory));
        let hosts = "561 560 0:25 /lull /run/lull rw - tmpfs tmpfs rw\n";
        assert!(is_bind_mount(&format!("{root}{own_run}{hosts}"), directory));
        let overlay_of_podman = "1 0 0:1 /volumes/x /run rw - ext4 /dev/vda rw\n";
        assert!(is_bind_mount(&format!("{root}{overlay_of_podman}"), directory));
        assert!(!is_bind_mount(&format!("{root}561 560 0:25 /x /run/lullaby rw - tmpfs t rw\n"), directory));
    }
}
