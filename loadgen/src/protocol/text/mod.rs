//! The text protocol, with its meta commands.

pub(crate) mod requests;
pub(crate) mod responses;
