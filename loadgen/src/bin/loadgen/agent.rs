//! The agent mode.

use std::error::Error;
use std::io::Write;

use loadgen::{Agent, AgentOptions};

use crate::flags::Flags;
use crate::session::watch_interrupt;

/// Serves coordinators until it is interrupted.
pub fn run(flags: &Flags) -> Result<(), Box<dyn Error>> {
    let options = AgentOptions {
        listen: (flags.listen, flags.agent_port).into(),
        secret: flags.secret()?,
        weight: flags.lambda_mul,
    };
    flags.builder()?.build()?.block_on(async {
        let stop = watch_interrupt()?;
        let agent = Agent::bind(options)?;
        eprintln!("loadgen: agent listens on {}", agent.local_addr()?);
        // Unlike `eprintln!`, this doesn't panic if nobody reads stderr any more.
        agent.serve(&stop, |event| drop(writeln!(std::io::stderr(), "loadgen: {event}"))).await;
        Ok(())
    })
}
