//! A load generator that stands in for many client machines. It runs on one core and has its own
//! user-space TCP.
//!
//! A kernel client on one core batches: what it receives in one wait it answers in one burst, and a
//! server is spared interrupts that clients on many machines would cause. A fleet sends each
//! request when it is due, in its own packet, through a packet socket (packet(7)), without the
//! kernel's TCP. Its thread never sleeps.

mod config;
mod connections;
mod link;
mod pacing;
mod packet_socket;
mod recorder;
mod requests;
mod run;
mod segment;
mod tcp;

pub use config::{FleetConfig, FleetLink};
pub use connections::Fleet;
pub use pacing::FleetPacing;
pub use recorder::{FleetLatency, FleetMeasurement};
pub use requests::{FleetRequests, store_records};
pub use run::FleetLoad;
