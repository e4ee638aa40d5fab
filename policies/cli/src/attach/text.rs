//! What `policies attach` prints.

use comfy_table::Table;
use policies::attach::{
    AttachEvent, AttachStatus, Fitness, Forecast, InstanceName, Observation, ObservedInstance,
};
use serde_json::json;

use super::Came;
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

/// Prints what attaching would change; nothing where no connection comes through one queue.
pub fn print_forecasts(forecasts: &[Forecast], format: Format) {
    if format == Format::Json {
        return print_line!("{}", with_schema(json!({ "forecast": forecasts })));
    }
    if forecasts.is_empty() {
        return;
    }
    let mut table = table(&["queue", "", "packets/s", "wake-ups/s", "cores", "a packet waits for"]);
    for forecast in forecasts {
        table.add_row(row(
            &forecast.queue.to_string(),
            "now",
            Some(forecast.packets_per_second),
            forecast.wakeups_per_second,
            format!("{:.2}", forecast.cores),
        ));
        let mut attached = row(
            "",
            &format!("attached, polled for {:.0} % of the time", forecast.polled * 100.0),
            None,
            forecast.wakeups_left_per_second,
            format!("{:.2} and more", forecast.cores_left),
        );
        attached.push(format!("{:.0} µs more on average", forecast.delay_us));
        table.add_row(attached);
    }
    print_line!("{table}");
}

fn row(queue: &str, what: &str, packets: Option<f64>, wakeups: f64, cores: String) -> Vec<String> {
    let packets = or_dash(packets.map(|packets| format!("{packets:.0}")));
    vec![queue.to_owned(), what.to_owned(), packets, format!("{wakeups:.0}"), cores]
}

/// Prints what was measured while the server was attached, beside what was foreseen.
pub fn print_outcome(forecasts: &[Forecast], came: &Came, format: Format) {
    let mut table = table(&["queue", "", "packets/s", "wake-ups/s", "cores"]);
    let mut json = Vec::new();
    for (queue, sums) in came.0.iter().filter(|(_, sums)| sums.seconds > 0.0) {
        let seconds = sums.seconds;
        let (packets, wakeups, cores) =
            (sums.packets / seconds, sums.wakeups / seconds, sums.cores / seconds);
        json.push(json!({
            "queue": queue, "seconds": seconds, "packets_per_second": packets,
            "wakeups_per_second": wakeups, "cores": cores,
        }));
        let mut name = queue.to_string();
        for forecast in forecasts.iter().filter(|forecast| forecast.queue == *queue) {
            table.add_row(row(
                &std::mem::take(&mut name),
                "before",
                Some(forecast.packets_per_second),
                forecast.wakeups_per_second,
                format!("{:.2}", forecast.cores),
            ));
            let (wakeups, cores) = (forecast.wakeups_left_per_second, forecast.cores_left);
            table.add_row(row("", "foreseen", None, wakeups, format!("{cores:.2} and more")));
        }
        let attached = format!("attached, {seconds:.0} s");
        table.add_row(row(&name, &attached, Some(packets), wakeups, format!("{cores:.2}")));
    }
    if json.is_empty() {
        return;
    }
    match format {
        Format::Json => print_line!("{}", with_schema(json!({ "attached": json }))),
        Format::Table => print_line!("{table}"),
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
    let mut table = table(&[
        "queue",
        "attached",
        "mode",
        "packets/s",
        "by busy polling",
        "irqs/s",
        "wake-ups/s",
        "cores",
        "µs/packet",
    ]);
    for queue in &status.queues {
        table.add_row([
            queue.queue.to_string(),
            attached(&queue.instances),
            queue.status.mode_text(),
            format!("{:.0}", queue.packets_per_second),
            format!("{:.1} %", queue.busy_poll_share * 100.0),
            or_dash(queue.interrupts_per_second.map(|rate| format!("{rate:.0}"))),
            format!("{:.0}", queue.wakeups_per_second),
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
