//! Programs in containers, as a container's runtime makes them: other mounts, a PID namespace, a
//! seccomp filter, and the host's network.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Output};

use lab::testbed::{SERVER_ADDRESS, SERVER_INTERFACE};
use policies::Policy;
use runtime::DriverKind;
use tests::memcached::{Memcached, free_port, wait_until};
use tests::testbed::{enter, ip, napi};
use tests::{own_program, policies_command, program, seccomp, testbed_test};

/// `HOSTS`: mounts the host's directory of journals, as `docker run -v /run/lull:/run/lull` does.
const MAKE: &str = r#"
set -e
root=$(mktemp -d)
mount --rbind / "$root"
mount -t tmpfs tmpfs "$root/run"
mount -t proc proc "$root/proc"
if [ -n "$HOSTS" ]; then
    mkdir -p /run/lull "$root/run/lull"
    touch /run/lull/keep
    mount --bind /run/lull "$root/run/lull"
fi
cd "$root"
pivot_root . mnt
umount -l /mnt
exec "$@"
"#;

/// A command in a container with the network that this process has.
fn container(has_hosts_directory: bool, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", MAKE, "sh"]);
    command.args(seccomp::of_containers(&[])).arg(program);
    if has_hosts_directory {
        command.env("HOSTS", "1");
    }
    command
}

fn apply_in_container(has_hosts_directory: bool, interface: &str, policy: Policy) -> Output {
    let mut command = container(has_hosts_directory, &own_program("policies"));
    command.args(["apply", interface, "--worker-cores", "0", "--policy", policy.name()]).output().unwrap()
}

fn errors(output: &Output) -> String {
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn can_make() -> bool {
    ["unshare", "pivot_root", "python3"].iter().all(|name| program(name).is_some())
}

fn memcached(port: u16, has_hosts_directory: bool) -> Memcached {
    let mut command = container(has_hosts_directory, &own_program("memcached"));
    let arguments = format!(
        "-u root -t 1 --cores 0 -v -l {SERVER_ADDRESS},127.0.0.1 -p {port} --interface {SERVER_INTERFACE} \
         --policy kernel-polling"
    );
    Memcached::run(command.args(arguments.split(' ')), port)
}

#[testbed_test]
fn a_server_in_a_container_polls_on_epoll_and_is_restored_from_outside_after_a_kill() {
    if !can_make() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let port = free_port();
    let mut server = memcached(port, true);
    let said = || server.standard_error();
    wait_until("it says what it runs", || said().contains("worker 0"));
    let said = said();
    assert!(said.contains(&format!("kernel-polling on {}", DriverKind::Epoll)), "{said}");
    assert!(said.contains("io_uring is forbidden"), "{said}");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    // Its processes end soon after `unshare`. A restore leaves the settings of those that run.
    wait_until("a restore from outside puts everything back", || {
        let restored = policies_command(&["restore"]).output().unwrap();
        assert!(restored.status.success(), "{restored:?}");
        napi() == fresh
    });
    std::fs::remove_dir_all("/run/lull").unwrap();
}

#[testbed_test]
fn a_second_container_does_not_drive_an_interface_whose_journals_it_can_not_see() {
    if !can_make() {
        return;
    }
    let _testbed = enter(1);
    // Its own directory is kept for as long as its network namespace: that is not the host's.
    let mut first = memcached(free_port(), false);
    let refused = errors(&apply_in_container(false, SERVER_INTERFACE, Policy::KernelPolling));
    assert!(refused.contains("another program drives queues of this interface"), "{refused}");
    assert!(refused.contains("docker run -v /run/lull:/run/lull"), "{refused}");
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    // It may not pin the kernel thread that polls the veth, whose id is of another PID namespace.
    let unpinned = "is none here, in a container";
    wait_until("nothing of it is left", || {
        String::from_utf8_lossy(&apply_in_container(false, SERVER_INTERFACE, Policy::KernelPolling).stdout)
            .contains(unpinned)
    });
}

#[testbed_test]
fn a_server_whose_filter_forbids_epoll_pwait2_too_waits_in_milliseconds() {
    if !can_make() {
        return;
    }
    let _testbed = enter(1);
    let port = free_port();
    let filter = seccomp::of_containers(&[libc::SYS_epoll_pwait2]);
    let mut command = Command::new(&filter[0]);
    command.args(&filter[1..]).arg(own_program("memcached"));
    let server =
        Memcached::run(command.args(["-u", "root", "-l", "127.0.0.1", "-p", &port.to_string()]), port);
    let mut client = server.connect();
    client.write_all(b"set k 0 0 1\r\nv\r\nget k\r\n").unwrap();
    let mut answer = [0; 29];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
}

/// A pair of interfaces in the namespace that the test was started in.
struct Pair;

const NAME: &str = "lull-container";

impl Pair {
    fn new() -> Self {
        ip(&["link", "add", NAME, "type", "veth", "peer", "name", "lull-peer"]);
        Self
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        ip(&["link", "del", NAME]);
    }
}

#[test]
fn a_record_that_would_be_lost_with_its_container_is_refused_on_the_hosts_network() {
    // If the tests run in a container, their network namespace is not the host's.
    let is_host = Path::new("/proc/sys/net/core/netdev_budget").exists();
    let first = tests::require("the first network namespace", is_host.then_some(()));
    if tests::root().is_none() || first.is_none() || !can_make() {
        return;
    }
    let _pair = Pair::new();
    let refused = errors(&apply_in_container(false, NAME, Policy::Vanilla));
    assert!(refused.contains("/run/lull: this container's own, which is lost with it"), "{refused}");
    let mounted = apply_in_container(true, NAME, Policy::Vanilla);
    std::fs::remove_file("/run/lull/keep").unwrap();
    let restored = policies_command(&["restore", NAME]).output().unwrap();
    assert!(mounted.status.success() && restored.status.success(), "{mounted:?} {restored:?}");
}
