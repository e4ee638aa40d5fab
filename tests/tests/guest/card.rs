//! `lab card` on two cards of one guest, whose cables lead to a bridge: the second card is in a namespace in the place of
//! a second machine.

use serde_json::Value;
use serial_test::serial;

use super::boot;
use super::machine::Nic;

#[test]
#[serial]
fn lab_card_measures_on_cards_and_restores_them() {
    let Some(mut guest) = boot(&[Nic::E1000e, Nic::Igb], 1) else { return };
    guest.join_cables();
    let [server, client] = [guest.interfaces[0].clone(), guest.interfaces[1].clone()];
    guest.run(
        "unshare -n -m sh -c 'mount -t sysfs sys /sys; echo $$ >/tmp/machine; exec sleep 3600' >/dev/null 2>&1 &",
    );
    guest.wait_for("[ -s /tmp/machine ]");
    let machine = format!("nsenter -t {} -n -m", guest.run("cat /tmp/machine").trim());
    guest.run(&format!("ip link set {client} netns $(cat /tmp/machine)"));
    guest.run(&format!("{machine} ip link set {client} up"));
    guest.wait_for(&format!("{machine} grep -q 1 /sys/class/net/{client}/carrier"));

    let before = guest.settings(&server);
    let card = format!("lab card --interface {server} --client '{machine} lab' --client-interface {client}");
    let checked = guest.run(&format!("{card} --check"));
    println!("{checked}");
    assert!(checked.contains("the address 198.18.0.1/24"), "{checked}");
    // An emulated machine is late with everything: what is asked is that the load got through, and that nothing is
    // left changed.
    let load = "--quick --anyway --rates 200 --rounds 1 --contenders vanilla:epoll,kernel-polling --output /tmp/card";
    println!("{}", guest.run(&format!("{card} {load}")));
    let report: Value = guest.json("cat /tmp/card/results.json");
    let turns = report["results"]["measurements"][0]["turns"].as_array().unwrap();
    assert!(turns.len() >= 2, "{report}");
    assert!(turns.iter().any(|turn| turn["figures"]["throughput"].as_f64() > Some(20.0)), "{turns:?}");
    assert!(report["notes"].to_string().contains("queues and interrupts are set as before"), "{report}");
    assert_eq!(guest.settings(&server), before);
    assert!(!guest.run("ip addr").contains("198.18.0."));
    assert!(!guest.run(&format!("{machine} ip addr")).contains("198.18.0."));
}
