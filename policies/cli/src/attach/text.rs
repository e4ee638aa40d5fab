//! What `policies attach` prints.

use comfy_table::Table;
use policies::attach::{AttachEvent, AttachStatus, Fitness, InstanceName, Observation, ObservedInstance};
use serde_json::json;

use crate::output::{Format, or_dash, print_findings, print_line, table, with_schema};

/// Rates of less than this number of seconds say little.
const SHORTEST_INTERVAL: f64 = 0.5;

pub fn print_observation(observation: &Observation, format: Format) {
    let verdict = observation.verdict();
    let json = json!({
        "verdict": verdict, "processes": observation.processes, "findings": observation.findings
    });
    format.print(&json, || {
        print_line!("{verdict}");
        if observation.instances().next().is_some() {
            print_line!("{}", instances(observation));
        }
        print_findings(&observation.findings);
    });
}

fn instances(observation: &Observation) -> Table {
    let mut table = table(&["process", "name", "epoll", "sockets", "queues", "threads", ""]);
    for process in &observation.processes {
        for instance in &process.instances {
            let queues: Vec<String> =
                instance.queues.iter().map(|(queue, count)| format!("{queue}: {count}")).collect();
            let threads: Vec<String> = instance.threads.iter().map(i32::to_string).collect();
            table.add_row([
                process.pid.to_string(),
                process.name.clone(),
                instance.descriptor.to_string(),
                instance.sockets.to_string(),
                or_dash((!queues.is_empty()).then(|| queues.join(", "))),
                or_dash((!threads.is_empty()).then(|| threads.join(" "))),
                fitness(instance).to_owned(),
            ]);
        }
    }
    table
}

fn fitness(instance: &ObservedInstance) -> &'static str {
    match instance.fitness {
        Fitness::Aligned => "can be attached",
        Fitness::NoQueue => "no connections from a queue",
        Fitness::SeveralQueues => "several queues",
        Fitness::Nested => "nested",
        Fitness::PollsItself => "polls already",
        Fitness::Unreadable => "can't be read",
        _ => "",
    }
}

pub fn print_event(event: &AttachEvent, format: Format) {
    match format {
        Format::Json => print_line!("{}", with_schema(json!({ "event": event.to_string() }))),
        Format::Table => print_line!("{event}"),
    }
}

pub fn print_status(status: &AttachStatus, format: Format) {
    match format {
        Format::Json => print_line!("{}", with_schema(json!(status))),
        Format::Table => {
            if status.queues.is_empty() {
                print_line!(
                    "{} processes, {} epoll instances; nothing is attached: no connection comes through one queue",
                    status.processes,
                    status.instances
                );
            } else if status.seconds >= SHORTEST_INTERVAL {
                print_line!("{}", rates(status));
            }
        }
    }
}

fn rates(status: &AttachStatus) -> Table {
    let mut table =
        table(&["queue", "attached", "mode", "packets/s", "by busy polling", "irqs/s", "cores", "µs/packet"]);
    for queue in &status.queues {
        table.add_row([
            queue.queue.to_string(),
            attached(&queue.instances),
            queue.status.mode_text(),
            format!("{:.0}", queue.packets_per_second),
            format!("{:.1} %", queue.busy_poll_share * 100.0),
            or_dash(queue.interrupts_per_second.map(|rate| format!("{rate:.0}"))),
            format!("{:.2}", queue.cores),
            or_dash(queue.cpu_us_per_packet.map(|cpu| format!("{cpu:.1}"))),
        ]);
    }
    table
}

fn attached(instances: &[InstanceName]) -> String {
    let names = instances.iter().map(|instance| format!("{} {}", instance.process, instance.pid));
    names.collect::<Vec<_>>().join(", ")
}
