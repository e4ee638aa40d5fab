//! The memcached server where something goes wrong: networks that lose packets, clients that vanish, no descriptors, no
//! memory, no CPU time, hostile clients, pauses.

mod cpu_time;
mod descriptors;
mod hostile_clients;
mod memory;
mod network;
mod pauses;
mod soak;
mod tunnel;
