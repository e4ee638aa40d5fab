//! The host as it is now: interfaces, queues, NAPIs, interrupts and CPUs. Reads only, except for
//! interrupt affinity, the scheduling of kernel threads and irqbalance's ban list.

pub(crate) mod capabilities;
pub(crate) mod device;
mod discover;
mod drivers;
mod facts;
mod host_facts;
pub(crate) mod identity;
mod interface;
pub(crate) mod irq;
mod irq_names;
pub mod irqbalance;
mod machine;
pub(crate) mod net_namespace;
pub(crate) mod numa;
pub(crate) mod process_stat;
mod receiving;
mod recording;
pub mod scheduler;

pub use crate::cpus::{Cpus, InvalidCpus, Pid};
pub use discover::{interface, interface_of_address, interfaces};
pub(crate) use discover::{interface_by_index, wait_for_queues};
pub use drivers::{DRIVERS, Driver, Evidence, Since};
pub(crate) use host_facts::HostFacts;
pub(crate) use interface::sysfs;
pub use interface::{Interface, NapiThreadSettings, RxQueue, TxQueue};
pub use machine::Machine;
pub use receiving::Receiving;
pub use recording::{Recording, UnusableRecording};
