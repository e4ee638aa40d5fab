//! Two machines and the cable between them: who holds the interfaces' changes, and what they are.

use std::fmt::Write;

use policies::host::{Interface, RxQueue};

use crate::Error;
use crate::processes::{ExperimentProcess, ProcessRole};
use crate::testbed::{Card, CardEnd};

/// Looks at both ends, and changes them if asked to. Two processes, of which one is on the second
/// machine, hold the changes; they restore them when they are dropped, and when this program ends in
/// whatever way.
pub fn hold(
    interface: &str,
    command: &str,
    client_interface: &str,
    changes: bool,
) -> Result<(Card, [ExperimentProcess; 2]), Error> {
    let role = |interface: &str, peer| ProcessRole::Card { interface: interface.to_owned(), peer, changes };
    let mut client = ExperimentProcess::start_by(&role(client_interface, None), command)?;
    let at_client: CardEnd = client.result(&format!("the second machine ({command})"))?;
    let mut server = ExperimentProcess::start(&role(interface, Some(at_client.mac)), None)?;
    let at_server = server.result("this machine")?;
    Ok((Card { server: at_server, client: at_client, command: command.to_owned() }, [server, client]))
}

/// What was found, and what an experiment changes.
pub fn changes(card: &Card) -> String {
    let mut text = String::new();
    for (end, is_server) in [(&card.server, true), (&card.client, false)] {
        let CardEnd { interface, driver, queues, machine, .. } = end;
        let driver = driver.as_deref().unwrap_or("unknown driver");
        let changes = end.changes(is_server).join("; ");
        let _ = writeln!(
            text,
            "{interface} ({driver}, {queues} queues) of {machine}\n  until lab ends: {changes}"
        );
    }
    text
}

/// Whether an interface is set as before an experiment.
pub fn restored(before: &Interface, after: &Interface) -> String {
    let queue = |queue: &RxQueue| {
        let napi = queue.napi.as_ref();
        // Without its thread: one that was started again has another number.
        let napi = napi.map(|it| (it.gro_flush_timeout, it.defer_hard_irqs, it.irq_suspend_timeout));
        (queue.index, napi, queue.irq_affinity.clone(), queue.rps_cpus.clone())
    };
    let settings =
        |interface: &Interface| (interface.queues.iter().map(queue).collect::<Vec<_>>(), interface.channels);
    let name = &before.name;
    if settings(before) == settings(after) {
        format!("{name}: queues and interrupts are set as before")
    } else {
        format!(
            "{name}: queues or interrupts are not set as before: run `policies restore`, and see `policies explain {name}`"
        )
    }
}
