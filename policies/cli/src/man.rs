//! The man page: one page with a section for each command.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::CommandFactory;

use crate::arguments::Cli;
use crate::error::CommandError;
use crate::output::print_line;

pub fn print() -> Result<ExitCode, CommandError> {
    let page = page().map_err(CommandError::Man)?;
    print_line!("{}", String::from_utf8_lossy(&page).trim_end());
    Ok(ExitCode::SUCCESS)
}

fn page() -> io::Result<Vec<u8>> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page)?;
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        let name = below.get_bin_name().unwrap_or(below.get_name()).to_uppercase();
        writeln!(page, ".SH \"{name}\"")?;
        if let Some(about) = below.get_long_about().or(below.get_about()) {
            writeln!(page, "{about}")?;
        }
        // A man page has one OPTIONS section: here each command's options are a paragraph.
        let mut options = Vec::new();
        clap_mangen::Man::new(below.clone()).render_options_section(&mut options)?;
        page.extend(String::from_utf8_lossy(&options).replace(".SH OPTIONS", ".PP").into_bytes());
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_a_section_for_every_command_with_its_options() {
        let page = String::from_utf8(page().unwrap()).unwrap();
        for section in ["POLICIES EXPLAIN", "POLICIES WATCH", "POLICIES STATUS"] {
            assert_eq!(page.matches(&format!(".SH \"{section}\"")).count(), 1, "{section}");
        }
        assert!(page.contains("dry\\-run") && page.contains("peak\\-packet\\-rate"), "{page}");
    }
}
