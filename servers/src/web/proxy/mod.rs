//! The reverse proxy: forwards requests to upstreams over pooled HTTP/1.1 connections.
//!
//! A worker has its own pool, so no lock is taken for a request. A connection is driven by the task
//! of the request that uses it: no task is spawned and none but the client's is woken.

mod body;
mod client_share;
mod connection;
mod error;
mod forward;
mod headers;
mod health_check;
mod own_fault;
mod pool;
mod request_body;
mod route;
mod upgrade;
mod upstream;

#[cfg(test)]
mod tests;

pub use self::body::UpstreamBody;
pub use self::error::{ProxyConfigError, UpstreamProblem};
pub use self::route::{ClientInfo, ProxyRoute};
pub use self::upstream::UpstreamStatus;
