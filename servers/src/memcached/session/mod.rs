//! A session: one client's conversation, independent of its socket. Bytes go in, replies come out.

mod buffer_charge;
mod data_block;
mod dispatch;
mod pending_input;
mod state;

#[cfg(test)]
mod tests;

pub use buffer_charge::BufferCharge;
pub use state::{KeyDump, RequestOutcome, SEND_AT, Session, SessionStep};
