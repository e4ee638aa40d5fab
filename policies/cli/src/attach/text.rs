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
        let polled = format!("attached, polled for {:.0} % of the time", forecast.polled * 100.0);
        let [now, mut attached] = rows(forecast, "now", &polled);
        attached.push(format!("{:.0} µs more on average", forecast.delay_us));
        table.add_row(now).add_row(attached);
    }
    print_line!("{table}");
}

/// What was measured and what is foreseen, as rows with these names.
fn rows(forecast: &Forecast, measured: &str, foreseen: &str) -> [Vec<String>; 2] {
    let Forecast { packets_per_second, wakeups_per_second, wakeups_left_per_second, cores_left, .. } =
        *forecast;
    let (queue, cores) = (forecast.queue.to_string(), format!("{:.2}", forecast.cores));
    let left = format!("{cores_left:.2} and more");
    [
        row(&queue, measured, Some(packets_per_second), wakeups_per_second, cores),
        row("", foreseen, None, wakeups_left_per_second, left),
    ]
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
        let forecast = forecasts.iter().find(|forecast| forecast.queue == *queue);
        table.add_rows(forecast.into_iter().flat_map(|forecast| rows(forecast, "before", "foreseen")));
        let name = if forecast.is_some() { String::new() } else { queue.to_string() };
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
