//! Flags of the runtime: policy, driver and cores.

use policies::controller::{CpuBudget, LatencyBudget};
use policies::{Change, Cpus, GraceTime, Policy};
use runtime::{Builder, DriverKind, WaitStrategy};

/// How packets reach the workers.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Network policy")]
pub struct NetworkFlags {
    #[arg(long, help = format!("Policy: {} [env: RUNTIME_POLICY]", Policy::names()))]
    pub policy: Option<Policy>,
    /// Network interface of the clients; by default the one that has the first address
    #[arg(long, value_name = "NAME")]
    pub interface: Option<String>,
    /// How idle workers wait: block, spin or adaptive [env: RUNTIME_WAIT]
    #[arg(long)]
    pub wait: Option<WaitStrategy>,
    /// Driver: auto, epoll or uring [env: RUNTIME_DRIVER]
    #[arg(long)]
    pub driver: Option<DriverKind>,
    /// Affinity of interrupts and workers: pin (move interrupts to their workers' cores and keep
    /// them there), follow (move workers to their interrupts' cores) or none [env:
    /// RUNTIME_AFFINITY]
    #[arg(long, value_name = "HOW")]
    pub affinity: Option<policies::Affinity>,
    /// Cores to pin workers to, for example 0-3
    #[arg(long)]
    pub cores: Option<Cpus>,
    /// Cores that packing concentrates network processing on, and on which the threads of
    /// kernel-thread poll
    #[arg(long, value_name = "CORES")]
    pub packing_cores: Option<Cpus>,
    /// Delay beyond vanilla's that kernel-polling may cost in exchange for CPU time, in
    /// microseconds from 0 to 1000 [env: RUNTIME_LATENCY_BUDGET] [default: 0]
    #[arg(long, value_name = "US")]
    pub latency_budget: Option<LatencyBudget>,
    /// CPU time beyond vanilla's that kernel-polling may cost in exchange for less delay, in
    /// percent from 0 to 400 [env: RUNTIME_CPU_BUDGET] [default: 0]
    #[arg(long, value_name = "PERCENT")]
    pub cpu_budget: Option<CpuBudget>,
    /// Time from an empty busy poll to the timer's poll, in microseconds, or auto: under
    /// kernel-polling the controller chooses it, with the queue's mode [env: RUNTIME_GRACE_TIME]
    /// [default: auto]
    #[arg(long, value_name = "US")]
    pub gro_flush_timeout: Option<GraceTime>,
}

impl NetworkFlags {
    /// A runtime's builder with these flags, and in place of `--interface` the interface that was
    /// found. Changes of the host's settings are logged.
    pub fn builder(&self, workers: Option<u16>, interface: Option<&str>) -> Builder {
        let mut builder = Builder::new().on_host_change(|change| match change {
            Change::QueueSettings { .. } => tracing::info!("{change}"),
            _ => tracing::warn!("{change}"),
        });
        if let Some(workers) = workers {
            builder = builder.workers(workers.into());
        }
        if let Some(name) = interface {
            builder = builder.interface(name);
        }
        if let Some(policy) = self.policy {
            builder = builder.policy(policy);
        }
        if let Some(wait) = self.wait {
            builder = builder.wait(wait);
        }
        if let Some(driver) = self.driver {
            builder = builder.driver(driver);
        }
        if let Some(cores) = self.cores.clone() {
            builder = builder.cores(cores);
        }
        if let Some(affinity) = self.affinity {
            builder = builder.affinity(affinity);
        }
        if let Some(cores) = self.packing_cores.clone() {
            builder = builder.packing_cores(cores);
        }
        if let Some(time) = self.gro_flush_timeout {
            builder = builder.grace_time(time);
        }
        if let Some(budget) = self.latency_budget {
            builder = builder.latency_budget(budget);
        }
        if let Some(budget) = self.cpu_budget {
            builder = builder.cpu_budget(budget);
        }
        builder
    }
}

/// The interface that has an address, except loopback, which has no queues to configure.
pub fn interface_of(address: std::net::IpAddr) -> Option<String> {
    let interface = policies::host::interface_of_address(address).ok().flatten()?;
    (interface.name != "lo").then_some(interface.name)
}
