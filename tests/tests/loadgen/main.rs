//! The load generator against memcached, against servers whose behavior is known, and against a
//! packet capture.

mod agents;
mod assignment;
mod command;
mod measurement;
mod operations;
mod redis;
mod transports;
mod wire;
mod workloads;
