//! The memcached server as a process, and real clients against it.

mod clients;
mod connections;
mod differential;
mod history;
mod operating;
mod overload;
mod privileges;
mod proxy;
mod statistics;
mod systemd;
mod transports;
