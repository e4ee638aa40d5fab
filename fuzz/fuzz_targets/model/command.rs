//! What a session consists of.

use libfuzzer_sys::arbitrary::{self, Arbitrary};

#[derive(Debug, Arbitrary)]
pub enum Command {
    Set {
        key: u8,
        flags: u16,
        value: Vec<u8>,
        quiet: bool,
    },
    Repeat {
        key: u8,
        byte: u8,
        length: u16,
    },
    /// Several values in a row, which fill a small memory.
    Fill {
        key: u8,
        count: u8,
        length: u16,
    },
    Add {
        key: u8,
        value: Vec<u8>,
    },
    Replace {
        key: u8,
        value: Vec<u8>,
    },
    Append {
        key: u8,
        value: Vec<u8>,
    },
    Prepend {
        key: u8,
        value: Vec<u8>,
    },
    Cas {
        key: u8,
        value: Vec<u8>,
        between: Between,
        meta: bool,
    },
    Get {
        keys: Vec<u8>,
    },
    SetExpired {
        key: u8,
    },
    Delete {
        key: u8,
    },
    Count {
        key: u8,
        amount: u64,
        up: bool,
    },
    Number {
        key: u8,
        number: u64,
    },
    Touch {
        key: u8,
    },
    MetaGet {
        key: u8,
        value: bool,
        flags: bool,
        size: bool,
    },
    MetaSet {
        key: u8,
        value: Vec<u8>,
        mode: u8,
    },
    MetaDelete {
        key: u8,
        quiet: bool,
    },
    MetaCount {
        key: u8,
        delta: u64,
        up: bool,
        vivify: Option<u64>,
    },
    TooLongKey {
        verb: u8,
    },
    Flush,
    Noop,
}

/// What happens to an item between the command that returns its CAS unique and the one that
/// requires it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Arbitrary)]
pub enum Between {
    Nothing,
    Touched,
    /// It is set to the same value.
    Set,
    /// It is a number, and 1 is added to it.
    Counted,
    Appended,
    Deleted,
    /// Nothing, but another unique is required.
    Miscounted,
}
