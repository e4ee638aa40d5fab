//! Flags that a subcommand takes with others, and that have no effect there: they are refused, not ignored.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use crate::flags::Flags;

/// What a subcommand decides itself, and the arguments that have no effect for that reason.
const INEFFECTIVE: [(&str, &str, &[&str]); 2] = [
    (
        "drivers",
        "compares all drivers under vanilla and under kernel polling",
        &["contenders", "driver", "policies"],
    ),
    (
        "peers",
        "compares servers whose drivers and policies are given",
        &["contenders", "driver", "policies", "memcached", "wait"],
    ),
];

/// What has no effect on loopback for `peers`, whose loads are given there.
const PEERS_ON_LOOPBACK: [&str; 8] = [
    "connections",
    "gro_flush_timeout",
    "latency_budget",
    "packing_cores",
    "rates",
    "capacity_p99",
    "depth",
    "think",
];

/// Parses the command line. Exits with 2 and a message where it can't be used.
pub fn parse() -> Flags {
    let matches = Flags::command().get_matches();
    if let Some(message) = complaint(&matches) {
        Flags::command().error(ErrorKind::ArgumentConflict, message).exit();
    }
    Flags::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// What is wrong with the flags of the subcommand, if anything.
fn complaint(matches: &ArgMatches) -> Option<String> {
    let (name, matches) = matches.subcommand()?;
    let (_, reason, arguments) = INEFFECTIVE.iter().find(|(subcommand, ..)| *subcommand == name)?;
    if let Some(flag) = given(matches, arguments) {
        return Some(format!("{flag} has no effect on `lab {name}`, which {reason}; leave it out"));
    }
    if name == "peers"
        && matches.get_flag("loopback")
        && let Some(flag) = given(matches, &PEERS_ON_LOOPBACK)
    {
        return Some(format!(
            "{flag} has no effect on `lab peers --loopback`, whose loads are given; leave it out"
        ));
    }
    let budgets = matches.get_raw("latency_budget").map_or(0, Iterator::count);
    if name != "drivers" && budgets > 1 {
        return Some(format!("`lab {name}` takes one --latency-budget; `lab compare` compares several"));
    }
    None
}

/// The first of these arguments that the command line has, as it is written there.
fn given(matches: &ArgMatches, arguments: &[&str]) -> Option<String> {
    let on_command_line = |id: &&&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    arguments.iter().find(on_command_line).map(|id| format!("--{}", id.replace('_', "-")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint_about(arguments: &[&str]) -> Option<String> {
        complaint(&Flags::command().try_get_matches_from([&["lab"], arguments].concat()).unwrap())
    }

    #[test]
    fn a_flag_without_effect_is_named_with_the_reason() {
        for (arguments, named) in [
            (&["drivers", "--driver", "uring"][..], "--driver has no effect on `lab drivers`"),
            (&["peers", "--policies", "vanilla"], "--policies has no effect on `lab peers`"),
            (&["peers", "--wait", "spin"], "--wait has no effect on `lab peers`"),
            (&["peers", "--loopback", "--think", "0"], "--think has no effect on `lab peers --loopback`"),
            (&["peers", "--latency-budget", "0,20"], "`lab peers` takes one --latency-budget"),
        ] {
            let complaint = complaint_about(arguments).unwrap_or_else(|| panic!("{arguments:?} were taken"));
            assert!(complaint.contains(named), "{complaint}");
        }
    }

    #[test]
    fn flags_with_an_effect_and_defaults_are_taken() {
        for arguments in [
            &[][..],
            &["--driver", "uring"],
            &["compare", "--latency-budget", "0,20"],
            &["peers", "--quick"],
            &["peers", "--think", "5"],
            &["drivers", "--latency-budget", "0,20"],
        ] {
            assert_eq!(complaint_about(arguments), None, "{arguments:?}");
        }
    }

    #[test]
    fn every_argument_that_is_refused_exists() {
        let command = Flags::command();
        for (subcommand, _, arguments) in INEFFECTIVE {
            let subcommand = command.find_subcommand(subcommand).unwrap();
            for argument in arguments.iter().chain(&PEERS_ON_LOOPBACK) {
                assert!(subcommand.get_arguments().any(|it| it.get_id() == argument), "{argument}");
            }
        }
    }
}
