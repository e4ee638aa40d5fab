//! Journals where a process id, the clock or the directory can't be relied on.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use lab::testbed::SERVER_INTERFACE;
use policies::netlink::ethtool::{Coalescing, Ethtool};
use policies::netlink::netdev::{NapiSetting, Netdev};
use policies::{JournalDir, Lifetime, Plan, Policy, Settings, host};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use serial_test::serial;
use tests::memcached::wait_until;
use tests::testbed::{enter, napi, server_runtime, steer_to};
use tests::{KillOnDrop, isolated, policies_command};

const JOURNALS: &str = "/run/lull";

fn restore() -> Output {
    policies_command(&["restore"]).output().unwrap()
}

fn apply(policy: Policy) -> Output {
    let arguments = ["apply", SERVER_INTERFACE, "--policy", policy.name(), "--worker-cores", "0"];
    policies_command(&arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    let (stdout, stderr) = (&output.stdout, &output.stderr);
    format!("{}: {}{}", output.status, String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
}

fn content(journal: &Path) -> Value {
    serde_json::from_slice(&fs::read(journal).unwrap()).unwrap()
}

fn journals() -> Vec<PathBuf> {
    let entries = fs::read_dir(JOURNALS).into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut journals: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|it| it == "json")).collect();
    journals.sort();
    journals
}

/// In a process that [`hold`] has started: applies kernel polling, and waits to be killed.
fn holds() -> bool {
    if std::env::var_os("HOLD").is_none() {
        return false;
    }
    let interface = host::interface(SERVER_INTERFACE).unwrap();
    let plan = Plan::new(Policy::KernelPolling, &interface, &Settings::default());
    let _guard = policies::apply(&plan, Lifetime::Process, &JournalDir::default()).unwrap();
    println!("applied");
    std::thread::sleep(Duration::from_secs(60));
    true
}

/// Starts a process that holds kernel polling, by a command that runs its arguments.
fn hold(wrapper: &[&str]) -> KillOnDrop {
    let itself = isolated::once_more();
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(itself.get_program()).args(itself.get_args()).env("HOLD", "1");
    let mut child: KillOnDrop = command.stdout(Stdio::piped()).spawn().unwrap().into();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("applied")));
    child
}

/// Kills a process and those that die with it, and waits until they have ended.
fn kill(mut child: KillOnDrop) {
    child.kill().unwrap();
    child.wait().unwrap();
}

const IN_PID_NAMESPACE: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];

#[test]
#[isolated(root)]
#[serial]
fn a_process_in_another_pid_namespace_keeps_its_settings_until_it_ends() {
    if holds() || tests::program("unshare").is_none() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let wrapper = [&IN_PID_NAMESPACE[..], &["--mount-proc"]].concat();
    let owner = hold(&wrapper);
    let held = napi();
    assert_ne!(held, fresh);
    let restored = restore();
    assert!(restored.status.success(), "{}", text(&restored));
    assert_eq!(napi(), held, "restored under a running process: {}", text(&restored));
    assert_eq!(journals().len(), 1, "{}", text(&restored));
    let applied = apply(Policy::KernelPolling);
    assert!(!applied.status.success() && text(&applied).contains("in use by process"), "{}", text(&applied));
    kill(owner);
    wait_until("the namespace has ended, and a restore puts everything back", || {
        assert!(restore().status.success());
        napi() == fresh
    });
    assert!(!Path::new(JOURNALS).exists());
}

#[test]
#[isolated(root)]
#[serial]
fn a_restore_in_another_pid_namespace_leaves_running_processes_and_restores_killed_ones() {
    if holds() || tests::program("unshare").is_none() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let program = tests::own_program("policies");
    // With the namespace's own /proc, and with the one from outside.
    for proc in [&["--mount-proc"][..], &[]] {
        let restore = || {
            let wrapper = [&IN_PID_NAMESPACE[1..], proc].concat();
            Command::new(IN_PID_NAMESPACE[0]).args(wrapper).arg(&program).arg("restore").output().unwrap()
        };
        let owner = hold(&["env"]);
        let held = napi();
        assert_ne!(held, fresh);
        let restored = restore();
        assert!(restored.status.success(), "{proc:?}: {}", text(&restored));
        assert_eq!(napi(), held, "{proc:?}: restored under a running process: {}", text(&restored));
        kill(owner);
        let restored = restore();
        assert!(restored.status.success(), "{proc:?}: {}", text(&restored));
        assert_eq!(napi(), fresh, "{proc:?}: {}", text(&restored));
        assert!(!Path::new(JOURNALS).exists(), "{proc:?}");
    }
}

