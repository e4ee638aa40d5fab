//! The memcached server as a process, and real clients against it.

mod clients;
mod connections;
mod descriptors;
mod differential;
mod history;
mod hostile_clients;
mod operating;
mod overload;
mod privileges;
mod statistics;
mod systemd;
mod transports;
