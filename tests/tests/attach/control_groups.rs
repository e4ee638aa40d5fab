//! Services, which are control groups: found by their processes, also while they start.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lab::testbed::SERVER_ADDRESS;
use rustix::mount::MountFlags;
use rustix::process::{Pid, Signal, kill_process};
use serial_test::serial;
use tests::memcached::wait_until;
use tests::testbed::enter_plain;
use tests::{KillOnDrop, isolated};

use super::attached::{CONNECTIONS, nothing_is_left};
use super::load::{Exchange, Load};

/// A group below the root of version 2. Removed on drop, after its processes.
struct ControlGroup(PathBuf);

impl ControlGroup {
    /// In the calling process's mount namespace, whose `/sys` shows no control groups.
    fn new() -> Self {
        rustix::mount::mount("none", "/sys/fs/cgroup", "cgroup2", MountFlags::empty(), None).unwrap();
        let path = PathBuf::from(format!("/sys/fs/cgroup/lull-test-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // A process that has just been killed is in it for a moment longer.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
#[isolated(root)]
#[serial]
fn a_control_group_is_attached_to_although_its_server_has_only_begun_to_start() {
    let testbed = enter_plain(1);
    let memcached = std::path::Path::new("/usr/bin/memcached");
    if tests::require("/usr/bin/memcached", memcached.is_file().then_some(())).is_none() {
        return;
    }
    let group = ControlGroup::new();
    let script = format!(
        "echo $$ > {}/cgroup.procs; sleep 1; exec taskset -c 0 /usr/bin/memcached -u nobody -t 1 -p 7002 -l {SERVER_ADDRESS}",
        group.0.display()
    );
    let server: KillOnDrop = Command::new("sh").args(["-c", &script]).spawn().unwrap().into();
    wait_until("the service has a process", || {
        std::fs::read_to_string(group.0.join("cgroup.procs")).is_ok_and(|pids| !pids.is_empty())
    });
    let mut command = Command::new(tests::own_program("policies"));
    command.arg("attach").arg("--cgroup").arg(&group.0).args(["--latency-budget", "1000"]);
    let printed = tempfile::NamedTempFile::new().unwrap();
    let attached: KillOnDrop = command.stdout(printed.reopen().unwrap()).spawn().unwrap().into();
    let address = std::net::SocketAddr::from((SERVER_ADDRESS, 7002));
    wait_until("the server listens", || std::net::TcpStream::connect(address).is_ok());
    let exchange = Exchange { request: b"get lull\r\n", end: b"END\r\n" };
    let load = Load::start(&testbed, address, exchange, CONNECTIONS);
    wait_until("the server is attached", || {
        std::fs::read_to_string(printed.path()).unwrap().contains("attached memcached")
    });
    kill_process(Pid::from_child(&attached), Signal::INT).unwrap();
    let output = attached.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    load.end();
    nothing_is_left();
    drop((server, group));
}
