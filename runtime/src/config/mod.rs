//! What the application asks for: its [`settings`], merged with the environment's, how its workers wait
//! ([`wait_strategy`]), and its functions that workers call ([`hooks`]).

pub(crate) mod hooks;
pub(crate) mod settings;
pub(crate) mod wait_strategy;
