//! The Rust examples of the README and of the book, as doctests: `cargo test -p tests --doc`.
//!
//! Each page with Rust blocks is listed here.

macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {$(
        #[cfg(doctest)]
        #[doc = include_str!(concat!("../../", $page))]
        mod $name {}
    )*};
}

pages! {
    readme: "README.md",
    getting_started: "docs/getting-started.md",
    from_tokio: "docs/from-tokio.md",
    which_crates_work: "docs/which-crates-work.md",
    adapters_hyper: "docs/adapters/hyper.md",
    adapters_axum: "docs/adapters/axum.md",
    adapters_tls: "docs/adapters/tls.md",
    adapters_quinn: "docs/adapters/quinn.md",
    adapters_databases: "docs/adapters/databases.md",
    runtime_drivers: "docs/runtime/drivers.md",
    runtime_sockets: "docs/runtime/sockets.md",
    runtime_ring_operations: "docs/runtime/ring-operations.md",
    runtime_policies: "docs/runtime/policies.md",
    runtime_waiting: "docs/runtime/waiting.md",
    runtime_configuration: "docs/runtime/configuration.md",
    runtime_testing: "docs/runtime/testing.md",
}
