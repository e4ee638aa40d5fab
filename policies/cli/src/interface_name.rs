//! The value of arguments that name an interface.

use std::convert::Infallible;

use policies::host;

/// Replaces an alternative name (`ip link property add`) by the kernel's name of the interface. A name
/// that no interface has is left as it is: a journal may exist for an interface that is gone.
pub fn interface_name(text: &str) -> Result<String, Infallible> {
    Ok(host::interface_name(text))
}
