//! axum's routers on [`net`]'s listeners.
//!
//! A server on tokio becomes one on Lull by its attribute, its listener and `serve`; routes, extractors, state and
//! layers stay as they are:
//!
//! ```no_run
//! use axum::Router;
//! use axum::routing::get;
//!
//! #[runtime::main]
//! async fn main() -> std::io::Result<()> {
//!     let app = Router::new().route("/", get(async || "hello"));
//!     let listener = net::TcpListener::bind("127.0.0.1:8080")?;
//!     adapters::axum::serve(listener, app).await
//! }
//! ```
//!
//! # `Send`
//! axum's handlers are `Send` futures, also here. They run on the worker of their connection and stay on it, but what
//! they hold across an `.await` has to be `Send`: no `Rc`, and no stream of [`net`]. Put such work into a task,
//! `runtime::spawn`, and await its handle: that is `Send` if the task's result is.
//!
//! # What needs tokio's runtime
//! `axum::extract::ws` spawns on tokio's runtime: use `adapters::axum::ws` (feature `ws`) instead. `Sse::keep_alive` and
//! tower-http's `TimeoutLayer` use tokio's timers: see [`tower::TimeoutLayer`](crate::tower::TimeoutLayer).

mod serve;
#[cfg(feature = "ws")]
pub mod ws;

pub use self::serve::{App, serve};
