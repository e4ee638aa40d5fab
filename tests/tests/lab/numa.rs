//! The `lab numa` command. In the guest `guest/numa_nodes.rs` runs it on two nodes.

use std::process::{Command, Output};

use policies::Cpus;

fn lab_numa(flags: &[&str]) -> Output {
    Command::new(tests::own_program("lab")).arg("numa").args(flags).output().unwrap()
}

/// Also on a machine with several nodes: a core is of one of them.
#[test]
fn lab_numa_says_what_is_missing_where_a_process_has_the_cores_of_one_node() {
    let core = Cpus::allowed().unwrap().iter().next().unwrap();
    let pinned = std::thread::spawn(move || {
        Cpus::one(core).pin(None).unwrap();
        lab_numa(&["--quick"])
    });
    let output = pinned.join().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(output.stdout.is_empty(), "{output:?}");
    assert!(error.starts_with("lab: `lab numa` needs two NUMA nodes with three cores each"), "{error}");
    let seen = [&format!("it may use cores {core} of node ")[..], "the kernel names no node"];
    assert!(seen.iter().any(|seen| error.contains(seen)), "{error}");
}

#[test]
fn lab_numa_refuses_policies_that_need_cores_of_their_own() {
    for policy in ["packing", "kernel-thread"] {
        let output = lab_numa(&["--policies", &format!("vanilla,{policy}")]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(&format!("--policies {policy}: ")), "{error}");
    }
}
