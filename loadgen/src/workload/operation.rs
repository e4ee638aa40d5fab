//! The operations that a workload can send.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// `get`, of one key or of several.
    Get,
    /// `set`.
    Set,
    /// `add`.
    Add,
    /// `replace`.
    Replace,
    /// `append`.
    Append,
    /// `prepend`.
    Prepend,
    /// `delete`.
    Delete,
    /// `touch`.
    Touch,
    /// `gets`, followed by `cas` on a hit and by `set` on a miss. The latency spans both requests.
    Cas,
    /// `incr` of a counter whose key is the record's key with an `n` in front.
    Incr,
    Decr,
    /// `mg`.
    MetaGet,
    /// `ms`.
    MetaSet,
}

impl Operation {
    pub const ALL: [Self; 13] = [
        Self::Get,
        Self::Set,
        Self::Add,
        Self::Replace,
        Self::Append,
        Self::Prepend,
        Self::Delete,
        Self::Touch,
        Self::Cas,
        Self::Incr,
        Self::Decr,
        Self::MetaGet,
        Self::MetaSet,
    ];

    /// The name that a [`Mix`](crate::Mix) uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Add => "add",
            Self::Replace => "replace",
            Self::Append => "append",
            Self::Prepend => "prepend",
            Self::Delete => "delete",
            Self::Touch => "touch",
            Self::Cas => "cas",
            Self::Incr => "incr",
            Self::Decr => "decr",
            Self::MetaGet => "mg",
            Self::MetaSet => "ms",
        }
    }

    pub(crate) fn stores(self) -> bool {
        matches!(self, Self::Set | Self::Add | Self::Replace | Self::Append | Self::Prepend | Self::MetaSet)
    }

    pub(crate) fn is_arithmetic(self) -> bool {
        matches!(self, Self::Incr | Self::Decr)
    }
}