#[test]
#[isolated(root)]
#[serial]
fn a_restore_to_which_proc_shows_no_other_process_leaves_running_ones() {
    if holds() || tests::program("unshare").is_none() || tests::program("setpriv").is_none() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let owner = hold(&["env"]);
    let held = napi();
    assert_ne!(held, fresh);
    let program = tests::own_program("policies");
    // Without CAP_SYS_PTRACE, as in a systemd unit with a small bounding set. Root's group would
    // see everything.
    const HIDE: &str = "mount -t proc -o hidepid=invisible,gid=65534 proc /proc || exit 43
        exec setpriv --bounding-set=-sys_ptrace --inh-caps=-sys_ptrace \
            sh -c 'test -e /proc/$0 && exit 42; exec \"$1\" restore' \"$0\" \"$1\"";
    let hidden = |pid: u32| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", HIDE, &pid.to_string()]).arg(&program);
        command.output().unwrap()
    };
    let restored = hidden(owner.id());
    let able = !matches!(restored.status.code(), Some(42 | 43));
    if tests::require("hidepid (Linux 5.8)", able.then_some(())).is_none() {
        return;
    }
    assert!(restored.status.success(), "{}", text(&restored));
    assert_eq!(napi(), held, "restored under a running process: {}", text(&restored));
    let pid = owner.id();
    kill(owner);
    let restored = hidden(pid);
    assert!(restored.status.success(), "{}", text(&restored));
    assert_eq!(napi(), fresh, "{}", text(&restored));
    assert!(!Path::new(JOURNALS).exists());
}

#[test]
#[isolated(root)]
#[serial]
fn journals_that_can_not_be_read_are_named_and_the_others_restored() {
    let _testbed = enter(1);
    let fresh = napi();
    fs::create_dir_all(format!("{JOURNALS}/directory.json")).unwrap();
    fs::write(format!("{JOURNALS}/garbage.json"), "garbage").unwrap();
    // Neither does it keep a policy from being applied.
    let applied = apply(Policy::KernelPolling);
    assert!(applied.status.success(), "{}", text(&applied));
    assert!(text(&applied).contains("garbage.json"), "{}", text(&applied));
    assert_ne!(napi(), fresh);
    let explained = policies_command(&["explain", SERVER_INTERFACE]).output().unwrap();
    assert!(explained.status.success(), "{}", text(&explained));
    assert!(text(&explained).contains("garbage.json can't be read"), "{}", text(&explained));
    let restored = policies_command(&["--format", "json", "restore"]).output().unwrap();
    assert_eq!(restored.status.code(), Some(1), "{}", text(&restored));
    assert_eq!(napi(), fresh, "{}", text(&restored));
    let reports: Value = serde_json::from_slice(&restored.stdout).unwrap();
    assert_eq!(reports["reports"].as_array().unwrap().len(), 1, "{}", text(&restored));
    let stderr = String::from_utf8_lossy(&restored.stderr);
    for expected in ["/run/lull/directory.json is left: it is not a regular file; remove it", "garbage.json"]
    {
        assert!(stderr.contains(expected), "{stderr}");
    }
    fs::remove_dir(format!("{JOURNALS}/directory.json")).unwrap();
    fs::remove_file(format!("{JOURNALS}/garbage.json")).unwrap();
    assert!(restore().status.success());
    assert!(!Path::new(JOURNALS).exists());
}

#[test]
#[isolated(root)]
#[serial]
fn without_the_directorys_lock_nothing_is_applied_and_a_process_still_restores_its_own() {
    if holds() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let lock = format!("{JOURNALS}/lock");
    fs::create_dir_all(&lock).unwrap();
    let applied = apply(Policy::KernelPolling);
    assert!(!applied.status.success() && text(&applied).contains(&lock), "{}", text(&applied));
    assert_eq!(napi(), fresh, "{}", text(&applied));
    assert!(restore().status.success(), "there is nothing to restore");
    fs::remove_dir(&lock).unwrap();

    let mut owner = hold(&["env"]);
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    kill_process(rustix::process::Pid::from_child(&owner), Signal::TERM).unwrap();
    owner.wait().unwrap();
    assert_eq!(napi(), fresh);
    assert_eq!(journals().len(), 1, "it could not be removed");
    let restored = restore();
    assert!(!restored.status.success() && text(&restored).contains(&lock), "{}", text(&restored));
    fs::remove_dir(&lock).unwrap();
    assert!(restore().status.success());
    assert!(!Path::new(JOURNALS).exists());
}

