//! The units of `contrib`, as systemd runs them: with a file system that is read-only but for
//! `RuntimeDirectory=`, with `CapabilityBoundingSet=` and `NoNewPrivileges=`. What systemd does by
//! seccomp is not here.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use lab::testbed::{SERVER_ADDRESS, SERVER_INTERFACE};
use policies::Pid;
use rustix::process::{Signal, kill_process};
use tests::memcached::{Memcached, binary, free_port, wait_until};
use tests::testbed::enter;
use tests::testbed_test;

use super::crash_recovery::settings;
use super::guardian::{child_of, is_unprivileged, is_zombie};

/// `ProtectSystem=strict` and `PrivateTmp=yes`, for the arguments after the first, which it runs:
/// the whole file system read-only but for /dev, /proc, /sys and the directory of journals. The
/// first is the folder of the program, which may be below /tmp and is bound to the one that the
/// unit names.
const STRICT: &str = r#"
    set -e
    mkdir -p /run/lull
    mount --bind /run/lull /run/lull
    mount --bind "$1" /usr/local/bin
    shift
    mount -t tmpfs tmpfs /tmp
    cut -d' ' -f5 /proc/self/mountinfo | while read -r point; do
        case "$point" in
            /dev|/dev/*|/proc|/proc/*|/sys|/sys/*|/run/lull|/tmp) ;;
            *) mount -o remount,bind,ro "$point" || true ;;
        esac
    done
    for folder in / /etc /run /usr /var; do
        if [ -w "$folder" ]; then echo "$folder can be written" >&2; exit 1; fi
    done
    [ -w /run/lull ]
    exec "$@"
"#;

struct Unit(String);

impl Unit {
    fn read(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib").join(name);
        Self(fs::read_to_string(path).unwrap())
    }

    /// The last value that is not empty.
    fn setting(&self, name: &str) -> Option<&str> {
        let mut values = self.0.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        values.rfind(|value| !value.is_empty())
    }

    /// A command of the unit, with its sandbox, on the testbed's interface.
    fn command(&self, name: &str, is_strict: bool) -> Command {
        let line = self.setting(name).unwrap_or_else(|| panic!("no {name}= in the unit"));
        let line = line.trim_start_matches(['-', '+']).replace("%I", SERVER_INTERFACE);
        let line = line.replace("eth0", SERVER_INTERFACE).replace("-u memcache ", "-u nobody ");
        let mut words = line.split(' ');
        let mut program = match words.next().unwrap() {
            "/usr/local/bin/lull-memcached" => binary(),
            "/usr/local/bin/policies" | "/usr/local/bin/lull-policies" => tests::own_program("policies"),
            other => panic!("{other} is not of this repository"),
        };
        let mut command = Command::new("unshare");
        command.arg("--mount");
        if is_strict {
            command.args(["sh", "-c", STRICT, "sh"]).arg(program.parent().unwrap());
            program = Path::new("/usr/local/bin").join(program.file_name().unwrap());
        }
        command.args(["setpriv", "--no-new-privs"]);
        if let Some(bounding) = self.setting("CapabilityBoundingSet") {
            let kept: Vec<String> =
                bounding.split(' ').map(|name| format!("+{}", name[4..].to_lowercase())).collect();
            command.arg(format!("--bounding-set=-all,{}", kept.join(",")));
        }
        command.arg(program).args(words);
        command
    }
}

/// Whether systemd's tools are here whose effects are those of its directives.
fn has_tools() -> bool {
    tests::program("unshare").is_some() && tests::program("setpriv").is_some()
}

fn run(mut command: Command) -> Output {
    command.output().unwrap()
}

fn kill(process: u32) {
    kill_process(Pid::from_raw(i32::try_from(process).unwrap()).unwrap(), Signal::KILL).unwrap();
}

#[testbed_test]
fn the_memcached_unit_runs_its_policy_in_its_sandbox_and_its_stop_restores_after_all_is_killed() {
    if !has_tools() {
        return;
    }
    let _testbed = enter(1);
    let fresh = settings();
    let (service, policy) = (Unit::read("memcached.service"), Unit::read("memcached-policy.conf"));
    assert_eq!(service.setting("ProtectSystem"), Some("strict"));
    assert_eq!(service.setting("NoNewPrivileges"), Some("yes"));
    assert_eq!(policy.setting("RuntimeDirectory"), Some("lull"));
    let port = free_port();
    // Linked by the build, which /home or /root may hold: nobody has to execute it.
    assert!(binary().metadata().unwrap().permissions().mode() & 0o001 != 0);
    let start = || {
        let mut command = policy.command("ExecStart", true);
        command.args(["-t", "1", "--cores", "0", "-p", &port.to_string()]);
        command.args(["-l", &format!("{SERVER_ADDRESS},127.0.0.1")]);
        let server = Memcached::run(&mut command, port);
        let pid = server.child.id();
        wait_until("the server has no capabilities", || is_unprivileged(pid));
        server
    };
    let mut server = start();
    let policies = server.talk(b"stats policy\r\n");
    let policies = String::from_utf8_lossy(&policies);
    assert!(policies.contains("kernel-polling") && !policies.contains("asked"), "{policies}");
    assert_ne!(settings(), fresh, "nothing is set");
    // In order: the guardian restores.
    server.signal(Signal::TERM);
    assert!(server.wait().success());
    wait_until("the guardian restores the settings", || settings() == fresh);

    let mut server = start();
    let pid = server.child.id();
    let guardian = child_of(pid).unwrap();
    kill(guardian);
    wait_until("the guardian has ended", || child_of(pid).is_none_or(is_zombie));
    kill(pid);
    server.wait();
    assert_ne!(settings(), fresh, "nobody could restore them");
    let stopped = run(policy.command("ExecStopPost", true));
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(settings(), fresh, "{stopped:?}");
}

#[testbed_test]
fn the_apply_unit_has_the_capabilities_that_apply_and_restore_need() {
    if !has_tools() {
        return;
    }
    let _testbed = enter(1);
    let fresh = settings();
    let unit = Unit::read("policies-apply@.service");
    let applied = run(unit.command("ExecStart", false));
    assert!(applied.status.success(), "{applied:?}");
    assert_ne!(settings(), fresh, "{applied:?}");
    let stopped = run(unit.command("ExecStop", false));
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(settings(), fresh, "{stopped:?}");
}
