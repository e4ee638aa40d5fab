//! `lab card` on two namespaces in the place of two machines.

use std::process::{Command, Output, Stdio};

use lab::testbed::Namespace;
use policies::host;
use policies::netlink::ethtool::Ethtool;
use policies::netlink::netdev::Napi;
use policies::netlink::route;
use serial_test::serial;
use tests::isolated;
use tests::memcached::wait_until;
use tests::testbed::ip;

const SERVER: &str = "lull-card0";
const CLIENT: &str = "lull-card1";
/// The second machine: a namespace with a name, so that a command can start a program there.
const MACHINE: &str = "lull-lab-card-test";

/// Enters a namespace with a cable to the second machine's. Its name is one in this process's own
/// /run, and gone with the process.
fn connect() {
    Namespace::new().unwrap().enter_process().unwrap();
    ip(&["netns", "add", MACHINE]);
    let queues = ["numrxqueues", "2", "numtxqueues", "2"];
    let server = [&["link", "add", SERVER][..], &queues, &["type", "veth"]].concat();
    ip(&[&server[..], &["peer", "name", CLIENT], &queues, &["netns", MACHINE]].concat());
    ip(&["-n", MACHINE, "link", "set", CLIENT, "up"]);
    ip(&["link", "set", "lo", "up"]);
    ip(&["link", "set", SERVER, "up"]);
    // A veth has a NAPI while GRO is on.
    let index = host::interface(SERVER).unwrap().index;
    Ethtool::open().unwrap().set_features(index, &[("rx-gro", true)]).unwrap();
}

fn lab_card(interface: &str, client_interface: &str) -> Command {
    let lab = tests::own_program("lab");
    let client = format!("ip netns exec {MACHINE} {}", lab.display());
    let mut command = Command::new(lab);
    command.args(["card", "--interface", interface, "--client", &client]);
    command.args(["--client-interface", client_interface]);
    command
}

fn addresses() -> Vec<String> {
    let index = host::interface(SERVER).unwrap().index;
    let here = route::addresses().unwrap().into_iter().filter(|(interface, _)| *interface == index);
    let mut all: Vec<String> =
        here.map(|(_, address)| address.to_string()).filter(|it| it.contains('.')).collect();
    let there =
        Command::new("ip").args(["-n", MACHINE, "-4", "-o", "addr", "show", CLIENT]).output().unwrap();
    all.extend(String::from_utf8(there.stdout).unwrap().lines().map(str::to_owned));
    all
}

fn error(output: Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
#[isolated(root)]
#[serial]
fn a_card_is_checked_changed_and_restored() {
    connect();
    let refused =
        |interface: &str, client: &str| error(lab_card(interface, client).arg("--check").output().unwrap());
    let text = refused("lo", CLIENT);
    assert!(text.contains("this machine: lo is no Ethernet interface"), "{text}");
    let text = refused(SERVER, "nonesuch");
    assert!(text.contains("the second machine") && text.contains("no interface \"nonesuch\""), "{text}");
    ip(&["-n", MACHINE, "link", "set", CLIENT, "down"]);
    let text = refused(SERVER, CLIENT);
    assert!(text.contains(&format!("ip link set {CLIENT} up")), "{text}");
    ip(&["-n", MACHINE, "link", "set", CLIENT, "up"]);
    ip(&["addr", "add", "198.18.0.9/32", "dev", "lo"]);
    let text = refused(SERVER, CLIENT);
    assert!(text.contains("this machine has the address 198.18.0.9"), "{text}");
    ip(&["addr", "del", "198.18.0.9/32", "dev", "lo"]);

    let checked = lab_card(SERVER, CLIENT).arg("--check").output().unwrap();
    let text = String::from_utf8(checked.stderr).unwrap();
    assert!(checked.status.success() && text.contains("the address 198.18.0.1/24"), "{text}");
    assert_eq!(addresses(), Vec::<String>::new(), "looking changes nothing");

    let folder = tempfile::tempdir().unwrap();
    let mut command = lab_card(SERVER, CLIENT);
    command.args(["--quick", "--anyway", "--rates", "500", "--rounds", "1", "--contenders"]);
    command.args(["vanilla:epoll,kernel-polling", "--format", "json", "--output"]).arg(folder.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let turns = report["results"]["measurements"][0]["turns"].as_array().unwrap();
    assert!(turns.iter().all(|turn| turn["figures"]["throughput"].as_f64() > Some(100.0)), "{turns:?}");
    assert_eq!(report["servers"][1]["ran"], "kernel-polling", "{report}");
    assert!(report["notes"].to_string().contains("queues and interrupts are set as before"), "{report}");
    assert_eq!(addresses(), Vec::<String>::new());
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("\"throughput\""), "the page has every number");
}

#[test]
#[isolated(root)]
#[serial]
fn interfaces_are_restored_when_lab_is_killed() {
    connect();
    let napis = || -> Vec<Napi> {
        host::interface(SERVER).unwrap().queues.into_iter().filter_map(|queue| queue.napi).collect()
    };
    let before = napis();
    assert_eq!(before.len(), 2);
    let folder = tempfile::tempdir().unwrap();
    let mut command = lab_card(SERVER, CLIENT);
    command.args(["--anyway", "--rates", "500", "--contenders", "kernel-polling", "--output"]);
    let mut lab = command.arg(folder.path()).stderr(Stdio::null()).spawn().unwrap();
    // The server has a worker for each queue.
    wait_until("both ends have addresses and both queues the policy's settings", || {
        let is_set = |(now, then): (&Napi, &Napi)| now.irq_suspend_timeout != then.irq_suspend_timeout;
        addresses().len() == 2 && napis().iter().zip(&before).all(is_set)
    });
    lab.kill().unwrap();
    lab.wait().unwrap();
    wait_until("both ends are restored", || addresses().is_empty() && napis() == before);
}