#[test]
#[isolated(root)]
#[serial]
fn a_restore_of_ended_processes_leaves_what_apply_has_set() {
    if holds() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let ended = || policies_command(&["restore", "--ended", SERVER_INTERFACE]).output().unwrap();
    assert!(apply(Policy::KernelPolling).status.success());
    let applied = napi();
    assert_ne!(applied, fresh);
    let restored = ended();
    assert!(restored.status.success(), "{}", text(&restored));
    assert_eq!(napi(), applied, "{}", text(&restored));
    // Of a process that was killed while both were there.
    let overlapping = kill_holder_over_apply();
    assert_ne!(napi(), applied);
    assert_eq!(journals().len(), 2);
    let restored = ended();
    assert!(restored.status.success(), "{}", text(&restored));
    assert_eq!(napi(), applied, "{}", text(&restored));
    assert!(!overlapping.exists() && journals().len() == 1, "{}", text(&restored));
    // Both at once are restored in the order that undoes them.
    kill_holder_over_apply();
    assert!(restore().status.success());
    assert_eq!(napi(), fresh);
}

/// Kills a process that has set other values over those of an `apply`. Returns its journal.
fn kill_holder_over_apply() -> PathBuf {
    let before = journals();
    kill(hold(&["env"]));
    journals().into_iter().find(|path| !before.contains(path)).unwrap()
}

#[test]
#[isolated(root, drivers = "epoll")]
#[serial]
fn a_journal_that_cant_be_restored_keeps_only_what_failed_and_holds_no_queue() {
    if holds() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    kill(hold(&["env"]));
    let path = journals().remove(0);
    let mut journal = content(&path);
    // A veth pair has no coalescing.
    let refused = json!({ "knob": "coalesce", "parameter": "rx-frames", "old": 1, "new": 2, "own": "new" });
    journal["entries"].as_array_mut().unwrap().push(refused.clone());
    fs::write(&path, journal.to_string()).unwrap();
    let restored = restore();
    assert!(!restored.status.success(), "{}", text(&restored));
    assert_eq!(napi(), fresh);
    let left = content(&path);
    assert_eq!(left["entries"], json!([refused]));
    let mut runtime = server_runtime(Policy::KernelPolling, 1);
    let report = runtime.block_on(async { runtime::reports() }).remove(0);
    assert_eq!(report.running, runtime::Running::KernelPolling, "{report}");
    drop(runtime);
    assert_eq!(napi(), fresh);
    fs::remove_file(path).unwrap();
}

#[test]
#[isolated(root, drivers = "epoll")]
#[serial]
fn a_process_that_sets_what_another_could_not_restore_takes_over_the_original_value() {
    if holds() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    kill(hold(&["env"]));
    let path = journals().remove(0);
    let mut journal = content(&path);
    // The kernel takes no such number of deferrals, so that the restore fails.
    let refused = u64::from(u32::MAX);
    let knob = "napi-defer-hard-irqs";
    let entries = journal["entries"].as_array_mut().unwrap();
    entries.retain(|entry| entry["knob"] != knob);
    entries.push(json!({ "knob": knob, "queue": 0, "old": refused, "new": 3, "own": "new" }));
    fs::write(&path, journal.to_string()).unwrap();
    let mut netdev = Netdev::open().unwrap();
    netdev.set_napi(fresh.id, NapiSetting::DeferHardIrqs, 3).unwrap();
    assert!(!restore().status.success());
    let owner = hold(&["env"]);
    assert_ne!(napi().defer_hard_irqs, Some(3));
    let taken = journals();
    assert!(taken.len() == 1 && taken[0] != path, "{taken:?}");
    // Nothing is restored under the process that runs, and its own restore knows the original
    // value.
    assert!(restore().status.success());
    kill(owner);
    let restored = restore();
    let told = format!("can't be set to {refused}");
    assert!(!restored.status.success() && text(&restored).contains(&told), "{}", text(&restored));
    let mut journal = content(&taken[0]);
    let entry = &mut journal["entries"][0];
    assert_eq!((&entry["knob"], &entry["old"], &entry["left"]), (&json!(knob), &json!(refused), &json!(3)));
    entry["old"] = json!(fresh.defer_hard_irqs);
    fs::write(&taken[0], journal.to_string()).unwrap();
    let restored = restore();
    assert!(restored.status.success(), "{}", text(&restored));
    assert_eq!(napi(), fresh);
    assert!(!Path::new(JOURNALS).exists());
}

