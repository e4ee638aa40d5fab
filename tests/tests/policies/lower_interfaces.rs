//! Interfaces above others, and those with several names: what receives for them is found, or
//! named.

use lab::testbed::SERVER_INTERFACE;
use policies::{Note, Plan, Policy, Settings, host};
use tests::policies_command;
use tests::testbed::{enter, ip, server_builder};
use tests::testbed_test;

#[testbed_test]
fn an_address_above_an_interface_leads_to_the_one_that_has_the_queues() {
    let _testbed = enter(1);
    // Like a VLAN, for which this kernel may have no module.
    ip(&["link", "add", "link", SERVER_INTERFACE, "name", "above0", "type", "macvlan"]);
    ip(&["addr", "add", "198.18.7.1/24", "dev", "above0"]);
    ip(&["link", "set", "above0", "up"]);
    let found = host::interface_of_address("198.18.7.1".parse().unwrap()).unwrap().unwrap();
    assert_eq!(found.name, SERVER_INTERFACE);
    let above = host::interface("above0").unwrap();
    assert_eq!(above.lower, [SERVER_INTERFACE]);
    let plan = Plan::new(Policy::KernelPolling, &above, &Settings::default());
    let note = Note::Interface(format!("above0 has no queues of its own: it receives by {SERVER_INTERFACE}"));
    assert!(plan.is_prevented && plan.notes.contains(&note), "{:?}", plan.notes);
}

#[testbed_test]
fn interfaces_of_a_bridge_are_named_and_none_is_chosen() {
    let _testbed = enter(1);
    ip(&["link", "add", "bridge0", "type", "bridge"]);
    ip(&["link", "add", "port0", "type", "veth", "peer", "name", "other0"]);
    for port in [SERVER_INTERFACE, "port0"] {
        ip(&["link", "set", port, "master", "bridge0"]);
    }
    ip(&["addr", "add", "198.18.7.1/24", "dev", "bridge0"]);
    ip(&["link", "set", "bridge0", "up"]);
    let found = host::interface_of_address("198.18.7.1".parse().unwrap()).unwrap().unwrap();
    assert_eq!(found.name, "bridge0");
    let explained = policies_command(&["explain", "bridge0"]).output().unwrap();
    let text = String::from_utf8(explained.stdout).unwrap();
    assert_eq!(explained.status.code(), Some(3), "{text}");
    assert!(text.contains(&format!("it receives by {SERVER_INTERFACE}, port0.")), "{text}");
    assert!(text.contains("policies explain port0"), "{text}");
}

#[testbed_test(drivers = "uring")]
fn an_alternative_name_stands_for_the_interface() {
    let _testbed = enter(1);
    // Longer than an interface's own name can be.
    let name = "a-name-that-udev-makes-of-the-slot";
    ip(&["link", "property", "add", "dev", SERVER_INTERFACE, "altname", name]);
    assert_eq!(host::interface(name).unwrap().name, SERVER_INTERFACE);
    for arguments in [
        &["show", name][..],
        &["plan", name, "--policy", "kernel-polling"],
        &["apply", name, "--policy", "kernel-polling", "--workers", "1"],
        &["explain", name],
        &["record", name],
        &["watch", name, "--count", "1", "--interval", "0.1"],
        &["restore", name],
    ] {
        let output = policies_command(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert!(text.contains(SERVER_INTERFACE) && !text.contains(name), "{arguments:?}: {text}");
    }
    let runtime = server_builder(Policy::KernelPolling, 1).interface(name).build().unwrap();
    let report = runtime.block_on(async { runtime::reports().remove(0) });
    assert_eq!(report.running, runtime::Running::KernelPolling, "{report}");
}
