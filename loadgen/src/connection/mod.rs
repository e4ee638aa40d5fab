//! Client connections: requests out, responses in, latencies recorded.

mod datagrams;
pub(crate) mod pipeline;
mod response_handler;
mod stream_session;
pub(crate) mod worker_state;
