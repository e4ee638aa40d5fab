//! The web server as a process: what it serves, what it refuses, and how it is operated.

mod browser;
mod clients;
mod differential;
mod frames;
mod hostile;
mod http2;
mod http3;
mod operating;
mod reload;
mod site;
mod slow;
mod smuggling;
mod static_files;
mod strict;
mod tls;

#[path = "../../../adapters/tests/authority/mod.rs"]
mod authority;
