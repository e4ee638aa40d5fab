//! The limit of open descriptors.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub(crate) fn raise() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}
