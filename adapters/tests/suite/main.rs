//! What runs on the adapters, over loopback. One program, since each has to be linked.

mod authority;
mod axum_app;
mod common;
mod databases;
mod ecosystem;
mod file_bodies;
mod grpc;
mod grpc_interop;
mod grpc_tls;
mod hostile_clients;
mod http_server;
mod https_client;
mod io;
mod quic;
mod tls_streams;
mod tokio_context;
mod tower_services;

// Examples use these, too.
#[path = "../chat/mod.rs"]
mod chat;
#[path = "../servers/mod.rs"]
mod servers;

#[path = "../../../runtime/tests/suite/drivers.rs"]
mod drivers;
