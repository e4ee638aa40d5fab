//! The host as it is now: interfaces, queues, NAPIs, interrupts and CPUs. Reads only, except for
//! interrupt affinity and the scheduling of kernel threads.

pub(crate) mod device;
mod discover;
mod facts;
mod idle_cores;
mod interface;
pub(crate) mod irq;
mod irq_names;
pub(crate) mod machine;
pub(crate) mod net_namespace;
pub(crate) mod numa;
pub(crate) mod process;
#[cfg(feature = "tools")]
mod recording;
pub mod scheduler;

pub use crate::cpus::{Cpus, InvalidCpus, Pid};
pub use discover::{interface, interface_name, interface_of_address, interfaces};
pub(crate) use discover::{interface_by_index, wait_for_queues};
pub use idle_cores::IdleCores;
pub(crate) use interface::sysfs;
pub use interface::{Interface, NapiThreadSettings, RxQueue, TxQueue};
pub(crate) use machine::HostFacts;
pub use machine::Machine;
#[cfg(feature = "tools")]
pub use recording::{Recording, UnusableRecording};
