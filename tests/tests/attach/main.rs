//! Servers of other projects under kernel polling, attached from outside, on the two-namespace
//! testbed.

mod attached;
mod commands;
mod control_groups;
mod cycles;
mod kills;
mod left_alone;
mod load;
mod namespaces;
mod permissions;
mod restarts;
mod servers;
