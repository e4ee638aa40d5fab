//! What the application asks for: its [`settings`], merged with the environment's, how its workers
//! wait ([`wait_strategy`]), its functions that workers call ([`hooks`]), and what its threads are
//! called ([`threads`]).

pub(crate) mod hooks;
pub(crate) mod settings;
pub(crate) mod threads;
pub(crate) mod wait_strategy;