/// A tap device, which takes any number of frames to gather, and makes at most 64 of it
/// (`tun_set_coalesce`). It ends with the testbed's namespace. Returns its index.
fn clamping_device() -> Option<u32> {
    tests::require("/dev/net/tun", fs::metadata("/dev/net/tun").ok())?;
    let ip = tests::program("ip")?;
    let made = Command::new(ip).args(["tuntap", "add", "dev", "clamps", "mode", "tap"]).output().unwrap();
    assert!(made.status.success(), "{}", text(&made));
    Some(host::interface("clamps").unwrap().index)
}

#[test]
#[isolated(root)]
#[serial]
fn a_device_that_makes_another_value_of_the_old_one_is_not_restored_and_the_journal_stays() {
    if holds() {
        return;
    }
    let _testbed = enter(1);
    let Some(index) = clamping_device() else { return };
    let mut ethtool = Ethtool::open().unwrap();
    ethtool.set_coalescing(index, &[(Coalescing::RxFrames, 32)]).unwrap();
    kill(hold(&["env"]));
    let path = journals().remove(0);
    let mut journal = content(&path);
    assert!(restore().status.success());
    (journal["interface"], journal["ifindex"]) = (json!("clamps"), json!(index));
    let entry = |old: u32, new: u32| {
        let (knob, parameter, own) = ("coalesce", "rx-frames", "new");
        json!([{ "knob": knob, "parameter": parameter, "old": old, "new": new, "own": own }])
    };
    journal["entries"] = entry(100, 32);
    fs::create_dir_all(JOURNALS).unwrap();
    fs::write(&path, journal.to_string()).unwrap();
    // The second one must not take the value for somebody else's.
    for reason in ["it was set to 100, and is 64"; 2] {
        let restored = restore();
        let told = format!("rx-frames: NOT restored: {reason}");
        assert!(!restored.status.success() && text(&restored).contains(&told), "{}", text(&restored));
        assert_eq!(journals(), std::slice::from_ref(&path), "{}", text(&restored));
    }
    journal["entries"] = entry(48, 64);
    fs::write(&path, journal.to_string()).unwrap();
    let restored = restore();
    assert!(restored.status.success(), "{}", text(&restored));
    assert!(ethtool.coalescing(index).unwrap().contains(&(Coalescing::RxFrames, 48)));
    assert!(!Path::new(JOURNALS).exists());
}

/// A small file system for journals, while this exists.
struct SmallTmpfs;

impl SmallTmpfs {
    fn mount(options: &str) -> Self {
        fs::create_dir_all(JOURNALS).unwrap();
        let options = std::ffi::CString::new(options).unwrap();
        mount("tmpfs", JOURNALS, "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
        Self
    }

    /// Takes all space that is left.
    fn fill(&self) {
        let mut filler =
            File::options().append(true).create(true).open(format!("{JOURNALS}/filler")).unwrap();
        while filler.write(&[0; 512]).is_ok_and(|written| written > 0) {}
    }
}

impl Drop for SmallTmpfs {
    fn drop(&mut self) {
        let _ = unmount(JOURNALS, UnmountFlags::DETACH);
    }
}

#[test]
#[isolated(root)]
#[serial]
fn with_a_full_file_system_for_journals_nothing_is_applied_and_nothing_is_lost() {
    let _testbed = enter(1);
    steer_to(0);
    let fresh = napi();
    let is_refused = |applied: &Output| {
        !applied.status.success()
            && text(applied).contains("No space left")
            && text(applied).contains(JOURNALS)
    };
    // No space for the content; no inode for the lock.
    for options in ["size=16k", "size=16k,nr_inodes=2"] {
        let tmpfs = SmallTmpfs::mount(options);
        tmpfs.fill();
        for policy in Policy::ALL {
            let applied = apply(policy);
            assert!(is_refused(&applied), "{options}, {policy}: {}", text(&applied));
            assert_eq!(napi(), fresh, "{options}, {policy}: {}", text(&applied));
        }
        let left: Vec<PathBuf> = fs::read_dir(JOURNALS).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.iter().all(|path| path.ends_with("filler") || path.ends_with("lock")), "{left:?}");
    }
    // It fills up while a policy is applied.
    let tmpfs = SmallTmpfs::mount("size=32k");
    let applied = apply(Policy::KernelPolling);
    assert!(applied.status.success(), "{}", text(&applied));
    tmpfs.fill();
    let applied = apply(Policy::Packing);
    assert!(applied.status.success() || is_refused(&applied) && napi() == fresh, "{}", text(&applied));
    let restored = restore();
    assert!(restored.status.success(), "{}", text(&restored));
    assert_eq!(napi(), fresh, "{}", text(&restored));
    assert!(journals().is_empty());
}
