//! A plan as shell commands, to read or to run by hand: ethtool, ynl (the kernel's netlink client), sysfs.

use policies::{Interface, Knob, Plan, Step, Value};

/// The commands that do what `apply` would, in its order. Steps that are done already, and those without a command, are
/// comments.
pub fn commands(plan: &Plan, interface: &Interface) -> String {
    let mut text = format!("# {} on {}\n", plan.policy, plan.interface);
    for step in &plan.steps {
        let done = if step.is_done() { "# already so: " } else { "" };
        text.push_str(&format!("# {}: {}\n{done}{}\n", step.knob, step.purpose, command(step, interface)));
    }
    for note in &plan.notes {
        text.push_str(&format!("# note: {note}\n"));
    }
    text
}

fn command(step: &Step, interface: &Interface) -> String {
    let name = quoted(&interface.name);
    let napi = |queue: u32| interface.queues.iter().find(|it| it.index == queue)?.napi.as_ref();
    let napi_set = |queue: u32, attribute: &str| match napi(queue) {
        Some(napi) => format!(
            "ynl --family netdev --do napi-set --json '{{\"id\": {}, \"{attribute}\": {}}}'",
            napi.id, step.target
        ),
        None => format!("# rx-{queue} has no NAPI at present"),
    };
    let thread = |queue: u32| match napi(queue).map(|napi| (napi.id, napi.pid)) {
        Some((_, Some(pid))) => pid.to_string(),
        Some((id, None)) => format!(
            "\"$(ynl --family netdev --do napi-get --json '{{\"id\": {id}}}' --output-json | grep -oP '\"pid\": \\K[0-9]+')\""
        ),
        None => format!("PID-OF-THE-THREAD-OF-RX-{queue}"),
    };
    let in_sysfs = |file: &str, value: String| format!("echo {value} > /sys/class/net/{name}/{file}");
    let mask = || match &step.target {
        Value::Cpus(cpus) => cpus.to_mask(),
        other => other.to_string(),
    };
    match &step.knob {
        Knob::Channels { combined: true } => format!("ethtool -L {name} combined {}", step.target),
        Knob::Channels { combined: false } => format!("ethtool -L {name} rx {}", step.target),
        Knob::RxRing => format!("ethtool -G {name} rx {}", step.target),
        Knob::Coalesce { parameter } => {
            let value = match (&step.target, parameter.is_switch()) {
                (Value::Number(0), true) => "off".to_owned(),
                (_, true) => "on".to_owned(),
                (value, false) => value.to_string(),
            };
            format!("ethtool -C {name} {} {value}", parameter.name())
        }
        Knob::RpsCpus { queue } => in_sysfs(&format!("queues/rx-{queue}/rps_cpus"), mask()),
        Knob::RpsFlowCount { queue } => in_sysfs(&format!("queues/rx-{queue}/rps_flow_cnt"), mask()),
        Knob::XpsCpus { queue } => in_sysfs(&format!("queues/tx-{queue}/xps_cpus"), mask()),
        Knob::DeferHardIrqs => in_sysfs("napi_defer_hard_irqs", mask()),
        Knob::GroFlushTimeout => in_sysfs("gro_flush_timeout", mask()),
        Knob::IrqAffinity { irq, .. } | Knob::TxIrqAffinity { irq, .. } => {
            format!("echo {} > /proc/irq/{irq}/smp_affinity_list", step.target)
        }
        Knob::NapiDeferHardIrqs { queue } => napi_set(*queue, "defer-hard-irqs"),
        Knob::NapiGroFlushTimeout { queue } => napi_set(*queue, "gro-flush-timeout"),
        Knob::NapiIrqSuspendTimeout { queue } => napi_set(*queue, "irq-suspend-timeout"),
        Knob::NapiThreaded { queue } => napi_set(*queue, "threaded"),
        Knob::NapiThreadAffinity { queue } => format!("taskset -cp {} {}", step.target, thread(*queue)),
        Knob::NapiThreadPriority { queue } if step.target == Value::Number(0) => {
            format!("chrt --other -p 0 {}", thread(*queue))
        }
        Knob::NapiThreadPriority { queue } => format!("chrt --fifo -p {} {}", step.target, thread(*queue)),
        other => format!("# {other} = {}: no command does this; `policies apply` does", step.target),
    }
}

/// An interface's name as one word of a shell. The kernel allows every byte in it but `/`, `:` and white space.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    if name.chars().all(plain) { name.to_owned() } else { format!("'{}'", name.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use policies::{Policy, Settings, host};

    use super::*;

    #[test]
    fn every_step_of_a_plan_is_a_command_or_a_comment() {
        let interface = host::interface("lo").unwrap();
        let settings = Settings { worker_cores: vec![0], ..Settings::default() };
        for policy in [Policy::Vanilla, Policy::Packing, Policy::Suppression] {
            let text = commands(&Plan::new(policy, &interface, &settings), &interface);
            assert!(text.starts_with(&format!("# {policy} on lo\n")), "{text}");
            // Loopback has no NAPI, so that only packet steering can be set.
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                assert!(line.starts_with("echo 0000000") && line.ends_with("/rps_cpus"), "{line}");
            }
        }
    }

    #[test]
    fn a_name_that_a_shell_would_split_or_expand_is_quoted() {
        assert_eq!(quoted("eth0.100"), "eth0.100");
        assert_eq!(quoted("a$b"), "'a$b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
