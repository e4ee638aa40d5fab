//! Servers of other projects under kernel polling, attached from outside, on the two-namespace
//! testbed.

mod attached;
mod commands;
mod cycles;
mod kills;
mod left_alone;
mod servers;
