//! What a memcached server loses on the cores of two NUMA nodes: the experiment of Table 4 and Figures 6 to 8 of Cai and
//! Karsten, "Kernel vs. User-Level Networking: Don't Throw Out the Stack with the Interrupts" (2023).
//!
//! Servers with as many workers as each other run on the first node, on the second one, and with half of their workers on
//! each. The load's threads are on cores of both nodes that no server uses, the same for all servers. So what differs is
//! how far the workers are from each other, and from the pages of the store that another worker has written.

mod config;
mod cores;
mod measurement;
mod rows;

pub use config::{NumaConfig, NumaContestant};
pub use cores::{NumaCores, Placement};
pub use measurement::{NumaMeasurements, NumaTurn, measure};
pub use rows::{NumaRow, numa_rows};
