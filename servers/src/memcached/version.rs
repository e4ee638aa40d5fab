//! The version that the server reports.

/// The reply to `version`: the memcached version whose protocols the server implements, followed by the
/// crate's version. Clients parse the leading number to detect features.
pub const VERSION: &str = concat!("1.6.45-lull-", env!("CARGO_PKG_VERSION"));
