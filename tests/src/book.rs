//! The Rust examples of the README and of the book, as doctests: `cargo test -p tests --doc`.
//!
//! Each page with Rust blocks is listed here.

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/getting-started.md")]
mod getting_started {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/from-tokio.md")]
mod from_tokio {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/which-crates-work.md")]
mod which_crates_work {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/adapters/hyper.md")]
mod adapters_hyper {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/adapters/axum.md")]
mod adapters_axum {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/adapters/tls.md")]
mod adapters_tls {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/adapters/quinn.md")]
mod adapters_quinn {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/adapters/databases.md")]
mod adapters_databases {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/runtime/drivers.md")]
mod runtime_drivers {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/runtime/sockets.md")]
mod runtime_sockets {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/runtime/ring-operations.md")]
mod runtime_ring_operations {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/runtime/policies.md")]
mod runtime_policies {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/runtime/blocking-threads.md")]
mod runtime_blocking_threads {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/runtime/waiting.md")]
mod runtime_waiting {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/runtime/configuration.md")]
mod runtime_configuration {}

#[cfg(doctest)]
#[doc = include_str!("../../docs/runtime/testing.md")]
mod runtime_testing {}
