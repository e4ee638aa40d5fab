//! Workload files: TOML files whose keys are the long names of the flags for load and workload.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command};
use toml::{Table, Value};

/// The headings of the flags that a file may contain.
const HEADINGS: [&str; 2] = ["Load", "Workload"];

/// Flags under these headings that select an action instead of describing the load.
const EXCLUDED: [&str; 6] = ["noload", "loadonly", "search", "scan", "compare", "rounds"];

fn arguments(command: &Command) -> impl Iterator<Item = &clap::Arg> {
    command.get_arguments().filter(|argument| {
        let heading = argument.get_help_heading().unwrap_or_default();
        HEADINGS.contains(&heading) && argument.get_long().is_some_and(|long| !EXCLUDED.contains(&long))
    })
}

fn is_switch(argument: &clap::Arg) -> bool {
    matches!(argument.get_action(), ArgAction::SetTrue)
}

fn conflict(command: &Command, one: &clap::Arg, other: &clap::Arg) -> bool {
    let excludes = |one: &clap::Arg, other: &clap::Arg| {
        command.get_arg_conflicts_with(one).iter().any(|argument| argument.get_id() == other.get_id())
    };
    excludes(one, other) || excludes(other, one)
}

fn is_overridden(argument: &clap::Arg, command: &Command, given: &ArgMatches) -> bool {
    command
        .get_arguments()
        .filter(|other| !other.get_long().is_some_and(|long| EXCLUDED.contains(&long)))
        .any(|other| {
            given.value_source(other.get_id().as_str()) == Some(ValueSource::CommandLine)
                && conflict(command, argument, other)
        })
}

/// Reads the flags of a file, in the form of command-line arguments. Leaves out flags that conflict with those
/// `given` on the command line.
pub fn read(path: &Path, command: &Command, given: &ArgMatches) -> Result<Vec<OsString>, String> {
    let invalid = |what: String| format!("{}: {what}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
    let table: Table = text.parse().map_err(|error: toml::de::Error| invalid(error.to_string()))?;
    let mut flags = Vec::new();
    for (key, value) in &table {
        let name = key.replace('_', "-");
        let Some(argument) = arguments(command)
            .find(|argument| argument.get_long().is_some_and(|long| long.replace('_', "-") == name))
        else {
            let known: Vec<&str> = arguments(command).filter_map(clap::Arg::get_long).collect();
            return Err(invalid(format!("unknown key {key:?}; the keys are {}", known.join(", "))));
        };
        if is_overridden(argument, command, given) {
            continue;
        }
        let flag = format!("--{}", argument.get_long().unwrap_or_default());
        let text = match value {
            Value::Boolean(true) if is_switch(argument) => {
                flags.push(flag.into());
                continue;
            }
            Value::Boolean(false) if is_switch(argument) => continue,
            Value::String(text) if !is_switch(argument) => text.clone(),
            Value::Integer(number) if !is_switch(argument) => number.to_string(),
            Value::Float(number) if !is_switch(argument) => number.to_string(),
            _ if is_switch(argument) => return Err(invalid(format!("{key} must be true or false"))),
            _ => return Err(invalid(format!("{key} must be a number or a string"))),
        };
        flags.push(format!("{flag}={text}").into());
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Parser};

    use super::*;
    use crate::flags::Flags;

    fn write(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn parse(line: &str) -> (ArgMatches, Flags) {
        let line = std::iter::once("loadgen").chain(line.split_whitespace());
        let matches = Flags::command().try_get_matches_from(line).unwrap();
        let flags = Flags::from_arg_matches(&matches).unwrap();
        (matches, flags)
    }

    #[test]
    fn a_file_means_what_its_flags_mean() {
        for (text, line) in [
            ("", ""),
            (
                "qps = 5000\ntime = 2.5\niadist = \"fb_ia\"\nmix = \"get=90,set=9\"",
                "-q 5000 -t 2.5 -i fb_ia --mix get=90,set=9",
            ),
            ("fill = true\nttl = 60\nverify = false\nkeysize = \"fb_key\"", "--fill --ttl 60 -K fb_key"),
        ] {
            let arguments = read(write(text).path(), &Flags::command(), &parse("").0).unwrap();
            let read =
                Flags::try_parse_from(std::iter::once(OsString::from("loadgen")).chain(arguments)).unwrap();
            assert_eq!(read.config().unwrap(), parse(line).1.config().unwrap(), "{line}");
        }
    }

    #[test]
    fn flags_of_the_command_line_replace_conflicting_ones_of_the_file() {
        let file = write("update = 0.5\nqps = 100\nttl = 7\n");
        let command = Flags::command();
        let flags = |line| read(file.path(), &command, &parse(line).0).unwrap();
        assert_eq!(flags("--mix get=1"), ["--qps=100", "--ttl=7"]);
        assert_eq!(flags("--replay /dev/null --ttl 5"), ["--ttl=7", "--update=0.5"]);
    }

    #[test]
    fn an_error_in_a_file_is_named() {
        for (text, word) in [
            ("keysizes = 3", "keysizes"),
            ("qps = [1]", "a number or a string"),
            ("fill = 1", "true or false"),
            ("qps = ", "TOML"),
            ("servers = \"x\"", "unknown key"),
        ] {
            let error = read(write(text).path(), &Flags::command(), &parse("").0).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
