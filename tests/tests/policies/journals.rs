//! Journals where a process id, the clock or the directory can't be relied on.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use lab::testbed::SERVER_INTERFACE;
use policies::netlink::ethtool::{Coalescing, Ethtool};
use policies::netlink::netdev::{Napi, NapiSetting, Netdev};
use policies::{Policy, Settings, host};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tests::memcached::wait_until;
use tests::testbed::{self, enter, napi, server_runtime, steer_to};
use tests::{KillOnDrop, isolated, policies_command, testbed_test};

const JOURNALS: &str = "/run/lull";

fn restore() -> Output {
    policies_command(&["restore"]).output().unwrap()
}

fn apply(policy: Policy) -> Output {
    let arguments = ["apply", SERVER_INTERFACE, "--policy", policy.name(), "--worker-cores", "0"];
    policies_command(&[&arguments[..], &["--all-programs"]].concat()).output().unwrap()
}

fn text(output: &Output) -> String {
    let (stdout, stderr) = (&output.stdout, &output.stderr);
    format!("{}: {}{}", output.status, String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
}

fn content(journal: &Path) -> Value {
    serde_json::from_slice(&fs::read(journal).unwrap()).unwrap()
}

/// Kills a process that holds kernel polling. Returns its journal.
fn left_journal() -> (PathBuf, Value) {
    kill(hold(&["env"]));
    let path = journals().remove(0);
    let journal = content(&path);
    (path, journal)
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
    let _guard = testbed::apply(Policy::KernelPolling, &Settings::default());
    println!("applied");
    std::thread::sleep(Duration::from_secs(60));
    true
}

/// Starts a process that holds kernel polling, by a command that runs its arguments.
fn hold(wrapper: &[&str]) -> KillOnDrop {
    let (itself, before) = (isolated::once_more(), napi());
    let mut command = Command::new(wrapper[0]);
    command.args(&wrapper[1..]).arg(itself.get_program()).args(itself.get_args()).env("HOLD", "1");
    let (child, _) = KillOnDrop::start_until(&mut command, "applied");
    assert_ne!(napi(), before);
    child
}

/// The command has succeeded, and the queue has these values.
fn expect(command: &Output, values: &Napi) {
    assert!(command.status.success(), "{}", text(command));
    assert_eq!(napi(), *values, "{}", text(command));
}

fn restore_everything(fresh: &Napi) {
    expect(&restore(), fresh);
    assert!(!Path::new(JOURNALS).exists());
}

/// The command has failed, and says why.
fn expect_failure(command: &Output, why: &str) {
    assert!(!command.status.success() && text(command).contains(why), "{}", text(command));
}

/// Kills a process and those that die with it, and waits until they have ended.
fn kill(mut child: KillOnDrop) {
    child.kill().unwrap();
    child.wait().unwrap();
}

const IN_PID_NAMESPACE: [&str; 4] = ["unshare", "--pid", "--fork", "--kill-child"];

#[testbed_test]
fn a_process_in_another_pid_namespace_keeps_its_settings_until_it_ends() {
    if holds() || tests::program("unshare").is_none() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let wrapper = [&IN_PID_NAMESPACE[..], &["--mount-proc"]].concat();
    let owner = hold(&wrapper);
    let held = napi();
    expect(&restore(), &held);
    assert_eq!(journals().len(), 1);
    expect_failure(&apply(Policy::KernelPolling), "in use by process");
    kill(owner);
    wait_until("the namespace has ended, and a restore puts everything back", || {
        assert!(restore().status.success());
        napi() == fresh
    });
    assert!(!Path::new(JOURNALS).exists());
}

#[testbed_test]
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
        println!("{proc:?}");
        let owner = hold(&["env"]);
        let held = napi();
        expect(&restore(), &held);
        kill(owner);
        expect(&restore(), &fresh);
        assert!(!Path::new(JOURNALS).exists(), "{proc:?}");
    }
}

#[testbed_test]
fn a_restore_to_which_proc_shows_no_other_process_leaves_running_ones() {
    if holds() || tests::program("unshare").is_none() || tests::program("setpriv").is_none() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let owner = hold(&["env"]);
    let held = napi();
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
    expect(&restored, &held);
    let pid = owner.id();
    kill(owner);
    expect(&hidden(pid), &fresh);
    assert!(!Path::new(JOURNALS).exists());
}

