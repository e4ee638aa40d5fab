//! Load from several machines: a coordinator configures agents, all start at the same time, and
//! their measurements are merged without loss.
//!
//! An agent generates load on behalf of a coordinator. Unless it listens on the loopback address,
//! both need the same identity, a certificate with its key: they speak TLS, and each accepts only a
//! peer that has that key.

#[cfg(feature = "agents")]
pub(crate) mod agent;
#[cfg(feature = "agents")]
mod agent_group;
#[cfg(feature = "agents")]
pub(crate) mod channel;
#[cfg(all(fuzzing, feature = "agents"))]
pub mod fuzzing;

use std::sync::atomic::AtomicBool;

#[cfg(feature = "agents")]
use crate::agents::agent_group::AgentGroup;
use crate::config::Config;
use crate::error::Error;
use crate::report::Report;
use crate::run::run_until;
use crate::stats::timeline::Progress;

/// Runs loads on this machine and, with the `agents` feature, on agents at the same time.
#[derive(Debug, Default)]
pub struct Coordinator {
    #[cfg(feature = "agents")]
    agents: AgentGroup,
}

impl Coordinator {
    pub fn local() -> Self {
        Self::default()
    }

    /// Connects to agents, given by name and address. The name is used in reports and errors.
    /// `identity` is the file of [`AgentOptions`](crate::AgentOptions::identity). `weight` is the coordinator's share of the rate per connection; each agent has its own
    /// weight.
    ///
    /// # Errors
    /// Returns [`Error::Agent`] if an agent can't be reached, speaks another version of the
    /// protocol, has another identity or works for another coordinator, and [`Error::Config`] if
    /// the identity can't be used.
    #[cfg(feature = "agents")]
    pub async fn connect(
        agents: &[(String, std::net::SocketAddr)],
        identity: Option<&std::path::Path>,
        weight: u32,
    ) -> Result<Self, Error> {
        Ok(Self { agents: AgentGroup::connect(agents, identity, weight).await? })
    }

    /// Runs a load together with all agents, as [`run_until`] does without agents. If an agent is
    /// lost, the report is invalid and names the agent.
    ///
    /// # Errors
    /// As [`run_until`]. Also returns [`Error::Agent`] if an agent can't prepare the load, or was
    /// lost in an earlier run.
    pub async fn run(
        &mut self,
        config: &Config,
        stop: &AtomicBool,
        progress: impl FnMut(Progress),
    ) -> Result<Report, Error> {
        #[cfg(feature = "agents")]
        if !self.agents.is_empty() {
            return self.agents.run(config, stop, progress).await;
        }
        run_until(config, stop, progress).await
    }
}

/// The default port of agents; mutilate's port.
pub const AGENT_PORT: u16 = 5556;
