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
mod postgres_pool;
mod quic;
mod tls_streams;
#[cfg(feature = "tokio-context")]
mod tokio_context;
#[cfg(feature = "tokio-context")]
mod tokio_in_handlers;
mod tower_services;
#[cfg(not(feature = "tokio-context"))]
mod without_tokio_context;

#[allow(dead_code, reason = "a program, too")]
#[path = "../../examples/grpc_chat.rs"]
mod grpc_chat;
// Examples use it, too.
#[path = "../servers/mod.rs"]
mod servers;

#[path = "../../../runtime/tests/suite/drivers.rs"]
mod drivers;
