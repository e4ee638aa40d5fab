//! What a runtime is built from: the builder, its configuration with that of the environment, the application's hooks, and
//! the policy that is applied to the host.

pub(crate) mod builder;
pub(crate) mod config;
pub(crate) mod hooks;
pub(crate) mod host_policy;