#[testbed_test]
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

#[testbed_test]
fn without_the_directorys_lock_nothing_is_applied_and_a_process_still_restores_its_own() {
    if holds() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let lock = format!("{JOURNALS}/lock");
    fs::create_dir_all(&lock).unwrap();
    let applied = apply(Policy::KernelPolling);
    expect_failure(&applied, &lock);
    // There is nothing to restore.
    expect(&restore(), &fresh);
    fs::remove_dir(&lock).unwrap();

    let mut owner = hold(&["env"]);
    fs::remove_file(&lock).unwrap();
    fs::create_dir(&lock).unwrap();
    kill_process(rustix::process::Pid::from_child(&owner), Signal::TERM).unwrap();
    owner.wait().unwrap();
    assert_eq!(napi(), fresh);
    assert_eq!(journals().len(), 1, "it could not be removed");
    expect_failure(&restore(), &lock);
    fs::remove_dir(&lock).unwrap();
    restore_everything(&fresh);
}

#[testbed_test]
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
    expect(&ended(), &applied);
    // Of a process that was killed while both were there.
    let overlapping = kill_holder_over_apply();
    assert_eq!(journals().len(), 2);
    expect(&ended(), &applied);
    assert!(!overlapping.exists() && journals().len() == 1);
    // Both at once are restored in the order that undoes them.
    kill_holder_over_apply();
    restore_everything(&fresh);
}

/// Kills a process that has set other values over those of an `apply`. Returns its journal.
fn kill_holder_over_apply() -> PathBuf {
    let before = journals();
    kill(hold(&["env"]));
    journals().into_iter().find(|path| !before.contains(path)).unwrap()
}

#[testbed_test(drivers = "epoll")]
fn a_journal_that_cant_be_restored_keeps_only_what_failed_and_holds_no_queue() {
    if holds() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let (path, mut journal) = left_journal();
    // A veth pair has no coalescing.
    let refused = json!({ "knob": "coalesce", "parameter": "rx-frames", "old": 1, "new": 2, "own": "new" });
    journal["entries"].as_array_mut().unwrap().push(refused.clone());
    fs::write(&path, journal.to_string()).unwrap();
    expect_failure(&restore(), "rx-frames");
    assert_eq!(napi(), fresh);
    let left = content(&path);
    assert_eq!(left["entries"], json!([refused]));
    let runtime = server_runtime(Policy::KernelPolling, 1);
    let report = runtime.block_on(async { runtime::reports() }).remove(0);
    assert_eq!(report.running, runtime::Running::KernelPolling, "{report}");
    drop(runtime);
    assert_eq!(napi(), fresh);
    fs::remove_file(path).unwrap();
}

#[testbed_test(drivers = "epoll")]
fn a_process_that_sets_what_another_could_not_restore_takes_over_the_original_value() {
    if holds() {
        return;
    }
    let _testbed = enter(1);
    let fresh = napi();
    let (path, mut journal) = left_journal();
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
    expect_failure(&restore(), &format!("can't be set to {refused}"));
    let mut journal = content(&taken[0]);
    let entry = &mut journal["entries"][0];
    assert_eq!((&entry["knob"], &entry["old"], &entry["left"]), (&json!(knob), &json!(refused), &json!(3)));
    entry["old"] = json!(fresh.defer_hard_irqs);
    fs::write(&taken[0], journal.to_string()).unwrap();
    restore_everything(&fresh);
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

#[testbed_test]
fn a_device_that_makes_another_value_of_the_old_one_is_not_restored_and_the_journal_stays() {
    if holds() {
        return;
    }
    let _testbed = enter(1);
    let Some(index) = clamping_device() else { return };
    let mut ethtool = Ethtool::open().unwrap();
    ethtool.set_coalescing(index, Coalescing::RxFrames, 32).unwrap();
    let (path, mut journal) = left_journal();
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
        expect_failure(&restore(), &format!("rx-frames: NOT restored: {reason}"));
        assert_eq!(journals(), std::slice::from_ref(&path));
    }
    journal["entries"] = entry(48, 64);
    fs::write(&path, journal.to_string()).unwrap();
    assert!(restore().status.success());
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

#[testbed_test]
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
    expect(&restore(), &fresh);
    assert!(journals().is_empty());
}
