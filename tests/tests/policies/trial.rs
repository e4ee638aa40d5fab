//! `policies apply --for`, and the policy that needs a word.

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use lab::testbed::SERVER_INTERFACE;
use policies::Pid;
use rustix::process::{Signal, kill_process};
use tests::testbed::{enter, napi};
use tests::{KillOnDrop, policies_command, testbed_test};

const APPLY: [&str; 6] = ["apply", SERVER_INTERFACE, "--policy", "kernel-polling", "--worker-cores", "0"];

fn apply_for(time: &str) -> KillOnDrop {
    let mut command = policies_command(&[&APPLY[..], &["--for", time]].concat());
    let (child, _) = KillOnDrop::start_until(command.stderr(Stdio::inherit()), "press Enter");
    child
}

fn restore() -> Output {
    policies_command(&["restore"]).output().unwrap()
}

#[testbed_test]
fn what_nobody_confirms_is_restored_after_its_time_although_the_terminal_is_lost() {
    let _testbed = enter(1);
    let fresh = napi();
    let mut trial = apply_for("2s");
    assert_ne!(napi(), fresh);
    drop(trial.stdin.take());
    kill_process(Pid::from_raw(trial.id().try_into().unwrap()).unwrap(), Signal::HUP).unwrap();
    assert!(trial.wait().unwrap().success());
    assert_eq!(napi(), fresh);
    assert!(!Path::new("/run/lull").exists());
}

#[testbed_test]
fn what_is_confirmed_stays_until_it_is_restored() {
    let _testbed = enter(1);
    let fresh = napi();
    let mut trial = apply_for("10m");
    let held = napi();
    assert!(restore().status.success());
    assert_eq!(napi(), held, "its process runs");
    trial.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(trial.wait().unwrap().success());
    assert_eq!(napi(), held);
    let restored = restore();
    assert!(restored.status.success(), "{restored:?}");
    assert_eq!(napi(), fresh);
    assert!(!Path::new("/run/lull").exists());
}

#[testbed_test]
fn suppression_is_applied_only_for_whoever_knows_that_it_delays_all_programs() {
    let _testbed = enter(1);
    let suppression = ["apply", SERVER_INTERFACE, "--policy", "suppression"];
    let refused = policies_command(&suppression).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("give --all-programs"), "{refused:?}");
    assert!(!refused.status.success() && !Path::new("/run/lull").exists());
    let known = policies_command(&[&suppression[..], &["--all-programs"]].concat()).output().unwrap();
    assert!(known.status.success() && restore().status.success(), "{known:?}");
}

#[testbed_test]
fn status_says_which_values_of_a_policy_others_have_changed() {
    let _testbed = enter(1);
    let status = || policies_command(&["status"]).output().unwrap();
    assert!(policies_command(&APPLY).output().unwrap().status.success());
    let unchanged = status();
    assert!(unchanged.status.success(), "{unchanged:?}");
    // As a driver's reset, or another program.
    std::fs::write(format!("/sys/class/net/{SERVER_INTERFACE}/gro_flush_timeout"), "777000").unwrap();
    let changed = status();
    let text = String::from_utf8_lossy(&changed.stdout);
    let expected =
        format!("changed since: {SERVER_INTERFACE}: rx-0 gro-flush-timeout is 777000, and was set to 30000");
    assert!(!changed.status.success() && text.contains(&expected), "{changed:?}");
    // The policy's value once more.
    assert!(policies_command(&APPLY).output().unwrap().status.success());
    assert!(status().status.success());
    assert!(restore().status.success());
    assert!(!Path::new("/run/lull").exists());
}

#[testbed_test]
fn a_plan_is_applied_only_as_long_as_it_is_the_one_that_was_looked_at() {
    let _testbed = enter(1);
    let fresh = napi();
    let planned = tempfile::NamedTempFile::new().unwrap();
    let path = planned.path().to_str().unwrap();
    let plan = [&["--format", "json", "plan"], &APPLY[1..]].concat();
    std::fs::write(path, policies_command(&plan).output().unwrap().stdout).unwrap();
    let apply = || policies_command(&[&APPLY[..], &["--as-planned", path]].concat()).output().unwrap();
    std::fs::write(format!("/sys/class/net/{SERVER_INTERFACE}/gro_flush_timeout"), "777000").unwrap();
    let refused = apply();
    let text = String::from_utf8_lossy(&refused.stderr);
    let expected = "now napi-gro-flush-timeout (queue 0) from 777000 to 30000";
    assert!(!refused.status.success() && text.contains(expected), "{refused:?}");
    assert!(!Path::new("/run/lull").exists());
    std::fs::write(format!("/sys/class/net/{SERVER_INTERFACE}/gro_flush_timeout"), "0").unwrap();
    assert_eq!(napi(), fresh);
    let applied = apply();
    assert!(applied.status.success(), "{applied:?}");
    std::fs::write(path, "{}").unwrap();
    assert!(String::from_utf8_lossy(&apply().stderr).contains("it has no steps"));
    assert!(restore().status.success());
    assert_eq!(napi(), fresh);
}
