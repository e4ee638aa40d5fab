//! The load generator against memcached, against servers whose behavior is known, and against a packet capture.

mod agents;
mod measurement;
mod transports;
mod wire;
