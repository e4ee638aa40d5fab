//! `lab instructions`.

use lab::instructions::{self, Counting, InstructionReport};

use crate::flags::InstructionFlags;
use crate::output::{Failure, print};
use crate::progress_bar::with_bar;

pub fn run(flags: &InstructionFlags) -> Result<(), Failure> {
    let folder = flags.guest.clone().or_else(|| std::env::var_os("LULL_GUEST").map(Into::into));
    let folder =
        folder.ok_or("no machine to count on: run LULL_GUEST=$(tests/guest/prepare) lab instructions")?;
    let kernel = std::fs::read_to_string(folder.join("fetched"))
        .map_err(|error| format!("{}: {error}: tests/guest/prepare makes this folder", folder.display()))?;
    let mut counting = Counting { runs: flags.runs, ..Counting::default() };
    for (asked, used) in [
        (&flags.devices, &mut counting.devices),
        (&flags.drivers, &mut counting.drivers),
        (&flags.policies, &mut counting.policies),
        (&flags.loads, &mut counting.loads),
    ] {
        if !asked.is_empty() {
            used.clone_from(asked);
        }
    }
    let rows = with_bar(counting.devices.len() * usize::from(counting.runs), |progress| {
        instructions::count(&folder, &counting, progress)
    })?;
    let report = InstructionReport::new(kernel.trim().to_owned(), counting, rows);
    print(flags.format, &report, &report.text())
}
